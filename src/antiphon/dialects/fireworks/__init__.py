"""Fireworks AI's dialect, as Fireworks' page of text completions describes it: requests, answers, streams and
errors."""
