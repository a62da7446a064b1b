"""The numbers of an adapter's matrices: of a type that the engine multiplies with, and finite.

A number that is none would stay in the engine's cache and spoil what is computed there next.
"""

from pathlib import Path

import numpy as np

from antiphon.errors import ModelFileError
from antiphon.weights.gguf import Extent, read_extents

KINDS = ("F32", "F16", "BF16", "Q8_0")
"""Types that llama.cpp's converters write adapters in."""

WINDOW = 1 << 22
"""Bytes that are looked at at once; whole blocks of every type."""

BLOCK = 34
"""Bytes of a block of Q8_0: the scale of 32 numbers, as F16, then the numbers."""


def check_matrices(path: Path, name: str) -> None:
    """Raises ModelFileError, which calls the file `name`."""
    extents = read_extents(path)
    if odd := next((extent for extent in extents if extent.kind not in KINDS), None):
        raise ModelFileError(
            f"{name} holds {odd.name[:120]} as {odd.kind}; an adapter's matrices must be {', '.join(KINDS)}"
        )
    for extent in extents:
        if not _is_finite(path, extent):
            raise ModelFileError(f"{name} holds numbers in {extent.name[:120]} that are not finite")


def _is_finite(path: Path, extent: Extent) -> bool:
    with path.open("rb") as file:
        file.seek(extent.offset)
        left = extent.size
        step = WINDOW - WINDOW % BLOCK if extent.kind == "Q8_0" else WINDOW
        while left:
            data = file.read(min(left, step))
            left -= len(data)
            if extent.kind == "BF16":  # the upper half of a float32, whose exponent says whether it is one
                sound = (np.frombuffer(data, "<u2") & 0x7F80 != 0x7F80).all()
            elif extent.kind == "Q8_0":
                sound = np.isfinite(
                    np.frombuffer(data, np.uint8).reshape(-1, BLOCK)[:, :2].copy().view("<f2")
                ).all()
            else:
                sound = np.isfinite(np.frombuffer(data, "<f4" if extent.kind == "F32" else "<f2")).all()
            if not sound:
                return False
    return True
