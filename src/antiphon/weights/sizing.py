"""How much context fits the memory: the KV cache's size from the header's figures. Reads no weights."""

import os

from antiphon.errors import LoadError
from antiphon.weights.gguf import Header

KV_SHARE = 0.5
"""Part of the memory that is free, after the weights, that KV caches may take; the rest is for buffers and
the system."""

LONGEST_DEFAULT = 8192
"""Tokens of one sequence when nobody says otherwise: enough for a chat, and a longer one is a flag away."""

SHORTEST_USEFUL = 256
"""Tokens below which serving makes no sense."""

SHORTEST_SERVED = 16
"""Tokens that a context must have; the settings take no shorter one."""

BYTES = {"f16": 2, "f32": 4}


def kv_bytes_per_cell(header: Header, kv_type: str) -> int:
    """Bytes of keys and values that one token takes over all layers."""
    return header.layers * (header.key_width + header.value_width) * BYTES[kv_type]


def fitting_context(header: Header, sequences: int, kv_type: str, free: int | None = None) -> int:
    """The longest context, at most the model's own, whose KV cache for all sequences fits. Raises
    LoadError."""
    room = ((available_memory() if free is None else free) - header.size) * KV_SHARE
    per_token = kv_bytes_per_cell(header, kv_type) * sequences
    own = header.context_length or LONGEST_DEFAULT
    fits = int(room // per_token) if per_token else own
    length = min(own, LONGEST_DEFAULT, fits // SHORTEST_USEFUL * SHORTEST_USEFUL if fits < own else own)
    if own < SHORTEST_SERVED:
        raise LoadError(f"{header.path.name} was made for {own} tokens; {SHORTEST_SERVED} are the least")
    if length < min(own, SHORTEST_USEFUL):
        raise LoadError(
            f"{header.path.name} needs {header.size / 1e9:.1f} GB for its weights and "
            f"{per_token * SHORTEST_USEFUL / 1e6:.0f} MB "
            f"for {sequences} sequences of {SHORTEST_USEFUL} tokens, more than the memory that is free; "
            "use a smaller quantization or fewer --sequences"
        )
    return length


def available_memory() -> int:
    """Bytes that can be had without swapping, within the control group's limit."""
    free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        pass  # not Linux: all of the memory is the best known bound
    return min([free, *_control_group_room()])


def _control_group_room() -> list[int]:
    """What the control group (version 2) still grants; nothing where there is no limit."""
    try:
        with (
            open("/sys/fs/cgroup/memory.max", encoding="ascii") as limit,
            open("/sys/fs/cgroup/memory.current", encoding="ascii") as used,
        ):
            text = limit.read().strip()
            return [] if text == "max" else [max(0, int(text) - int(used.read()))]
    except (OSError, ValueError):
        return []
