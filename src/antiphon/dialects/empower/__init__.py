"""Empower's wire format: chat completions, and LoRA adapters that callers deploy."""
