"""Converts chunks from callers to the form that every index stores."""

from collections.abc import Sequence

from antiphon.domain.values import Struct
from antiphon.errors import InvalidValue
from antiphon.retrieval.base import ChunkInput, TableSettings
from antiphon.retrieval.checks import encode_metadata, measure_text
from antiphon.retrieval.halves import normalize


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
