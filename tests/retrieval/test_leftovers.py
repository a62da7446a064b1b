"""What removed texts leave in the files of a table: nothing, soon after the call."""

import sqlite3
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from antiphon.domain.context import SystemClock
from antiphon.retrieval.base import ChunkInput, IndexLimits, KnowledgeIndex
from antiphon.retrieval.sqlite.index import SqliteIndex
from antiphon.retrieval.sqlite.table import TableFile
from tests.retrieval.conftest import FILES, SOCKET
from tests.retrieval.knowledge import PROJECT, WORDS_ONLY, add_document, find, list_files, make_chunks
from tests.support.waiting import PATIENCE, await_until

TABLE = WORDS_ONLY.name
SECRET = "platypushidden"
KEPT = "an apple that stays"

Remove = Callable[[KnowledgeIndex, str, str], Awaitable[object]]


async def replace_document(index: KnowledgeIndex, document: str, chunk: str) -> None:
    await add_document(index, TABLE, f"{SECRET}.txt", make_chunks(["a newer version"]))
    newer = (await index.list_documents(PROJECT, TABLE)).items[0]
    await index.delete_document(PROJECT, TABLE, newer.id)  # the name is gone too


REMOVALS: dict[str, Remove] = {
    "a document": lambda index, document, chunk: index.delete_document(PROJECT, TABLE, document),
    "a replaced document": replace_document,
    "a chunk": lambda index, document, chunk: index.delete_chunks(PROJECT, TABLE, [chunk]),
    "a changed chunk": lambda index, document, chunk: index.update_chunk(
        PROJECT, TABLE, chunk, ChunkInput("other words")
    ),
}


def is_left(directory: Path, text: str = SECRET) -> bool:
    """Whether any file has the text. The full-text index leaves out what a word shares with the last one."""
    return any(
        text.encode()[2:] in path.read_bytes() for path in list_files(directory, "*") if path.is_file()
    )


@pytest.mark.parametrize("index", [FILES, SOCKET], indirect=True)  # PostgreSQL has files of its own
@pytest.mark.parametrize("removal", REMOVALS)
async def test_removed_texts_are_in_no_file(index: KnowledgeIndex, tmp_path: Path, removal: str) -> None:
    await index.create_table(PROJECT, WORDS_ONLY)
    await add_document(index, TABLE, "kept.txt", make_chunks([f"{KEPT} {number}" for number in range(400)]))
    name = "chunk.txt" if "chunk" in removal else f"{SECRET}.txt"
    gone = await add_document(index, TABLE, name, make_chunks([f"{SECRET} {n}" for n in range(1)]))
    (chunk,) = (await index.list_chunks(PROJECT, TABLE, gone.id)).items
    assert is_left(tmp_path)
    await REMOVALS[removal](index, gone.id, chunk.id)
    await await_until(lambda: not is_left(tmp_path), what=list_files(tmp_path, "*"))
    assert is_left(tmp_path, KEPT) and len(await find(index, TABLE, "apple", k=1024)) == 400


async def test_what_is_removed_as_a_sweep_ends_is_in_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, may_go_on, sweep = threading.Event(), threading.Event(), TableFile.sweep

    def sweep_slowly(file: TableFile) -> bool:
        """Stands still after the last step of the first sweep."""
        is_left_over = sweep(file)
        if not is_left_over and not ended.is_set():
            ended.set()
            assert may_go_on.wait(PATIENCE)
        return is_left_over

    monkeypatch.setattr(TableFile, "sweep", sweep_slowly)
    index = SqliteIndex(tmp_path, SystemClock(), IndexLimits())
    await index.create_table(PROJECT, WORDS_ONLY)
    first = await add_document(index, TABLE, "first", make_chunks(["an apple"]))
    second = await add_document(index, TABLE, "second", make_chunks([SECRET]))
    await index.delete_document(PROJECT, TABLE, first.id)
    await await_until(ended.is_set)
    await index.delete_document(PROJECT, TABLE, second.id)
    may_go_on.set()
    await await_until(lambda: not is_left(tmp_path))
    await index.aclose()


async def test_a_kill_before_the_sweep_leaves_nothing(tmp_path: Path) -> None:
    index = SqliteIndex(tmp_path, SystemClock(), IndexLimits())
    await index.create_table(PROJECT, WORDS_ONLY)
    await add_document(index, TABLE, "kept", make_chunks([KEPT]))
    gone = await add_document(index, TABLE, "gone", make_chunks([SECRET]))
    await index.delete_document(PROJECT, TABLE, gone.id)
    await index.aclose()
    (path,) = list_files(tmp_path, "*.db")
    connection = sqlite3.connect(path)  # what a process that was killed before its sweep leaves
    connection.execute("INSERT INTO words (words, rank) VALUES ('automerge', 0)")
    connection.execute(
        "INSERT INTO words (rowid, title, body, doc) VALUES (99, '', ?, 'd9')", (f"{SECRET} a",)
    )
    connection.commit()
    connection.execute("DELETE FROM words WHERE rowid = 99")
    connection.execute("UPDATE mark SET value = '1' WHERE name = 'unswept'")
    connection.commit()
    connection.close()
    assert is_left(tmp_path)
    index = SqliteIndex(tmp_path, SystemClock(), IndexLimits())
    assert await find(index, TABLE, "apple") == [KEPT]
    await await_until(lambda: not is_left(tmp_path))
    await index.aclose()
