"""Anthropic's Messages API as an upstream dialect."""
