"""JamAI Base's dialect, as its client `jamaibase` speaks it."""
