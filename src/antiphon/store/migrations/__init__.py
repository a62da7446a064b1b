"""The history of the tables, one revision in each file; there are no downgrades."""
