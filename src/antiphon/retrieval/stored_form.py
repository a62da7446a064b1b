"""Converts chunks, vectors and settings of tables to the form in which every index stores them.

Vectors have length 1, half precision and little-endian bytes. Settings are text.
"""

import json
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from antiphon.domain.values import Struct
from antiphon.errors import InvalidValue
from antiphon.retrieval.base import ChunkInput, SizeUnit, TableSettings, encode_metadata, measure_text

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


def encode_table(settings: TableSettings) -> str:
    """Returns the settings as JSON."""
    return json.dumps(
        {
            "name": settings.name,
            "embedding_model": settings.embedding_model,
            "dimensions": settings.dimensions,
            "chunk_size": settings.chunk_size,
            "chunk_overlap": settings.chunk_overlap,
            "chunk_unit": settings.chunk_unit,
            "attributes": dict(settings.attributes),
        }
    )


def decode_table(text: str) -> TableSettings:
    """Returns the settings that `encode_table` encoded."""
    values = json.loads(text)
    return TableSettings(**{**values, "chunk_unit": SizeUnit(values["chunk_unit"])})


class ReadyChunk(Struct, frozen=True):
    """A chunk as an index stores it."""

    text: str
    title: str
    page: int | None
    file_name: str
    metadata: str
    """JSON, or empty."""
    vector: bytes
    """Half precision; empty in a table without vectors."""
    stored_bytes: int
    """Bytes of texts and vector."""


def prepare_chunks(settings: TableSettings, chunks: Sequence[ChunkInput]) -> list[ReadyChunk]:
    """Converts chunks. Raises InvalidValue, which names the chunk, for an invalid vector."""
    return [_prepare_chunk(settings, chunk, f"chunks[{index}]") for index, chunk in enumerate(chunks)]


def _prepare_chunk(settings: TableSettings, chunk: ChunkInput, field: str) -> ReadyChunk:
    if chunk.vector and not settings.dimensions:
        raise InvalidValue(
            f"{field}.vector must be left out: this table has no embedding model and finds by words only",
            param=f"{field}.vector",
        )
    vector = normalize(chunk.vector, settings.dimensions, f"{field}.vector") if settings.dimensions else b""
    metadata = encode_metadata(chunk.metadata)
    stored_bytes = measure_text(chunk.text + chunk.title + metadata, field) + len(vector)
    return ReadyChunk(chunk.text, chunk.title, chunk.page, chunk.file_name, metadata, vector, stored_bytes)


def parse_id(chunk: str) -> int:
    """Returns a chunk's id as a number. Returns 0, which no chunk has, for a text that is no id."""
    is_number = chunk.isascii() and chunk.isdecimal() and len(chunk) <= 18 and not chunk.startswith("0")
    return int(chunk) if is_number else 0
