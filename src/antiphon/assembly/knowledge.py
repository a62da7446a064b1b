"""Opens the knowledge tables for an HTTP process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from antiphon.engines.host import runtime
from antiphon.engines.host.control import HttpConfig, StatusPipe
from antiphon.processes.knowledge.client import connect_knowledge
from antiphon.retrieval.base import KnowledgeIndex
from antiphon.settings.schema import Settings


@asynccontextmanager
async def open_knowledge(
    settings: Settings, config: HttpConfig, status: StatusPipe
) -> AsyncIterator[KnowledgeIndex | None]:
    """Yields the index of knowledge tables while the context lasts; None where they have no directory.

    The knowledge process starts at the first call."""
    if settings.knowledge.directory is None:
        yield None
        return
    path = runtime.build_knowledge_path(Path(config.runtime))
    async with connect_knowledge(path, status.ask_knowledge) as index:
        yield index
