"""The index of knowledge tables in SQLite: one file for each table, and nothing besides to install."""
