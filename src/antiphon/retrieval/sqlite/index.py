"""`KnowledgeIndex` in SQLite files. Each call runs in a thread, so several searches compute at once."""

import asyncio
import os
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

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
from antiphon.retrieval.sqlite import documents as chunk_rows
from antiphon.retrieval.sqlite import documents as document_rows
from antiphon.retrieval.sqlite.catalog import TableCatalog
from antiphon.retrieval.sqlite.search import search
from antiphon.retrieval.sqlite.table import TableChange

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
