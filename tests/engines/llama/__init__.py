"""The embedded engine, tested against the real library and small models."""
