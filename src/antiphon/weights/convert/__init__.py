"""Converts other formats to GGUF: PEFT adapters and transformers' encoders. It reads safetensors only, never
a pickle, and runs no code that came with the weights."""
