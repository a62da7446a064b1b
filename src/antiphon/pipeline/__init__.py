"""Policy: what happens to a request between the HTTP edge and an engine."""
