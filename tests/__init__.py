"""Antiphon's tests: a mirror of src/antiphon, and the folders that cross it."""
