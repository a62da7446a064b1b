"""Engines: what turns a generation request into events."""
