"""The embedded engine: llama.cpp's C API with a scheduler and a sampler of our own."""

from antiphon.engines.llama.engine import LlamaTokenEngine

__all__ = ["LlamaTokenEngine"]
