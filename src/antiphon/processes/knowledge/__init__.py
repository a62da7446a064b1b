"""The knowledge process: the index of all knowledge tables, in a process of its own, and its client."""
