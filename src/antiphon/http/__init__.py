"""The HTTP edge: from a socket to the pipeline and back, over a dialect it does not know by name."""
