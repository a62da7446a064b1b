"""`python -m antiphon.processes.knowledge`: the process that has all knowledge tables. The supervisor starts
it when a request needs it.

It opens no port, receives only its own settings, and has no key. All its data are in its directory or in
PostgreSQL, so the supervisor can restart it after it died. While the data cannot be opened, each call tries
to open them again, and fails with the reason.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from antiphon.domain.context import SystemClock
from antiphon.engines.host.confine import confine
from antiphon.engines.host.control import Lifeline, StatusPipe
from antiphon.engines.host.runtime import remove_unused_directory
from antiphon.errors import AntiphonError
from antiphon.processes.ipc import FrameError, from_line, remove_socket
from antiphon.processes.knowledge.config import KnowledgeConfig
from antiphon.processes.knowledge.server import serve_index
from antiphon.retrieval.base import KnowledgeIndex
from antiphon.retrieval.sqlite.index import SqliteIndex
from antiphon.telemetry.logs import configure, record, record_loop_failure

if TYPE_CHECKING:
    from antiphon.retrieval.postgres.index import PostgresIndex

ORPHANED = 3
"""The exit status of a process whose supervisor has died."""


class IndexOpener:
    """Opens the index at the first call. After a failure it tries again at the next call."""

    def __init__(self, config: KnowledgeConfig) -> None:
        self._config = config
        self._lock = asyncio.Lock()
        self._index: SqliteIndex | PostgresIndex | None = None

    async def get(self) -> KnowledgeIndex:
        """Returns the index. Raises KnowledgeUnavailable."""
        async with self._lock:
            if self._index is None:
                self._index = await asyncio.to_thread(build_index, self._config)
                record("knowledge_opened", logging.DEBUG, pid=os.getpid())
            return self._index

    async def aclose(self) -> None:
        if self._index is not None:
            await self._index.aclose()


def build_index(config: KnowledgeConfig) -> "SqliteIndex | PostgresIndex":
    """Opens the index in its files or its database. Imports only the libraries that it needs. Raises
    KnowledgeUnavailable."""
    if config.database is None:
        return SqliteIndex(Path(config.directory), SystemClock(), config.limits, config.memory_bytes)
    from antiphon.retrieval.postgres.index import PostgresIndex
    from antiphon.store.database import Database

    database = Database(config.database, show_details=False)
    try:
        return PostgresIndex(database, SystemClock(), config.limits)
    except BaseException:
        database.close()
        raise


@asynccontextmanager
async def open_index(config: KnowledgeConfig) -> AsyncIterator[IndexOpener]:
    """Yields the opener of the index, and closes the index at the end."""
    opener = IndexOpener(config)
    try:
        yield opener
    finally:
        await opener.aclose()


async def run(config: KnowledgeConfig) -> None:
    """Serves calls until SIGTERM."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(record_loop_failure)
    status, stop = StatusPipe(config.status_fd), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    async with open_index(config) as opener, serve_index(opener.get, config.socket):
        status.report_ready()
        await status.report_alive_until(stop)


def _abandon(config: KnowledgeConfig) -> None:
    """Ends the process after its supervisor died. All acknowledged changes are on the disk."""
    with suppress(OSError):
        remove_socket(config.socket)
        remove_unused_directory(Path(config.socket).parent)
    os._exit(ORPHANED)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor handles a terminal's Ctrl-C
    lifeline = Lifeline()
    try:
        config = from_line(lifeline.read_line(), KnowledgeConfig)
    except (EOFError, FrameError) as problem:
        sys.exit(f"the knowledge process is started by the supervisor: {problem}")
    configure(config.log_level, config.log_format)
    try:
        confine()
    except AntiphonError as error:
        StatusPipe(config.status_fd).report_failure(error)
        sys.exit(1)
    lifeline.watch(on_line=lambda _: None, on_end=lambda: _abandon(config))
    asyncio.run(run(config))


if __name__ == "__main__":
    main()
