"""Knowledge tables of a caller's project: tables, documents, chunks and search."""
