"""Request bodies in the formats of HTTP, whatever the product: strict JSON, and forms with files."""
