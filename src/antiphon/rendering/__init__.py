"""Rendering: from messages to token ids and from tokens to events, once for every token engine.

Imports nothing by itself, since the sandbox helper imports single modules of it under a memory limit.
"""
