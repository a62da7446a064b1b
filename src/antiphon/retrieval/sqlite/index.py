"""`KnowledgeIndex` in SQLite files. Each call runs in a thread, so several searches compute at once.

A table is searched by words, by vector, or by both, with fused rankings.
"""

import asyncio
import json
import os
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from antiphon.domain.context import Clock
from antiphon.retrieval import base
from antiphon.retrieval.base import (
    ChunkInput,
    ChunkPage,
    DocumentInfo,
    DocumentInput,
    DocumentPage,
    IndexLimits,
    IndexUsage,
    SearchHit,
    SearchQuery,
    TableInfo,
    TableSettings,
    TextChunk,
)
from antiphon.retrieval.ranking import FusedRank, QueryWord, choose_words, find_least_score, fuse, list_words
from antiphon.retrieval.sqlite import documents as chunk_rows
from antiphon.retrieval.sqlite import documents as document_rows
from antiphon.retrieval.sqlite.catalog import TableCatalog
from antiphon.retrieval.sqlite.documents import find_chunks, find_document_numbers
from antiphon.retrieval.sqlite.schema import name_document, read_revision
from antiphon.retrieval.sqlite.table import TableChange, TableFile
from antiphon.retrieval.sqlite.vectors import Nearest, score_candidates
from antiphon.retrieval.stored_form import Floats, decode_halves, prepare_vector, read_halves

STALE_SHARE = 10
"""The cached count of a word's chunks is read again after the table has grown or shrunk by one of this many
parts, a tenth."""

MOST_COUNTED_WORDS = 50_000
"""The most words whose counts are cached for a table."""

ATTEMPTS = 20
ATTEMPT_PAUSE_S = 0.005
"""The most attempts of a search, and the seconds between two of them. A search is repeated if a write changes
the vectors during the search."""


def search(table: TableFile, query: SearchQuery) -> tuple[SearchHit, ...]:
    """Returns the best chunks. Raises InvalidValue for a vector of other dimensions."""
    halves = prepare_vector(table.settings, query.vector)
    vector = decode_halves(read_halves(halves)) if halves else None
    for attempt in range(1, ATTEMPTS + 1):
        hits = _search_once(table, query, vector, is_last=attempt == ATTEMPTS)
        if hits is not None:
            return hits
        time.sleep(ATTEMPT_PAUSE_S)
    return ()


def _search_once(
    table: TableFile, query: SearchQuery, vector: Floats | None, *, is_last: bool
) -> tuple[SearchHit, ...] | None:
    """Searches one revision of the table. Returns None if the vectors in memory belong to another revision,
    so that the search must be repeated. `is_last`: whether to search nevertheless, because this is the last
    attempt. It then ranks by another revision's vectors, or by words only."""
    depth = max(query.k, query.depth)
    with table.reading() as connection:
        revision = read_revision(connection)
        document_numbers = find_document_numbers(connection, query.documents) if query.documents else []
        if query.documents and not document_numbers:
            return ()
        nearest = (
            _find_nearest(table, connection, vector, depth, document_numbers) if vector is not None else None
        )
        if vector is not None and not is_last and (nearest is None or not table.memory.is_current(revision)):
            return None
        chunk_count, get_count = table.counts.chunks, partial(count_word, table, connection)
        words = choose_words(list_words(query.words or ""), chunk_count, get_count)
        scores = score_by_words(connection, words, depth, document_numbers)
        if nearest is not None:
            least_score = find_least_score(words, chunk_count, get_count)
            scores = {id_: score for id_, score in scores.items() if score >= least_score}
        return _fuse_hits(connection, list(scores), nearest, query.k)


def _find_nearest(
    table: TableFile,
    connection: sqlite3.Connection,
    vector: Floats,
    depth: int,
    document_numbers: Sequence[int],
) -> Nearest | None:
    """Returns the nearest chunks. Returns None if the vectors in memory belong to another revision of the
    table.

    `document_numbers`: the only documents to search; empty for all.
    """
    rows = table.memory.get(connection, read_revision(connection))
    if rows is None:
        return None
    nearest = rows.find(vector, depth, document_numbers)
    if nearest.similarities is not None:
        return nearest
    candidate_rows = connection.execute(
        "SELECT id, value FROM vector WHERE id IN (SELECT value FROM json_each(?))",
        (json.dumps(np.sort(nearest.ids).tolist()),),
    ).fetchall()
    ids, values = [row["id"] for row in candidate_rows], (row["value"] for row in candidate_rows)
    return score_candidates(ids, values, vector, depth)


def score_by_words(
    connection: sqlite3.Connection, words: Sequence[QueryWord], depth: int, document_numbers: Sequence[int]
) -> dict[int, float]:
    """Returns the BM25 scores of the chunks that match best, by their ids, the best first.

    `document_numbers`: the only documents to search; empty for all.
    """
    if not words:
        return {}
    rows = connection.execute(
        "SELECT rowid, -rank FROM words WHERE words MATCH ? ORDER BY rank LIMIT ?",
        (build_match(words, document_numbers), depth),
    )
    return dict(rows.fetchall())


