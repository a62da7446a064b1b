"""The embedded engine: llama.cpp's C API with Antiphon's own scheduler and sampler."""

from antiphon.engines.llama.engine import LlamaTokenEngine

__all__ = ["LlamaTokenEngine"]
