"""The database: everything that outlives the process, in SQLite or PostgreSQL."""
