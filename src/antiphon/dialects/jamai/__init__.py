"""JamAI Base's dialect, as its client `jamaibase` uses it."""
