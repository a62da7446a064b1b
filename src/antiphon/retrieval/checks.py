"""Checks the arguments of calls of a knowledge index, in the same way for every index. Each error names the
field and the remedy."""

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence

from antiphon.domain.values import astuple
from antiphon.errors import InvalidValue, KnowledgeLimitReached, NotFound
from antiphon.retrieval.base import (
    LONGEST_FILE_NAME,
    LONGEST_NAME,
    LONGEST_TEXT,
    MAX_BATCH,
    MAX_BATCH_BYTES,
    MAX_DIMENSIONS,
    MAX_HIT_BYTES,
    MAX_HITS,
    MAX_PAGE,
    ChunkInput,
    DocumentInput,
    IndexLimits,
    IndexUsage,
    SearchHit,
    SearchQuery,
    TableSettings,
)

DOCUMENT_ID = re.compile("[0-9A-Za-z_-]{1,64}")
"""The form of a document's id from a caller."""

LARGEST_NUMBER = 2**31 - 1
"""The largest page, size and batch number."""


def require_settings(settings: TableSettings) -> None:
    """Raises InvalidValue for a table that cannot be made."""
    require_name(settings.name)
    if not 0 <= settings.dimensions <= MAX_DIMENSIONS:
        raise InvalidValue(f"dimensions must be from 0 to {MAX_DIMENSIONS}", param="dimensions")
    if (settings.embedding_model is None) != (settings.dimensions == 0):
        raise InvalidValue(
            "dimensions must be given with embedding_model, and without one they must be 0",
            param="dimensions",
        )
    if not 1 <= settings.chunk_size <= LONGEST_TEXT:
        raise InvalidValue(f"chunk_size must be from 1 to {LONGEST_TEXT}", param="chunk_size")
    if not 0 <= settings.chunk_overlap < settings.chunk_size:
        raise InvalidValue("chunk_overlap must be at least 0 and below chunk_size", param="chunk_overlap")
    measure_text(json.dumps(dict(settings.attributes)), "attributes")


def require_name(name: str) -> None:
    """Raises InvalidValue for a name that no table can have."""
    if not 1 <= len(name) <= LONGEST_NAME or name != name.strip():
        raise InvalidValue(
            f"a table's name must have from 1 to {LONGEST_NAME} characters, and no space at its ends",
            param="name",
        )
    _require_printable(name, "a table's name", "name")


def require_document(document: DocumentInput) -> None:
    """Raises InvalidValue for a document that cannot be added."""
    require_file_name(document.name)
    for value, field in ((document.digest, "digest"), (document.media_type, "media_type")):
        if not 1 <= len(value) <= LONGEST_FILE_NAME:
            raise InvalidValue(f"{field} must have from 1 to {LONGEST_FILE_NAME} characters", param=field)
        _require_printable(value, field, field)
    if document.id and not DOCUMENT_ID.fullmatch(document.id):
        raise InvalidValue("a document's id must have letters, digits, - and _ only, at most 64", param="id")
    if document.bytes < 0:
        raise InvalidValue("bytes must be at least 0", param="bytes")


def require_file_name(name: str) -> None:
    """Raises InvalidValue for a name that no document can have."""
    if not 1 <= len(name) <= LONGEST_FILE_NAME:
        raise InvalidValue(
            f"a document's name must have from 1 to {LONGEST_FILE_NAME} characters", param="file_name"
        )
    _require_printable(name, "a document's name", "file_name")


def _require_printable(text: str, noun: str, field: str) -> None:
    """Raises InvalidValue for control characters and lone surrogates."""
    if any(unicodedata.category(letter) in ("Cc", "Cs") for letter in text):
        raise InvalidValue(f"{noun} must not contain control characters", param=field)


def require_batch(batch: int, chunks: Sequence[ChunkInput], progress: int | None) -> None:
    """Raises InvalidValue for a batch that is too large, or has an invalid number."""
    if not 0 <= batch <= LARGEST_NUMBER:
        raise InvalidValue(f"a batch's number must be from 0 to {LARGEST_NUMBER}", param="batch")
    if progress is not None and not 0 <= progress <= 100:
        raise InvalidValue("progress must be from 0 to 100 percent", param="progress")
    require_chunks(chunks)


