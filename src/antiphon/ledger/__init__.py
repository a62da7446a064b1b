"""The ledger: one entry per generation, written to local files first and then to the database, exactly
once."""