def build_match(words: Sequence[QueryWord], document_numbers: Sequence[int]) -> str:
    """Returns the MATCH expression for chunks with any of the words. `document_numbers`: the only documents
    to search; empty for all."""
    match = f"{{title body}} : ({' OR '.join(write_word(word) for word in words)})"
    if not document_numbers:
        return match
    documents = " OR ".join(f'"{name_document(number)}"' for number in document_numbers)
    return f"{match} AND doc : ({documents})"


def write_word(word: QueryWord) -> str:
    """Returns a word in the syntax of MATCH."""
    return f'"{word.text}"*' if word.is_prefix else f'"{word.text}"'


def count_word(table: TableFile, connection: sqlite3.Connection, word: QueryWord) -> int:
    """Returns approximately how many chunks contain a word."""
    chunk_count = table.counts.chunks
    cached_count, old_chunk_count = table.word_counts.get(write_word(word), (None, 0))
    if cached_count is not None and abs(old_chunk_count - chunk_count) * STALE_SHARE <= chunk_count:
        return cached_count
    if len(table.word_counts) > MOST_COUNTED_WORDS:
        table.word_counts.clear()
    count = _read_count(connection, word)
    table.word_counts[write_word(word)] = (count, chunk_count)
    return count


def _read_count(connection: sqlite3.Connection, word: QueryWord) -> int:
    first_term = word.text
    last_term = first_term + "\U0010ffff" if word.is_prefix else first_term
    row = connection.execute(
        "SELECT sum(doc) FROM word_count WHERE term >= ? AND term <= ?", (first_term, last_term)
    ).fetchone()
    return row[0] or 0


def _fuse_hits(
    connection: sqlite3.Connection, ids_by_words: Sequence[int], nearest: Nearest | None, limit: int
) -> tuple[SearchHit, ...]:
    """Fuses the ranking of chunk ids by words with the ranking by vectors, and reads the best chunks."""
    if nearest is None or nearest.similarities is None:
        similarities: dict[int, float] = {}
    else:
        similarities = dict(zip(nearest.ids.tolist(), nearest.similarities.tolist(), strict=True))
    ranks = fuse(ids_by_words, list(similarities), limit)
    chunks = find_chunks(connection, [rank.id for rank in ranks])
    return tuple(_build_hit(rank, chunks, similarities.get(rank.id)) for rank in ranks if rank.id in chunks)


def _build_hit(rank: FusedRank, chunks: Mapping[int, TextChunk], similarity: float | None) -> SearchHit:
    return SearchHit(chunks[rank.id], rank.words_rank, rank.vector_rank, rank.score, similarity)


T = TypeVar("T")

MEMORY = 512 * 1024 * 1024
"""The most bytes of the vectors of all tables in memory."""

READERS = 4
"""The most threads that read. Each search uses one core."""

WRITERS = 4
"""The number of threads that write. One table has one write at a time."""


