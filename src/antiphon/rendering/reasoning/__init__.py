"""Reasoning as models write it: its notation and what a caller may ask of it (`notation`), telling it from
the answer (`reader`), and what a constraint lets pass before the answer (`constraint`)."""
