"""Computes the context length that fits the memory, from the header of a model's file. Reads no weights."""

import os
from pathlib import Path

from antiphon.domain.values import Struct
from antiphon.errors import LoadError, ModelFileError
from antiphon.settings.models import ModelSettings
from antiphon.weights.gguf import Header, read_header

KV_SHARE = 0.5
"""The share of the memory that remains after the weights and that KV caches can use. The rest is for buffers
and the system."""

LONGEST_DEFAULT = 8192
"""The default tokens of one sequence: enough for a chat. An option sets more."""

SHORTEST_USEFUL = 256
"""The fewest tokens that are chosen automatically."""

SHORTEST_SERVED = 16
"""The fewest tokens of a context; the settings have the same minimum."""

ACTIVATIONS = 32
"""The number of rows, each as wide as the encoder, that llama.cpp needs for one token: measured, plus a
reserve."""

BYTES = {"f16": 2, "f32": 4}


def compute_cell_bytes(header: Header, kv_type: str) -> int:
    """Returns the bytes of one token's keys and values over all layers."""
    return header.layers * (header.key_width + header.value_width) * BYTES[kv_type]


class CacheOptions(Struct, frozen=True):
    """The configured options of a model's KV cache. None means that the value is chosen automatically."""

    sequences: int
    context_length: int | None = None
    cells: int | None = None
    kv_type: str = "f16"
    shares_cells: bool = True
    """Whether all sequences share the cells. If not, each sequence has its own cells."""


class CacheSize(Struct, frozen=True):
    """The size of a KV cache. A cell holds the keys and values of one token."""

    context_length: int
    """Tokens of one sequence."""
    cells: int
    """Tokens of all sequences together."""


