"""An index of its own for each test, of each kind: in files, in files through the frames between two
processes, and in PostgreSQL. The tests of this folder hold for all kinds."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from antiphon.domain.context import SystemClock
from antiphon.processes.knowledge.client import connect_knowledge
from antiphon.processes.knowledge.server import serve_index
from antiphon.retrieval.base import IndexLimits, KnowledgeIndex
from antiphon.retrieval.sqlite.index import SqliteIndex
from tests.retrieval.knowledge import OpenIndex
from tests.support.databases import *  # noqa: F403 - fixtures are found by their names; `__all__` lists them
from tests.support.host_link import short_directory
from tests.support.knowledge_database import *  # noqa: F403
from tests.support.knowledge_database import open_postgres
from tests.support.waiting import PATIENCE

FILES, SOCKET, DATABASE = "in files", "behind a socket", "in PostgreSQL"


@pytest.fixture(params=[FILES, DATABASE])
def open_index(tmp_path: Path, request: pytest.FixtureRequest) -> OpenIndex:
    """Opens an index with these limits, the same one each time."""
    return make_opener(request.param, tmp_path / "knowledge", request)


def make_opener(kind: str, directory: Path, request: pytest.FixtureRequest) -> OpenIndex:
    address = request.getfixturevalue("knowledge_database") if kind == DATABASE else ""

    @asynccontextmanager
    async def open_it(limits: IndexLimits = IndexLimits()) -> AsyncIterator[KnowledgeIndex]:  # noqa: B008
        index = open_postgres(address, limits) if address else SqliteIndex(directory, SystemClock(), limits)
        try:
            yield index
        finally:
            await index.aclose()

    return open_it


@pytest.fixture(params=[pytest.param(FILES, marks=pytest.mark.soak), SOCKET, DATABASE])
async def index(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[KnowledgeIndex]:
    """Behind the socket is an index in files, so only the soak takes that by itself."""
    if request.param == DATABASE:
        yield request.getfixturevalue("postgres_index")
        return
    monkeypatch.setattr("antiphon.processes.knowledge.client.GREETING_S", PATIENCE)  # for a busy machine
    async with make_opener(request.param, tmp_path / "knowledge", request)() as index:
        if request.param != SOCKET:
            yield index
            return
        with short_directory() as directory:
            path = str(directory / "knowledge")
            async with serve_index(lambda: _return(index), path), connect_knowledge(path, _refuse) as client:
                yield client


async def _return(index: KnowledgeIndex) -> KnowledgeIndex:
    return index


def _refuse() -> None:
    raise AssertionError("the process is there, so nobody asks for it")
