"""Estimates the memory of local models, from their settings and the headers of their files."""

from pathlib import Path

from antiphon.settings.models import ModelSettings
from antiphon.weights.gguf import read_header
from antiphon.weights.kv_cache_size import LONGEST_DEFAULT, kv_bytes_per_cell, text_bytes_per_token


def estimate_memory(model: ModelSettings) -> int:
    """Returns the bytes of a model's weights and KV cache. Raises ModelFileError."""
    header = read_header(Path(model.path))
    length = model.context_length or LONGEST_DEFAULT
    if header.embeds:
        return header.size + text_bytes_per_token(header) * length
    cells = model.cells or length * model.sequences
    return header.size + kv_bytes_per_cell(header, model.kv_type) * cells
