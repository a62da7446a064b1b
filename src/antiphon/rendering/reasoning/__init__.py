"""Reasoning of models: its notation and the caller's options (`notation`), the separation from the answer
(`reader`), and constraints that begin after it (`constraint`)."""
