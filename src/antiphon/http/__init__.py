"""The HTTP layer: it connects sockets to the pipeline through dialects, and knows no dialect by name."""
