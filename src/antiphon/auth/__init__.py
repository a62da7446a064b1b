"""Verifies credentials: keys of this server, and tokens of an OpenID Connect issuer."""
