"""The index of knowledge tables in PostgreSQL: vectors by pgvector (HNSW), words by tsvector (GIN)."""
