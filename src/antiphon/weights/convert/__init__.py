"""Converts other formats to GGUF: PEFT adapters and transformers' encoders. It reads safetensors only, never
a pickle, and runs no code from the model's directory."""
