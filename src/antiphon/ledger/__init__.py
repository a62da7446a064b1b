"""The ledger: what is written of each generation, and how it comes into the database exactly once."""
