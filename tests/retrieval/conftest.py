"""An index of its own for each test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from antiphon.domain.context import SystemClock
from antiphon.retrieval.base import IndexLimits, KnowledgeIndex
from antiphon.retrieval.sqlite.index import SqliteIndex


@pytest.fixture
async def index(tmp_path: Path) -> AsyncIterator[KnowledgeIndex]:
    index = SqliteIndex(tmp_path / "knowledge", SystemClock(), IndexLimits())
    yield index
    await index.aclose()
