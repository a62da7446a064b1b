"""Engines, which turn a generation request into events."""
