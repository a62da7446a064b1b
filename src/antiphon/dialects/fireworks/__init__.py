"""Fireworks AI's dialect, as its page of text completions specifies it: requests, answers, streams and
errors."""
