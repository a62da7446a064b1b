"""A full disk: one clear error, nothing half indexed, and everything goes on once there is room."""

import resource
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from antiphon.domain.context import SystemClock
from antiphon.errors import KnowledgeUnavailable
from antiphon.retrieval.base import DocumentState, IndexLimits, SearchQuery, TableSettings
from antiphon.retrieval.sqlite.index import SqliteIndex
from tests.retrieval.knowledge import (
    DIMENSIONS,
    PROJECT,
    VECTORS,
    add_document,
    find,
    list_files,
    make_chunks,
    make_document,
    make_vector,
)

TABLE = VECTORS.name
LARGE = [f"word{number} " * 1000 for number in range(40)]


@contextmanager
def full_disk(most: int) -> Iterator[None]:
    """No file grows beyond so many bytes. The kernel refuses such a write, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def require_refusal(call: Callable[[], Awaitable[object]]) -> None:
    with pytest.raises(
        KnowledgeUnavailable, match=r"disk .* is full or fails, and nothing was changed"
    ) as full:
        await call()
    assert full.value.retryable


async def test_a_full_disk_leaves_nothing_half_indexed(tmp_path: Path) -> None:
    index = SqliteIndex(tmp_path, SystemClock(), IndexLimits())
    await index.create_table(PROJECT, VECTORS)
    await add_document(index, TABLE, "small", make_chunks(["an apple"], DIMENSIONS))
    begun = await index.begin_document(PROJECT, TABLE, make_document("large"))
    largest = max(file.stat().st_size for file in list_files(tmp_path, "*.db*"))
    with full_disk(largest + 50_000):
        await require_refusal(
            lambda: index.put_chunks(PROJECT, TABLE, begun.id, 0, make_chunks(LARGE, DIMENSIONS))
        )
        assert await find(index, TABLE, "apple word1") == ["an apple"]
        document = await index.get_document(PROJECT, TABLE, begun.id)
        assert (document.state, document.chunks, document.batches) == (DocumentState.INDEXING, 0, ())
    await index.put_chunks(PROJECT, TABLE, begun.id, 0, make_chunks(LARGE, DIMENSIONS))
    with full_disk(max(file.stat().st_size for file in list_files(tmp_path, "*.db*")) + 10_000):
        await require_refusal(lambda: index.finish_document(PROJECT, TABLE, begun.id))
        hits = await index.search(PROJECT, TABLE, SearchQuery("apple word1", make_vector(3), 10))
        assert [hit.chunk.text for hit in hits] == ["an apple"]
    with full_disk(100_000):
        await require_refusal(lambda: index.duplicate_table(PROJECT, TABLE, "copy"))
    assert [table.settings.name for table in await index.list_tables(PROJECT)] == [TABLE]
    await index.finish_document(PROJECT, TABLE, begun.id)
    assert await find(index, TABLE, "word1") == [LARGE[1]]
    assert len(await index.search(PROJECT, TABLE, SearchQuery(vector=make_vector(3), k=100))) == 41
    await index.aclose()


async def test_no_table_is_made_on_a_full_disk(tmp_path: Path) -> None:
    index = SqliteIndex(tmp_path, SystemClock(), IndexLimits())
    with full_disk(10_000):
        await require_refusal(lambda: index.create_table(PROJECT, TableSettings("a")))
    assert await index.list_tables(PROJECT) == () and list_files(tmp_path, "*.db*") == []
    await index.create_table(PROJECT, TableSettings("a"))
    await index.aclose()
