"""Policy: what happens to a generation request between the edge and an engine."""
