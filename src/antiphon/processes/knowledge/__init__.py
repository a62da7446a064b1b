"""The knowledge process with the index of all knowledge tables, and its client."""
