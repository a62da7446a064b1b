"""Tables, documents and vectors for tests of the index."""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import numpy as np

from antiphon.retrieval.base import (
    ChunkInput,
    DocumentInfo,
    DocumentInput,
    KnowledgeIndex,
    SearchHit,
    SearchQuery,
    TableSettings,
)

OpenIndex = Callable[..., AbstractAsyncContextManager[KnowledgeIndex]]
"""Opens an index; its parameter are limits."""

PROJECT = "default"
DIMENSIONS = 8
WORDS_ONLY = TableSettings("words")
VECTORS = TableSettings("vectors", "toy", DIMENSIONS)


def make_vector(seed: int, dimensions: int = DIMENSIONS) -> bytes:
    """A vector of any length, the same for the same seed."""
    return np.random.default_rng(seed).standard_normal(dimensions).astype("<f4").tobytes()


def make_document(name: str, content: str = "") -> DocumentInput:
    return DocumentInput(
        name, hashlib.sha256(f"{name} {content}".encode()).hexdigest(), "text/plain", len(content)
    )


def make_chunks(texts: Sequence[str], dimensions: int = 0, seed: int = 0) -> list[ChunkInput]:
    """Chunks of these texts, with vectors of `seed` and the numbers after it."""
    return [
        ChunkInput(text, vector=make_vector(seed + place, dimensions) if dimensions else b"")
        for place, text in enumerate(texts)
    ]


async def add_document(
    index: KnowledgeIndex, table: str, name: str, chunks: Sequence[ChunkInput], project: str = PROJECT
) -> DocumentInfo:
    """Adds a document of one batch. Its content is that of the chunks."""
    begun = await index.begin_document(project, table, make_document(name, repr(chunks)))
    await index.put_chunks(project, table, begun.id, 0, chunks)
    return await index.finish_document(project, table, begun.id)


async def find(
    index: KnowledgeIndex, table: str, words: str, project: str = PROJECT, k: int = 10
) -> list[str]:
    """The texts that a search by words finds."""
    return texts_of(await index.search(project, table, SearchQuery(words, k=k)))


def list_files(directory: Path, pattern: str) -> list[Path]:
    return sorted(directory.rglob(pattern))


def texts_of(hits: Sequence[SearchHit]) -> list[str]:
    return [hit.chunk.text for hit in hits]
