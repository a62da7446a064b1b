"""The knowledge process where tables are in PostgreSQL: killed at any moment, refused, or kept in files."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Literal

import pytest

from antiphon.errors import KnowledgeUnavailable, SettingsError
from antiphon.processes.knowledge.host import filter_environment
from antiphon.retrieval.base import DocumentState, SearchQuery
from antiphon.settings.schema import Settings, find_knowledge_database
from antiphon.settings.server import KnowledgeSettings
from antiphon.settings.tenancy import KeysSettings
from tests.retrieval.knowledge import (
    DIMENSIONS,
    PROJECT,
    VECTORS,
    find,
    list_files,
    make_chunks,
    make_document,
    make_vector,
)
from tests.support.databases import *  # noqa: F403 - fixtures are found by their names; `__all__` lists them
from tests.support.knowledge_database import *  # noqa: F403
from tests.support.knowledge_process import retry, run_knowledge, run_without_rest

TABLE = VECTORS.name


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """The supervisor's event loop."""
    return "asyncio"


def choose(store: str, storage: Literal["auto", "files", "database"] = "auto") -> Settings:
    return Settings(
        keys=KeysSettings(enabled=True, store=store), knowledge=KnowledgeSettings(storage=storage)
    )


def test_tables_are_where_the_store_is() -> None:
    store = "postgresql://a:b@c/d"
    assert (
        find_knowledge_database(choose(store)) == find_knowledge_database(choose(store, "database")) == store
    )
    assert find_knowledge_database(choose(store, "files")) is None
    assert find_knowledge_database(choose("sqlite:////x.db")) is None
    assert find_knowledge_database(Settings()) is None
    for settings in (
        choose("sqlite:////x.db", "database"),
        Settings(knowledge=KnowledgeSettings(storage="database")),
    ):
        with pytest.raises(SettingsError, match="there is no PostgreSQL"):
            find_knowledge_database(settings)


def test_the_process_gets_what_the_client_of_postgresql_reads() -> None:
    environ = {"PGSSLROOTCERT": "/c", "HOME": "/h", "OPENAI_API_KEY": "secret", "LANG": "C"}
    assert {"PGSSLROOTCERT", "HOME"} <= set(filter_environment(environ, has_database=True))
    assert not {"PGSSLROOTCERT", "OPENAI_API_KEY"} & set(filter_environment(environ))


@pytest.mark.parametrize("batches", [2, pytest.param(8, marks=pytest.mark.soak)])
async def test_what_is_acknowledged_outlives_kills(
    tmp_path: Path, knowledge_database: str, batches: int
) -> None:
    async with run_without_rest(tmp_path, choose(knowledge_database)) as running:
        client = running.client
        await retry(lambda: client.create_table(PROJECT, VECTORS))
        begun = await retry(lambda: client.begin_document(PROJECT, TABLE, make_document("a")))
        for batch in range(batches):
            texts = [f"apple {batch} {number}" for number in range(20)]
            put = partial(client.put_chunks, PROJECT, TABLE, begun.id, batch)
            chunks = make_chunks(texts, DIMENSIONS, 100 * batch)
            async with asyncio.TaskGroup() as group:
                group.create_task(retry(partial(put, chunks)))
                if batch % 2:
                    await asyncio.sleep(0.003 * batch)
                    running.kill()
        running.kill()
        done = await retry(lambda: client.finish_document(PROJECT, TABLE, begun.id))
        assert (done.state, done.chunks) == (DocumentState.READY, 20 * batches)
        query = SearchQuery("apple", make_vector(0), 500, 500)
        hits = await retry(lambda: client.search(PROJECT, TABLE, query))
        assert len({hit.chunk.text for hit in hits}) == len(hits) == 20 * batches
    assert list_files(tmp_path, "*.db") == []


async def test_a_server_without_pgvector_says_so(tmp_path: Path, postgresql: str) -> None:
    async with run_knowledge(tmp_path, choose(postgresql)) as running:
        for _ in range(2):
            with pytest.raises(
                KnowledgeUnavailable, match=r"has no pgvector.*CREATE EXTENSION vector.*files"
            ):
                await running.client.list_tables(PROJECT)
        assert len(running.pids) == 1


async def test_files_stay_beside_postgresql_where_asked(tmp_path: Path, postgresql: str) -> None:
    async with run_knowledge(tmp_path, choose(postgresql, "files")) as running:
        await running.client.create_table(PROJECT, VECTORS)
        await running.client.add_chunks(PROJECT, TABLE, make_chunks(["an apple"], DIMENSIONS))
        assert await find(running.client, TABLE, "apple") == ["an apple"]
    assert len(list_files(tmp_path, "*.db")) == 1
