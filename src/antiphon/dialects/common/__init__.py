"""What several products share: field tables, strict JSON, wire types, decoding, encoding, and endpoints."""
