"""Code that several dialects share: field tables, wire types, decoding, encoding, and endpoints."""
