"""Converts vectors to the form in which every index stores them: length 1, half precision, little-endian."""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from antiphon.errors import InvalidValue
from antiphon.retrieval.base import TableSettings

Halves = npt.NDArray[np.uint16]
"""Numbers in half precision, as unsigned integers with the same bits."""
Floats = npt.NDArray[np.float32]


def normalize(vector: bytes, dimensions: int, field: str) -> bytes:
    """Returns a vector of length 1 in half precision. `vector`: float32. Raises InvalidValue, which names
    `field`."""
    if len(vector) != 4 * dimensions:
        raise InvalidValue(
            f"{field} has {describe_dimensions(vector)}, and this table's vectors have {dimensions}: make it "
            "with the table's embedding model",
            param=field,
        )
    values = np.frombuffer(vector, "<f4").astype(np.float64)
    length = float(np.sqrt(values @ values)) if np.isfinite(values).all() else 0.0
    if not length:
        raise InvalidValue(
            f"{field} has no direction: its numbers must be finite, and at least one must not be 0",
            param=field,
        )
    return (values / length).astype("<f2").tobytes()


def prepare_vector(settings: TableSettings, vector: bytes) -> bytes:
    """Returns the vector of a query in the form of the table's vectors. An empty vector stays empty. Raises
    InvalidValue for a vector with other dimensions."""
    if not vector:
        return b""
    if not settings.dimensions:
        raise InvalidValue(
            "this knowledge table finds by words only: search it without a vector", param="vector"
        )
    return normalize(vector, settings.dimensions, "vector")


def describe_dimensions(vector: bytes) -> str:
    return f"{len(vector) // 4} dimensions" if vector else "no vector"


def decode_halves(halves: Halves) -> Floats:
    """Returns the numbers in single precision. A lookup table of all 65,536 values is faster than numpy's
    conversion."""
    return load_half_table()[halves]


def encode_floats(halves: bytes) -> bytes:
    """Converts the bytes of a vector from half to single precision."""
    return decode_halves(read_halves(halves)).astype("<f4").tobytes()


def read_halves(values: bytes) -> Halves:
    return np.frombuffer(values, "<u2").astype(np.uint16, copy=False)


@lru_cache(maxsize=1)
def load_half_table() -> Floats:
    """Returns the number for each pattern of 16 bits."""
    return np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
