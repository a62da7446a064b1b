"""Knowledge tables: documents in chunks, which are found by their words and by their vectors."""
