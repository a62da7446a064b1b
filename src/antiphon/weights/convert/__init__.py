"""Converts PEFT adapters and transformers' encoders to GGUF. It reads only safetensors, never a pickle, and
runs no code from the model's directory."""
