"""Shapes that dialects and upstream dialects share."""
