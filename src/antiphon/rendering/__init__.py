"""Rendering: converts messages to token ids, and tokens to events, for every token engine.

This package imports nothing here: the sandbox imports single modules of it under a memory limit.
"""
