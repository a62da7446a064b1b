"""The knowledge process, run and killed by tests."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from antiphon.engines.host.runtime import build_knowledge_path
from antiphon.errors import KnowledgeUnavailable
from antiphon.processes.knowledge.client import connect_knowledge
from antiphon.processes.knowledge.host import MODULE, KnowledgeHost, start_knowledge
from antiphon.retrieval.base import KnowledgeIndex
from antiphon.settings.schema import Settings, replace_knowledge
from tests.support.host_link import short_directory
from tests.support.processes import descendants

STOP_S = 10.0
T = TypeVar("T")


class Running:
    """A knowledge process that is started again when it dies, and an index that asks it."""

    def __init__(self, client: KnowledgeIndex) -> None:
        self.client = client

    @property
    def pids(self) -> list[int]:
        """The children of this process; servers that tests share have a knowledge process of their own."""
        return descendants(os.getpid(), MODULE, recursive=False)

    def kill(self) -> None:
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)


@asynccontextmanager
async def run_knowledge(directory: Path, settings: Settings | None = None) -> AsyncIterator[Running]:
    """Runs the process as the supervisor does; a client asks for it at its first call."""
    with short_directory() as runtime:
        async with asyncio.TaskGroup() as group:
            host = KnowledgeHost(replace_knowledge(settings or Settings(), str(directory)), runtime, group)
            async with connect_knowledge(build_knowledge_path(runtime), host.request) as client:
                yield Running(client)
            await host.stop(STOP_S)


@asynccontextmanager
async def run_without_rest(directory: Path, base: Settings | None = None) -> AsyncIterator[Running]:
    """Runs the process and starts it again however often it dies. The supervisor rests after three deaths."""
    settings, over = replace_knowledge(base or Settings(), str(directory)), asyncio.Event()

    async def keep(socket: str) -> None:
        while not over.is_set():
            child = await start_knowledge(settings, socket)
            async for _ in child.read_reports():
                pass
            await child.wait_for_end()

    with short_directory() as runtime:
        socket = build_knowledge_path(runtime)
        async with asyncio.TaskGroup() as group, connect_knowledge(socket, lambda: None) as client:
            group.create_task(keep(socket))
            yield (running := Running(client))
            over.set()
            running.kill()


async def retry(call: Callable[[], Awaitable[T]]) -> T:
    """Repeats a call while its error says that it can be tried again."""
    while True:
        try:
            return await call()
        except KnowledgeUnavailable as away:
            if not away.retryable or away.retry_after is None:
                raise
            await asyncio.sleep(0.01)
