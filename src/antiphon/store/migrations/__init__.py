"""The history of the tables: one revision a file, forward only."""
