"""An index of its own for each test: as it is, and through the frames between two processes."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from antiphon.domain.context import SystemClock
from antiphon.processes.knowledge.client import connect_knowledge
from antiphon.processes.knowledge.server import serve_index
from antiphon.retrieval.base import IndexLimits, KnowledgeIndex
from antiphon.retrieval.sqlite.index import SqliteIndex
from tests.support.host_link import short_directory


@pytest.fixture(params=["here", "behind a socket"])
async def index(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[KnowledgeIndex]:
    index = SqliteIndex(tmp_path / "knowledge", SystemClock(), IndexLimits())
    if request.param == "here":
        yield index
    else:
        with short_directory() as directory:
            path = str(directory / "knowledge")
            async with serve_index(lambda: _return(index), path), connect_knowledge(path, _refuse) as client:
                yield client
    await index.aclose()


async def _return(index: SqliteIndex) -> KnowledgeIndex:
    return index


def _refuse() -> None:
    raise AssertionError("the process is there, so nobody asks for it")
