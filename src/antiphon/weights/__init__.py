"""Model files: their headers, downloads from the hub, adapters, conversion, and the size of the KV cache."""