def require_chunks(chunks: Sequence[ChunkInput]) -> None:
    """Raises InvalidValue for too many chunks in one call, or for a chunk that cannot be stored."""
    if len(chunks) > MAX_BATCH:
        raise InvalidValue(
            f"one call can have at most {MAX_BATCH} chunks, not {len(chunks)}: send fewer at a time",
            param="chunks",
        )
    total = sum(measure_chunk(chunk, f"chunks[{index}]") for index, chunk in enumerate(chunks))
    if total > MAX_BATCH_BYTES:
        raise InvalidValue(
            f"one call can have at most {MAX_BATCH_BYTES} bytes of chunks, not {total}: send fewer at a time",
            param="chunks",
        )


def measure_chunk(chunk: ChunkInput, field: str) -> int:
    """Returns the bytes of a chunk's texts and vector. Raises InvalidValue for a chunk that cannot be
    stored."""
    if chunk.page is not None and not 0 <= chunk.page <= LARGEST_NUMBER:
        raise InvalidValue(f"{field}.page must be from 0 to {LARGEST_NUMBER}", param=f"{field}.page")
    if chunk.file_name:
        require_file_name(chunk.file_name)
    texts = measure_text(chunk.text + chunk.title + encode_metadata(chunk.metadata), f"{field}.text")
    return texts + len(chunk.vector)


def encode_metadata(metadata: Mapping[str, str]) -> str:
    """Returns metadata as JSON; empty if there is no metadata."""
    return json.dumps(dict(metadata), ensure_ascii=False) if metadata else ""


def measure_text(text: str, field: str) -> int:
    """Returns the bytes of a text in UTF-8. Raises InvalidValue for a text that is too long or has lone
    surrogates."""
    if len(text) > LONGEST_TEXT:
        raise InvalidValue(
            f"{field}, with title and metadata, has {len(text)} characters: the most is {LONGEST_TEXT}",
            param=field,
        )
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise InvalidValue(f"{field} contains half of a character: send whole Unicode", param=field) from None


def require_listing(offset: int, limit: int) -> None:
    """Raises InvalidValue for an invalid offset or limit."""
    if not 0 <= offset <= LARGEST_NUMBER:
        raise InvalidValue(f"offset must be from 0 to {LARGEST_NUMBER}", param="offset")
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidValue(f"limit must be from 1 to {MAX_PAGE}", param="limit")


def require_query(query: SearchQuery) -> None:
    """Raises InvalidValue for an invalid search."""
    for value, field in ((query.k, "k"), (query.depth, "depth")):
        if not 1 <= value <= MAX_HITS:
            raise InvalidValue(f"{field} must be from 1 to {MAX_HITS}", param=field)
    require_ids(query.documents, "documents")


def cut_hits(hits: Sequence[SearchHit]) -> tuple[SearchHit, ...]:
    """Returns the best hits that together have at most MAX_HIT_BYTES of text, so that one message can contain
    them. `hits`: the best first."""
    total = 0
    for index, hit in enumerate(hits):
        chunk = hit.chunk
        total += len((chunk.text + chunk.title).encode())
        total += sum(len((name + value).encode()) for name, value in chunk.metadata.items())
        if total > MAX_HIT_BYTES:
            return tuple(hits[:index])
    return tuple(hits)


def require_ids(ids: Sequence[str], field: str) -> None:
    """Raises InvalidValue for too many ids."""
    if len(ids) > MAX_HITS:
        raise InvalidValue(f"{field} must have at most {MAX_HITS} ids", param=field)


def require_within_limits(limits: IndexLimits, total: IndexUsage) -> None:
    """Raises KnowledgeLimitReached if a project would store more than its limits allow. `total`: what it
    would store after the write."""
    for name in ("tables", "documents", "chunks", "bytes"):
        maximum = getattr(limits, name)
        if getattr(total, name) > maximum:
            raise KnowledgeLimitReached(
                f"this project's knowledge tables can keep {maximum} {name}: "
                "remove some, or ask the operator for a higher limit",
                param=name,
            )


def add_usage(*usages: IndexUsage) -> IndexUsage:
    columns = zip(*map(astuple, usages), strict=True)
    return IndexUsage(*map(sum, columns))


def build_missing_table_error(table: str) -> NotFound:
    """Returns the error for a table that the project does not have."""
    return NotFound(f"there is no knowledge table {table[:80]!r}", param="table")
