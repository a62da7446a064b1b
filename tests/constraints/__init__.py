"""Constraints: what is refused, and that what is taken is kept."""
