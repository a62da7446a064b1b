"""From other formats to GGUF: adapters in PEFT's, encoders in transformers'. Reads safetensors only, never a
pickle, and runs no code that came with the weights."""
