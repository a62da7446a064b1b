"""Computes how much context fits the memory, from the numbers in the header. Reads no weights."""

import os
from dataclasses import dataclass

from antiphon.errors import LoadError
from antiphon.weights.gguf import Header

KV_SHARE = 0.5
"""The share of the memory beside the weights that KV caches may use. The rest is for buffers and the
system."""

LONGEST_DEFAULT = 8192
"""Default tokens of one sequence: enough for a chat, and a flag sets more."""

SHORTEST_USEFUL = 256
"""Tokens below which serving makes no sense."""

SHORTEST_SERVED = 16
"""Tokens that a context must have; the settings take no shorter one."""

ACTIVATIONS = 32
"""Number of rows, each as wide as the encoder, that the library holds for one token. The number was measured
and has a reserve."""

BYTES = {"f16": 2, "f32": 4}


def kv_bytes_per_cell(header: Header, kv_type: str) -> int:
    """Returns the bytes of one token's keys and values over all layers."""
    return header.layers * (header.key_width + header.value_width) * BYTES[kv_type]


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """The configured options of a model's KV cache; None is not set."""

    sequences: int
    context_length: int | None = None
    cells: int | None = None
    kv_type: str = "f16"
    pool: bool = True
    """Whether the sequences share the cells; otherwise each has its own part."""


@dataclass(frozen=True, slots=True)
class CacheSize:
    """A KV cache."""

    context_length: int
    """Tokens of one sequence."""
    cells: int
    """Tokens of all sequences together."""


def fit_cache(header: Header, options: CacheOptions, free: int | None = None) -> CacheSize:
    """Returns the longest context that fits, at most the model's own, and the cells for it.

    If memory is short, a shared pool of cells shrinks first, down to one sequence of full length; after that
    the context shrinks. Without a pool the context of every sequence shrinks. Configured values are never
    changed. Raises LoadError.
    """
    own = header.context_length or LONGEST_DEFAULT
    if own < SHORTEST_SERVED:
        raise LoadError(f"{header.path.name} was made for {own} tokens; {SHORTEST_SERVED} are the least")
    shares = 1 if options.pool else options.sequences
    """Sequences that must have cells for a whole context."""
    fits = options.cells or _fitting_cells(header, options.kv_type, free, own * options.sequences)
    length = options.context_length or _fit_length(header, options, min(own, LONGEST_DEFAULT), fits // shares)
    if options.cells is not None:
        return CacheSize(min(length, options.cells // shares), options.cells)
    cells = length * options.sequences
    return CacheSize(length, max(length, min(cells, fits)) if options.pool else cells)


def fit_text_length(header: Header, configured: int | None, free: int | None = None) -> int:
    """Returns the most tokens of one text for an embedding model: the model's own limit, or fewer if the
    memory is short. A configured value is never changed. Raises LoadError."""
    own = header.context_length
    if own < 1:
        raise LoadError(f"{header.path.name} does not say how long a text it reads")
    free_bytes = ((available_memory() if free is None else free) - header.size) * KV_SHARE
    longest = min(own, LONGEST_DEFAULT)
    fits = int(free_bytes // text_bytes_per_token(header))
    if configured or fits >= longest:
        return configured or longest
    if fits < SHORTEST_USEFUL:
        raise LoadError(
            f"{header.path.name} needs {header.size / 1e9:.1f} GB for its weights, and more for a text of "
            f"{SHORTEST_USEFUL} tokens than the memory that is free; use a smaller quantization"
        )
    return fits // SHORTEST_USEFUL * SHORTEST_USEFUL


def text_bytes_per_token(header: Header) -> int:
    """Returns the bytes that each token of the longest text needs. An encoder needs an empty row as wide as
    the vocabulary for each token. A decoder reads a long text in parts and needs a cache."""
    if header.metadata.get(f"{header.architecture}.attention.causal", True):
        return max(1, kv_bytes_per_cell(header, "f16"))
    _, vocabulary = header.shapes.get("token_embd.weight", (0, 0))
    return 4 * (vocabulary + ACTIVATIONS * max(1, header.number("embedding_length")))


def _fitting_cells(header: Header, kv_type: str, free: int | None, maximum: int) -> int:
    """Returns the number of cells that fit beside the weights, at most `maximum`. A number that the memory
    limits is a multiple of SHORTEST_USEFUL."""
    free_bytes = ((available_memory() if free is None else free) - header.size) * KV_SHARE
    per_cell = kv_bytes_per_cell(header, kv_type)
    fits = int(free_bytes // per_cell) if per_cell else maximum
    return max(0, maximum if fits >= maximum else fits // SHORTEST_USEFUL * SHORTEST_USEFUL)


def _fit_length(header: Header, options: CacheOptions, maximum: int, fits: int) -> int:
    """Returns the context length of one sequence if `fits` cells are available. Raises LoadError if they are
    too few."""
    if fits >= maximum or options.cells is not None:
        return min(maximum, fits)
    if fits < SHORTEST_USEFUL:
        full = 1 if options.pool else options.sequences
        needed = kv_bytes_per_cell(header, options.kv_type) * SHORTEST_USEFUL * full
        raise LoadError(
            f"{header.path.name} needs {header.size / 1e9:.1f} GB for its weights and {needed / 1e6:.0f} MB "
            f"for {full} x {SHORTEST_USEFUL} tokens, more than the memory that is free; "
            f"use a smaller quantization{'' if options.pool else ' or fewer --sequences'}"
        )
    return fits // SHORTEST_USEFUL * SHORTEST_USEFUL


def available_memory() -> int:
    """Returns the bytes that are available without swapping, within the control group's limit."""
    free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        pass  # not Linux: all of the memory is the best known bound
    return min([free, *_control_group_room()])


def _control_group_room() -> list[int]:
    """Returns the bytes that the control group (version 2) still allows, as a list of one number; an empty
    list if there is no limit."""
    try:
        with (
            open("/sys/fs/cgroup/memory.max", encoding="ascii") as limit,
            open("/sys/fs/cgroup/memory.current", encoding="ascii") as used,
        ):
            text = limit.read().strip()
            return [] if text == "max" else [max(0, int(text) - int(used.read()))]
    except (OSError, ValueError):
        return []
