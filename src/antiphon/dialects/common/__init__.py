"""Code that several dialects share: field tables, strict JSON, wire types, decoding, encoding, and
endpoints."""
