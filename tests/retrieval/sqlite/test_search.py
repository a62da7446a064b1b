"""Search over one table: frequent words, filters, codes, and the order of hits."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from antiphon.domain.context import SystemClock
from antiphon.errors import InvalidValue, KnowledgeUnavailable
from antiphon.retrieval.base import MAX_HITS, ChunkInput, IndexLimits, SearchQuery, TableSettings
from antiphon.retrieval.ranking import FREQUENT_FROM, QueryWord, choose_rare_words, choose_words, list_words
from antiphon.retrieval.sqlite.catalog import EXACT_DIVISOR
from antiphon.retrieval.sqlite.documents import add_loose_chunks, delete_chunks
from antiphon.retrieval.sqlite.index import SqliteIndex
from antiphon.retrieval.sqlite.schema import connect, read_revision, write_marks
from antiphon.retrieval.sqlite.search import count_word
from antiphon.retrieval.sqlite.table import READY_VECTORS, reserve_nothing
from antiphon.retrieval.sqlite.vectors import CodedVectors
from tests.retrieval.knowledge import (
    DIMENSIONS,
    PROJECT,
    VECTORS,
    WORDS_ONLY,
    add_document,
    find,
    list_files,
    make_chunks,
    make_document,
    make_vector,
    texts_of,
)
from tests.support.waiting import PATIENCE, wait_until

TABLE = VECTORS.name


@pytest.fixture
async def index(tmp_path: Path) -> AsyncIterator[SqliteIndex]:
    index = SqliteIndex(tmp_path, SystemClock(), IndexLimits())
    await index.create_table(PROJECT, VECTORS)
    await index.create_table(PROJECT, WORDS_ONLY)
    yield index
    await index.aclose()


async def test_rare_words_count_most(index: SqliteIndex) -> None:
    texts = ["the cat", "the dog", "the cat and the dog", "the unicorn"]
    await add_document(index, WORDS_ONLY.name, "a", make_chunks(texts))
    assert (await find(index, WORDS_ONLY.name, "the unicorn"))[0] == "the unicorn"
    assert set(await find(index, WORDS_ONLY.name, "THE")) == set(texts)


async def test_both_rankings_are_fused(index: SqliteIndex) -> None:
    chunks = make_chunks(["apple one", "pear two", "apple three"], DIMENSIONS)
    await add_document(index, TABLE, "a", chunks)
    hits = await index.search(PROJECT, TABLE, SearchQuery("apple", make_vector(1), 10))
    for hit in hits:
        ranks = [rank for rank in (hit.words_rank, hit.vector_rank) if rank is not None]
        assert hit.score == pytest.approx(sum(1 / (60 + rank) for rank in ranks))
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert {hit.chunk.text: hit.vector_rank for hit in hits}["pear two"] == 1
    assert {hit.chunk.text for hit in hits if hit.words_rank} == {"apple one", "apple three"}
    (first,) = await index.search(PROJECT, TABLE, SearchQuery("apple", make_vector(1), 1, 1))
    assert first.score == pytest.approx(1 / 61)
    assert await index.search(PROJECT, TABLE, SearchQuery()) == ()
    assert await index.search(PROJECT, TABLE, SearchQuery(" ?!")) == ()


async def test_a_filter_keeps_to_its_documents(index: SqliteIndex) -> None:
    documents = [
        await add_document(
            index, TABLE, name, make_chunks([f"apple {name} {i}" for i in range(3)], DIMENSIONS)
        )
        for name in "abc"
    ]
    query = SearchQuery("apple", make_vector(0), 10, documents=(documents[1].id, "unknown", ""))
    hits = await index.search(PROJECT, TABLE, query)
    assert {hit.chunk.document for hit in hits} == {documents[1].id} and len(hits) == 3
    assert (
        await index.search(PROJECT, TABLE, SearchQuery("apple", make_vector(0), documents=("unknown",))) == ()
    )
    unready = await index.begin_document(PROJECT, TABLE, make_document("d"))
    await index.put_chunks(PROJECT, TABLE, unready.id, 0, make_chunks(["apple"], DIMENSIONS))
    query = SearchQuery("apple", make_vector(0), documents=(unready.id,))
    assert await index.search(PROJECT, TABLE, query) == ()


@pytest.mark.parametrize(
    ("query", "field"),
    [
        (SearchQuery("x", k=0), "k"),
        (SearchQuery("x", k=MAX_HITS + 1), "k"),
        (SearchQuery("x", depth=0), "depth"),
        (SearchQuery("x", documents=("x",) * (MAX_HITS + 1)), "documents"),
        (SearchQuery("x", make_vector(0, 9)), "vector"),
        (SearchQuery("x", bytes(4 * DIMENSIONS)), "vector"),
    ],
)
async def test_a_wrong_query_is_named(index: SqliteIndex, query: SearchQuery, field: str) -> None:
    with pytest.raises(InvalidValue, match=field) as refused:
        await index.search(PROJECT, TABLE, query)
    assert refused.value.param == field


async def test_frequent_words_are_left_out_of_large_tables(index: SqliteIndex, tmp_path: Path) -> None:
    texts = [f"the word{number % 3} rare{number}" for number in range(FREQUENT_FROM)]
    for start in range(0, len(texts), 500):
        await index.add_chunks(PROJECT, WORDS_ONLY.name, make_chunks(texts[start : start + 500]))
    with index._catalog.get_project(PROJECT).use(WORDS_ONLY.name) as file, file.reading() as connection:

        def choose(query: str) -> list[str]:
            return [
                word.text
                for word in choose_words(
                    list_words(query), FREQUENT_FROM, partial(count_word, file, connection)
                )
            ]

        assert choose("the rare7 word1 rare8 absent") == ["rare7", "rare8", "absent"]
        assert choose("the word1") == ["word1"]  # the rarest of words that are all frequent
        assert len(choose(" ".join(f"rare{number}" for number in range(100)))) == 32
        assert choose("") == []
    assert (await find(index, WORDS_ONLY.name, "the rare7 thing"))[0].endswith("rare7")
    assert len(await find(index, WORDS_ONLY.name, "the")) == 10


async def test_a_large_table_finds_by_codes(tmp_path: Path) -> None:
    """A table that outgrows exact search finds the same."""
    memory = EXACT_DIVISOR * 50 * 4 * DIMENSIONS  # 50 vectors, or 100 in half precision
    index = SqliteIndex(tmp_path, SystemClock(), IndexLimits(), memory)
    await index.create_table(PROJECT, VECTORS)
    document = await add_document(index, TABLE, "a", make_chunks([f"a{i}" for i in range(40)], DIMENSIONS))
    query = SearchQuery(vector=make_vector(7), k=5)
    before = await index.search(PROJECT, TABLE, query)
    await add_document(index, TABLE, "b", make_chunks([f"b{i}" for i in range(40)], DIMENSIONS, 100))
    filtered = SearchQuery(vector=make_vector(7), k=5, documents=(document.id,))
    assert texts_of(await index.search(PROJECT, TABLE, filtered)) == texts_of(before)
    assert texts_of(before)[0] == "a7"
    hits = await index.search(PROJECT, TABLE, SearchQuery(vector=make_vector(105), k=5))
    assert hits[0].chunk.text == "b5" and hits[0].similarity == pytest.approx(1, abs=2e-3)
    with index._catalog.get_project(PROJECT).use(TABLE) as file:
        assert isinstance(file.memory._rows, CodedVectors) and file.memory._rows.keeps_halves
    await add_document(index, TABLE, "c", make_chunks([f"c{i}" for i in range(40)], DIMENSIONS, 200))
    for number in (7, 105, 203):
        (hit,) = await index.search(PROJECT, TABLE, SearchQuery(vector=make_vector(number), k=1))
        assert hit.chunk.text == f"{'abc'[number // 100]}{number % 100}"
    with index._catalog.get_project(PROJECT).use(TABLE) as file:
        assert isinstance(file.memory._rows, CodedVectors) and not file.memory._rows.keeps_halves
    await index.aclose()


def test_a_large_tables_query_has_a_bound() -> None:
    def take(*counts: int) -> int:
        return len(choose_rare_words([(count, QueryWord(str(count))) for count in counts], 10_000))

    assert take() == 0
    assert take(9_000) == 1  # the only word
    assert take(1, 9_000) == 1
    assert take(1900, 1950, 2000, 2000) == 3
    assert take(1900, 1950, 2001) == 2
    assert take(*range(1, 40)) == 39
    assert take(*[100] * 40) == 10


class SlowConnection(sqlite3.Connection):
    """Waits before it reads the vectors."""

    reading = threading.Event()
    wait: Callable[[], object]

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        if sql == READY_VECTORS:
            self.reading.set()
            self.wait()
        return super().execute(sql, parameters)


async def test_loading_ends_however_often_others_write(tmp_path: Path) -> None:
    """A write during a load waits for it and is applied after it; the load is not made again."""
    index = SqliteIndex(tmp_path, SystemClock(), IndexLimits())
    await index.create_table(PROJECT, VECTORS)
    await index.add_chunks(PROJECT, TABLE, make_chunks(["a"], DIMENSIONS))
    with index._catalog.get_project(PROJECT).use(TABLE) as file:
        slow = sqlite3.connect(
            file.path, factory=SlowConnection, check_same_thread=False, isolation_level=None
        )
        slow.execute("BEGIN")
        revision = read_revision(slow)

        def write() -> None:
            assert slow.reading.wait(PATIENCE)
            with file.write(0, reserve_nothing) as change:
                delete_chunks(change, ["1"])
                add_loose_chunks(change, make_chunks(["b", "c"], DIMENSIONS, 5))

        def is_written() -> bool:
            with file.reading() as connection:
                return read_revision(connection) == revision + 1

        slow.wait = lambda: wait_until(is_written, what="the write")
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.to_thread(write))
            rows = await asyncio.to_thread(file.memory.get, slow, revision)
        slow.close()
        with file.reading() as connection:
            assert rows is not None and file.memory.get(connection, revision + 1) is rows
    hits = await index.search(PROJECT, TABLE, SearchQuery(vector=make_vector(5), k=10))
    assert texts_of(hits)[0] == "b" and len(hits) == 2
    await index.aclose()


async def test_tables_beyond_the_memory_are_read_again(tmp_path: Path) -> None:
    room = 1000 * (4 * DIMENSIONS + 17) * 3
    index = SqliteIndex(tmp_path, SystemClock(), IndexLimits(), memory=room)
    for number in range(5):
        name = f"table {number}"
        await index.create_table(PROJECT, TableSettings(name, "toy", DIMENSIONS))
        chunks = [ChunkInput(f"{number} {i}", vector=make_vector(i)) for i in range(500)]
        await add_document(index, name, "a", chunks)
        await add_document(
            index, name, "b", make_chunks([f"{number} b{i}" for i in range(500)], DIMENSIONS, 1000)
        )
    for number in (0, 1, 2, 3, 4, 0, 4):
        (hit,) = await index.search(PROJECT, f"table {number}", SearchQuery(vector=make_vector(3), k=1))
        assert hit.chunk.text == f"{number} 3"
    entries = index._catalog.get_project(PROJECT)._entries.values()
    assert sum(entry.file.memory.bytes for entry in entries if entry.file) <= room
    assert 0 < sum(entry.file is not None for entry in entries) < 5
    await index.aclose()


async def test_words_are_made_again_for_a_new_segmentation(tmp_path: Path) -> None:
    index = SqliteIndex(tmp_path, SystemClock(), IndexLimits())
    await index.create_table(PROJECT, WORDS_ONLY)
    await add_document(index, WORDS_ONLY.name, "a", make_chunks(["東京都"]))
    await index.aclose()
    (file,) = list_files(tmp_path, "*.db")
    connection = connect(file)
    connection.execute("UPDATE words SET body = 'as an older version made them'")
    write_marks(connection, segmentation="0")
    connection.close()
    index = SqliteIndex(tmp_path, SystemClock(), IndexLimits())
    assert await find(index, WORDS_ONLY.name, "東京") == ["東京都"]
    assert await find(index, WORDS_ONLY.name, "older") == []
    await index.aclose()


async def test_a_removed_text_is_overwritten(tmp_path: Path) -> None:
    index = SqliteIndex(tmp_path, SystemClock(), IndexLimits())
    await index.create_table(PROJECT, WORDS_ONLY)
    await add_document(index, WORDS_ONLY.name, "kept", make_chunks([f"plain text {i}" for i in range(300)]))
    secret = await add_document(index, WORDS_ONLY.name, "gone", make_chunks(["a secretword " * 100] * 50))
    assert any(b"secretword" in file.read_bytes() for file in list_files(tmp_path, "*.db*"))
    await index.delete_document(PROJECT, WORDS_ONLY.name, secret.id)
    await index.aclose()
    (file,) = list_files(tmp_path, "*.db*")
    assert b"a secretword a" not in file.read_bytes() and b"plain text" in file.read_bytes()


async def test_a_later_version_stays_closed(tmp_path: Path) -> None:
    index = SqliteIndex(tmp_path, SystemClock(), IndexLimits())
    await index.create_table(PROJECT, WORDS_ONLY)
    await index.aclose()
    (file,) = list_files(tmp_path, "*.db")
    connection = connect(file)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    index = SqliteIndex(tmp_path, SystemClock(), IndexLimits())
    (table,) = await index.list_tables(PROJECT)
    assert "a later version of Antiphon made this knowledge table" in (table.damage or "")
    with pytest.raises(KnowledgeUnavailable, match="a later version"):
        await index.add_chunks(PROJECT, table.settings.name, make_chunks(["apple"]))
    assert file in list_files(tmp_path, "*.db")
    await index.aclose()