class SqliteIndex:
    """All knowledge tables of one directory."""

    def __init__(self, directory: Path, clock: Clock, limits: IndexLimits, memory: int = MEMORY) -> None:
        """Opens the directory. `memory`: the most bytes of vectors in memory. Raises KnowledgeUnavailable if
        the directory cannot be used."""
        self._clock = clock
        self._catalog = TableCatalog(directory, limits, memory)
        readers = max(2, min(READERS, os.cpu_count() or 1))
        self._readers = ThreadPoolExecutor(readers, "knowledge-read")
        self._writers = ThreadPoolExecutor(WRITERS, "knowledge-write")

    async def aclose(self) -> None:
        """Waits for the running calls, and closes all files."""
        await asyncio.to_thread(self._shut_down)

    def _shut_down(self) -> None:
        self._readers.shutdown(cancel_futures=True)
        self._writers.shutdown(cancel_futures=True)
        self._catalog.close()

    # --- tables ---------------------------------------------------------------------------------------------

    async def create_table(self, project: str, settings: TableSettings) -> TableInfo:
        base.require_settings(settings)
        return await self._run_write(lambda: self._catalog.get_project(project).create(settings, self._now()))

    async def list_tables(self, project: str) -> tuple[TableInfo, ...]:
        return await self._run_read(lambda: self._catalog.get_project(project).list_tables())

    async def get_table(self, project: str, table: str) -> TableInfo:
        return await self._run_read(lambda: self._catalog.get_project(project).get(table))

    async def rename_table(self, project: str, table: str, new_name: str) -> TableInfo:
        base.require_name(new_name)
        return await self._run_write(
            lambda: self._catalog.get_project(project).rename(table, new_name, self._now())
        )

    async def duplicate_table(
        self, project: str, table: str, new_name: str, *, with_documents: bool = True
    ) -> TableInfo:
        base.require_name(new_name)
        return await self._run_write(
            lambda: self._catalog.get_project(project).duplicate(
                table, new_name, self._now(), with_documents=with_documents
            )
        )

    async def delete_table(self, project: str, table: str) -> None:
        await self._run_write(lambda: self._catalog.get_project(project).delete(table))

    async def delete_project_tables(self, project: str) -> int:
        return await self._run_write(lambda: self._catalog.get_project(project).delete_all())

    async def count_usage(self, project: str) -> IndexUsage:
        return await self._run_read(lambda: self._catalog.get_project(project).count_usage())

    # --- documents ------------------------------------------------------------------------------------------

    async def begin_document(self, project: str, table: str, document: DocumentInput) -> DocumentInfo:
        base.require_document(document)
        id_ = document.id or self._clock.unique()

        def begin(change: TableChange) -> DocumentInfo:
            return document_rows.begin_document(change, document, id_)

        return await self._write(project, table, begin)

    async def put_chunks(
        self,
        project: str,
        table: str,
        document: str,
        batch: int,
        chunks: Sequence[ChunkInput],
        progress: int | None = None,
    ) -> DocumentInfo:
        base.require_batch(batch, chunks, progress)
        return await self._write(
            project,
            table,
            lambda change: document_rows.put_chunks(change, document, batch, chunks, progress),
        )

    async def finish_document(
        self, project: str, table: str, document: str, warnings: Sequence[str] = ()
    ) -> DocumentInfo:
        return await self._write(
            project, table, lambda change: document_rows.finish_document(change, document, warnings)
        )

    async def fail_document(self, project: str, table: str, document: str, error: str) -> DocumentInfo:
        return await self._write(
            project, table, lambda change: document_rows.fail_document(change, document, error)
        )

    async def list_documents(
        self, project: str, table: str, offset: int = 0, limit: int = 100
    ) -> DocumentPage:
        base.require_listing(offset, limit)
        return await self._read(
            project, table, lambda connection: document_rows.list_documents(connection, offset, limit)
        )

    async def get_document(self, project: str, table: str, document: str) -> DocumentInfo:
        return await self._read(
            project, table, lambda connection: document_rows.get_document(connection, document)
        )

    async def delete_document(self, project: str, table: str, document: str) -> None:
        await self._write(project, table, lambda change: document_rows.delete_document(change, document))

    # --- chunks ---------------------------------------------------------------------------------------------

    async def add_chunks(
        self, project: str, table: str, chunks: Sequence[ChunkInput]
    ) -> tuple[TextChunk, ...]:
        base.require_chunks(chunks)
        return await self._write(project, table, lambda change: chunk_rows.add_loose_chunks(change, chunks))

    async def list_chunks(
        self,
        project: str,
        table: str,
        document: str | None = None,
        offset: int = 0,
        limit: int = 100,
        *,
        with_vectors: bool = False,
    ) -> ChunkPage:
        base.require_listing(offset, limit)

        def read(connection: sqlite3.Connection) -> ChunkPage:
            number = None if document is None else document_rows.find_document(connection, document)[0]
            return chunk_rows.list_chunks(connection, number, offset, limit, with_vectors=with_vectors)

        return await self._read(project, table, read)

    async def get_chunk(self, project: str, table: str, chunk: str) -> TextChunk:
        return await self._read(project, table, lambda connection: chunk_rows.get_chunk(connection, chunk))

    async def update_chunk(self, project: str, table: str, chunk: str, content: ChunkInput) -> TextChunk:
        base.require_chunks([content])
        return await self._write(
            project, table, lambda change: chunk_rows.update_chunk(change, chunk, content)
        )

    async def delete_chunks(self, project: str, table: str, chunks: Sequence[str]) -> int:
        base.require_ids(chunks, "chunks")
        return await self._write(project, table, lambda change: chunk_rows.delete_chunks(change, chunks))

    async def search(self, project: str, table: str, query: SearchQuery) -> tuple[SearchHit, ...]:
        base.require_query(query)

        def find() -> tuple[SearchHit, ...]:
            with self._catalog.get_project(project).use(table) as file:
                return base.cut_hits(search(file, query))

        return await self._run_read(find)

    # --- threads --------------------------------------------------------------------------------------------

    def _now(self) -> int:
        return int(self._clock.wall() * 1000)

    async def _run_read(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._readers, call)

    async def _run_write(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._writers, call)

    async def _read(self, project: str, table: str, read: Callable[[sqlite3.Connection], T]) -> T:
        def run() -> T:
            with self._catalog.get_project(project).use(table) as file, file.reading() as connection:
                return read(connection)

        return await self._run_read(run)

    async def _write(self, project: str, table: str, write: Callable[[TableChange], T]) -> T:
        def run() -> T:
            with self._catalog.get_project(project).write(table, self._now()) as change:
                return write(change)

        return await self._run_write(run)