def fit_cache(header: Header, options: CacheOptions, available_bytes: int | None = None) -> CacheSize:
    """Returns the longest context that fits the memory, at most the model's own, and the number of cells.

    If memory is short, a shared pool of cells shrinks first, down to one sequence of full length; after that
    the context shrinks. Without a pool the context of every sequence shrinks. Configured values are never
    changed. Raises LoadError.
    """
    model_length = header.context_length or LONGEST_DEFAULT
    if model_length < SHORTEST_SERVED:
        raise LoadError(
            f"{header.path.name} has a context of {model_length} tokens; the minimum is {SHORTEST_SERVED}"
        )
    full_sequences = 1 if options.shares_cells else options.sequences  # they need cells for a whole context
    fitting_cells = options.cells or _fit_cells(
        header, options.kv_type, available_bytes, model_length * options.sequences
    )
    length = options.context_length or _fit_length(
        header, options, min(model_length, LONGEST_DEFAULT), fitting_cells // full_sequences
    )
    if options.cells is not None:
        return CacheSize(min(length, options.cells // full_sequences), options.cells)
    cells = length * options.sequences
    return CacheSize(length, max(length, min(cells, fitting_cells)) if options.shares_cells else cells)


def fit_text_length(header: Header, configured: int | None, available_bytes: int | None = None) -> int:
    """Returns the most tokens of one text for an embedding model: the model's own limit, or fewer if the
    memory is short. A configured value is never changed. Raises LoadError."""
    model_length = header.context_length
    if model_length < 1:
        raise LoadError(f"{header.path.name} does not state how many tokens a text can have")
    cache_bytes = (
        (measure_available_memory() if available_bytes is None else available_bytes) - header.size
    ) * KV_SHARE
    longest = min(model_length, LONGEST_DEFAULT)
    fitting_tokens = int(cache_bytes // compute_text_token_bytes(header))
    if configured or fitting_tokens >= longest:
        return configured or longest
    if fitting_tokens < SHORTEST_USEFUL:
        raise LoadError(
            f"{header.path.name} needs {header.size / 1e9:.1f} GB for its weights, and more for a text of "
            f"{SHORTEST_USEFUL} tokens than the free memory; use a smaller quantization"
        )
    return fitting_tokens // SHORTEST_USEFUL * SHORTEST_USEFUL


def compute_text_token_bytes(header: Header) -> int:
    """Returns the bytes that each token of a text needs. An encoder needs a row as wide as the vocabulary for
    each token. A decoder reads a long text in parts and needs a cache."""
    if header.metadata.get(f"{header.architecture}.attention.causal", True):
        return max(1, compute_cell_bytes(header, "f16"))
    _, vocabulary = header.shapes.get("token_embd.weight", (0, 0))
    return 4 * (vocabulary + ACTIVATIONS * max(1, header.get_integer("embedding_length")))


def _fit_cells(header: Header, kv_type: str, available_bytes: int | None, max_cells: int) -> int:
    """Returns the number of cells that fit next to the weights, at most `max_cells`. If the memory limits the
    number, it is a multiple of SHORTEST_USEFUL."""
    cache_bytes = (
        (measure_available_memory() if available_bytes is None else available_bytes) - header.size
    ) * KV_SHARE
    cell_bytes = compute_cell_bytes(header, kv_type)
    fitting_cells = int(cache_bytes // cell_bytes) if cell_bytes else max_cells
    return max(
        0, max_cells if fitting_cells >= max_cells else fitting_cells // SHORTEST_USEFUL * SHORTEST_USEFUL
    )


def _fit_length(header: Header, options: CacheOptions, max_length: int, fitting_cells: int) -> int:
    """Returns the context length of one sequence if `fitting_cells` cells are available to it, at most
    `max_length`. Raises LoadError if the cells are too few."""
    if fitting_cells >= max_length or options.cells is not None:
        return min(max_length, fitting_cells)
    if fitting_cells < SHORTEST_USEFUL:
        full_sequences = 1 if options.shares_cells else options.sequences
        needed = compute_cell_bytes(header, options.kv_type) * SHORTEST_USEFUL * full_sequences
        raise LoadError(
            f"{header.path.name} needs {header.size / 1e9:.1f} GB for its weights and {needed / 1e6:.0f} MB "
            f"for {full_sequences} x {SHORTEST_USEFUL} tokens, more than the free memory; "
            f"use a smaller quantization{'' if options.shares_cells else ' or fewer --sequences'}"
        )
    return fitting_cells // SHORTEST_USEFUL * SHORTEST_USEFUL


def estimate_memory(model: ModelSettings) -> int:
    """Returns the bytes of a model's weights, projector and KV cache. Raises ModelFileError."""
    header = read_header(Path(model.path))
    projector_bytes = measure_projector(model)
    length = model.context_length or LONGEST_DEFAULT
    if header.embeds:
        return header.size + compute_text_token_bytes(header) * length
    cells = model.cells or length * model.sequences
    return header.size + projector_bytes + compute_cell_bytes(header, model.kv_type) * cells


def measure_projector(model: ModelSettings) -> int:
    """Returns the bytes of a model's projector; 0 without one. Raises ModelFileError."""
    if model.mmproj is None:
        return 0
    path = Path(model.mmproj).expanduser()
    try:
        return path.stat().st_size
    except OSError as problem:
        raise ModelFileError(f"the projector {path} cannot be read: {problem.strerror}") from None


def measure_available_memory() -> int:
    """Returns the bytes that are available without swapping, within the limit of the control group."""
    available_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            available_bytes = next(
                int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")
            )
    except (OSError, StopIteration):
        pass  # not Linux: the whole memory is the only known limit
    return min([available_bytes, *_read_cgroup_limit()])


def _read_cgroup_limit() -> list[int]:
    """Returns the bytes that the control group (version 2) still allows, as a list with one element. Returns
    an empty list if there is no limit."""
    try:
        with (
            open("/sys/fs/cgroup/memory.max", encoding="ascii") as limit,
            open("/sys/fs/cgroup/memory.current", encoding="ascii") as used,
        ):
            text = limit.read().strip()
            return [] if text == "max" else [max(0, int(text) - int(used.read()))]
    except (OSError, ValueError):
        return []
