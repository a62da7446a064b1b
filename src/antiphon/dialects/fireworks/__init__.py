"""Fireworks AI's dialect, as its page of text completions has it; requests, answers, streams and errors."""
