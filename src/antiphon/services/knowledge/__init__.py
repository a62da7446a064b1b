"""The service of knowledge tables: tables, documents, chunks and search, for one caller's project."""
