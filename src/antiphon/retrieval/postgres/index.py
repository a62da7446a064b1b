"""`KnowledgeIndex` in PostgreSQL. Each call runs in a thread and is one transaction.

No state is kept between calls. So several servers can share one database: each finds what the others write. A
table is searched by words, by vector, or by both, with fused rankings.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from sqlalchemy.engine import Connection

from antiphon.domain.context import Clock
from antiphon.domain.values import replace
from antiphon.errors import NotFound
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
from antiphon.retrieval.postgres import documents as chunk_rows
from antiphon.retrieval.postgres import documents as document_rows
from antiphon.retrieval.postgres import tables as table_rows
from antiphon.retrieval.postgres.chunk_search import count_words, find_nearest, score_by_words
from antiphon.retrieval.postgres.database import KnowledgeDatabase, Transactions
from antiphon.retrieval.postgres.documents import find_chunks, find_document_numbers
from antiphon.retrieval.postgres.schema import prepare_schema
from antiphon.retrieval.postgres.tables import TableRows, TableWrite, find_table, get_info, read_usage
from antiphon.retrieval.ranking import QueryWord, choose_words, find_least_score, fuse, list_words
from antiphon.retrieval.stored_form import prepare_vector


def search(rows: TableRows, query: SearchQuery) -> tuple[SearchHit, ...]:
    """Returns the best chunks. Raises InvalidValue for a vector of other dimensions."""
    vector = prepare_vector(rows.settings, query.vector)
    depth = max(query.k, query.depth)
    documents = find_document_numbers(rows, query.documents) if query.documents else []
    if query.documents and not documents:
        return ()
    similarities = find_nearest(rows, vector, depth, documents) if vector else {}
    words = list_words(query.words or "")
    counts = count_words(rows, words) if words else {}

    def get_count(word: QueryWord) -> int:
        return counts.get(word, 0)

    chosen_words = choose_words(words, rows.chunks, get_count)
    scores = score_by_words(rows, counts, chosen_words, depth, documents)
    if vector:
        least_score = find_least_score(chosen_words, rows.chunks, get_count)
        scores = {id_: score for id_, score in scores.items() if score >= least_score}
    ranks = fuse(list(scores), list(similarities), query.k)
    chunks = find_chunks(rows, [rank.id for rank in ranks]) if ranks else {}
    return tuple(
        SearchHit(chunks[rank.id], rank.words_rank, rank.vector_rank, rank.score, similarities.get(rank.id))
        for rank in ranks
        if rank.id in chunks
    )


T = TypeVar("T")

THREADS = 4
"""The number of threads that read, and of threads that write. Together they use all connections of the
store's pool."""


class PostgresIndex:
    """All knowledge tables of one database."""

    def __init__(self, database: Transactions, clock: Clock, limits: IndexLimits) -> None:
        """Creates the schema if it is missing. The index closes the database in `aclose`. Raises
        KnowledgeUnavailable."""
        self._clock = clock
        self._limits = limits
        self._database = KnowledgeDatabase(database)
        self._pgvector = self._database.write(prepare_schema)
        self._readers = ThreadPoolExecutor(THREADS, "knowledge-read")
        self._writers = ThreadPoolExecutor(THREADS, "knowledge-write")

    async def aclose(self) -> None:
        """Waits for the running calls, and closes all connections."""
        await asyncio.to_thread(self._shut_down)

    def _shut_down(self) -> None:
        self._readers.shutdown(cancel_futures=True)
        self._writers.shutdown(cancel_futures=True)
        self._database.close()

    # --- tables ---------------------------------------------------------------------------------------------

    async def create_table(self, project: str, settings: TableSettings) -> TableInfo:
        base.require_settings(settings)
        return await self._run_write(
            lambda connection: table_rows.create_table(
                connection, self._pgvector, project, settings, self._limits, self._now()
            )
        )

    async def list_tables(self, project: str) -> tuple[TableInfo, ...]:
        return await self._run_read(lambda connection: table_rows.list_tables(connection, project))

    async def get_table(self, project: str, table: str) -> TableInfo:
        return await self._run_read(lambda connection: get_info(connection, project, table))

    async def rename_table(self, project: str, table: str, new_name: str) -> TableInfo:
        base.require_name(new_name)

        def rename(connection: Connection) -> TableInfo:
            rows = find_table(connection, self._pgvector, project, table, lock=True)
            return table_rows.rename_table(rows, project, new_name, self._now())

        return await self._run_write(rename)

    async def duplicate_table(
        self, project: str, table: str, new_name: str, *, with_documents: bool = True
    ) -> TableInfo:
        base.require_name(new_name)

        if not with_documents:
            settings = (await self.get_table(project, table)).settings
            return await self.create_table(project, replace(settings, name=new_name))

        def duplicate(connection: Connection) -> TableInfo:
            rows = find_table(connection, self._pgvector, project, table, lock=True)
            return table_rows.duplicate_table(rows, project, new_name, self._limits, self._now())

        return await self._run_write(duplicate)

    async def delete_table(self, project: str, table: str) -> None:
        await self._run_write(
            lambda connection: table_rows.delete_table(connection, self._pgvector, project, table)
        )

    async def delete_project_tables(self, project: str) -> int:
        names = [table.settings.name for table in await self.list_tables(project)]
        for name in names:
            with suppress(NotFound):  # another call removed it
                await self.delete_table(project, name)
        return len(names)

    async def count_usage(self, project: str) -> IndexUsage:
        return await self._run_read(lambda connection: read_usage(connection, project))

    # --- documents ------------------------------------------------------------------------------------------

    async def begin_document(self, project: str, table: str, document: DocumentInput) -> DocumentInfo:
        base.require_document(document)
        id_ = document.id or self._clock.unique()
        return await self._write(
            project, table, lambda change: document_rows.begin_document(change, document, id_)
        )

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
            project, table, lambda rows: document_rows.list_documents(rows, offset, limit)
        )

    async def get_document(self, project: str, table: str, document: str) -> DocumentInfo:
        return await self._read(project, table, lambda rows: document_rows.get_document(rows, document))

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

        def read(rows: TableRows) -> ChunkPage:
            number = None if document is None else document_rows.find_document(rows, document)[0]
            return chunk_rows.list_chunks(rows, number, offset, limit, with_vectors=with_vectors)

        return await self._read(project, table, read)

    async def get_chunk(self, project: str, table: str, chunk: str) -> TextChunk:
        return await self._read(project, table, lambda rows: chunk_rows.get_chunk(rows, chunk))

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
        return await self._read(project, table, lambda rows: base.cut_hits(search(rows, query)))

    # --- threads --------------------------------------------------------------------------------------------

    def _now(self) -> int:
        return int(self._clock.wall() * 1000)

    async def _run_read(self, call: Callable[[Connection], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._database.read, call)

    async def _run_write(self, call: Callable[[Connection], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._writers, self._database.write, call)

    async def _read(self, project: str, table: str, read: Callable[[TableRows], T]) -> T:
        return await self._run_read(
            lambda connection: read(find_table(connection, self._pgvector, project, table))
        )

    async def _write(self, project: str, table: str, write: Callable[[TableWrite], T]) -> T:
        def run(connection: Connection) -> T:
            rows = find_table(connection, self._pgvector, project, table, lock=True)
            change = TableWrite(rows, project, self._limits, self._now())
            result = write(change)
            change.touch()
            return result

        return await self._run_write(run)
