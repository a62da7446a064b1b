"""Starts and watches the knowledge process, from the first request that needs it on."""

import asyncio
import logging
import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from antiphon.engines.base import EngineState
from antiphon.engines.host.child import Child, ChildWatch, start_child
from antiphon.engines.host.control import KnowledgeConfig
from antiphon.engines.host.runtime import build_knowledge_path
from antiphon.errors import AntiphonError, StartupError
from antiphon.processes.engine_hosts import HOST_VARIABLES
from antiphon.processes.ipc import to_line
from antiphon.processes.knowledge.rest import clear_rest, write_rest
from antiphon.retrieval.base import IndexLimits
from antiphon.settings.schema import Settings, find_knowledge_database
from antiphon.telemetry.logs import record

MODULE = "antiphon.processes.knowledge"

FAILED_START_S = 5.0
"""Seconds after a start that failed in which calls are refused at once. After them a call starts it again."""

CLIENT_PREFIX = "PG"
"""The prefix of variables that PostgreSQL's client reads. Its files of passwords and certificates are in the
home."""


class KnowledgeHost:
    """The knowledge process of one server. A process that dies is started again."""

    def __init__(self, settings: Settings, runtime: Path, group: asyncio.TaskGroup) -> None:
        """`group`: keeps the process running until the server ends it."""
        self._settings = settings
        self._socket = build_knowledge_path(runtime)
        self._group = group
        self._is_running = False
        self._is_over = False
        self.watch = self._make_watch()

    def _make_watch(self) -> ChildWatch:
        rest = partial(write_rest, self._socket)
        return ChildWatch("the knowledge process", self._start, self._note, always_restart=True, on_rest=rest)

    def _note(self, state: EngineState, _: object) -> None:
        """Ends a rest once the process serves."""
        if state is EngineState.READY:
            clear_rest(self._socket)

    def request(self) -> None:
        """Starts the process, unless it runs or the server ends."""
        if not self._is_running and not self._is_over:
            self._is_running = True
            self.watch = self._make_watch()
            self._group.create_task(self._keep())

    async def _keep(self) -> None:
        """Keeps the process running. If it cannot become ready, a later request tries again."""
        try:
            await self.watch.keep_running()
        except AntiphonError as error:
            record("knowledge_start_failed", logging.ERROR, problem=error.message)
            write_rest(self._socket, FAILED_START_S)
        finally:
            self._is_running = False

    async def stop(self, deadline: float) -> None:
        """Ends the process for good."""
        self._is_over = True
        await self.watch.stop(deadline)

    async def _start(self) -> Child:
        return await start_knowledge(self._settings, self._socket)


async def start_knowledge(settings: Settings, socket: str) -> Child:
    """Starts one process, which serves at the path `socket`. Raises OSError, and StartupError without a
    directory, which `antiphon serve` always sets."""
    knowledge, directory = settings.knowledge, settings.knowledge.directory
    if directory is None:
        raise StartupError("knowledge.directory is not set: set ANTIPHON_KNOWLEDGE_DIRECTORY")
    database = find_knowledge_database(settings)
    limits = IndexLimits(
        tables=knowledge.max_tables,
        documents=knowledge.max_documents,
        chunks=knowledge.max_chunks,
        bytes=knowledge.max_bytes,
    )

    def configuration(status_fd: int) -> bytes:
        return to_line(
            KnowledgeConfig(
                socket=socket,
                status_fd=status_fd,
                directory=directory,
                database=database,
                limits=limits,
                memory_bytes=knowledge.memory_bytes,
                log_level=settings.log.level,
                log_format=settings.log.format,
            )
        )

    command = [sys.executable, "-P", "-m", MODULE]
    environ = filter_environment(os.environ, has_database=database is not None)
    return await start_child(command, configuration, environ)


def filter_environment(environ: Mapping[str, str], *, has_database: bool = False) -> dict[str, str]:
    """Returns the environment of the knowledge process: that of an interpreter, without any credential. With
    a database also what PostgreSQL's client reads. Each search computes in one thread, since several run at
    once."""
    client = (CLIENT_PREFIX, "HOME") if has_database else ()
    allowed = {
        name: value for name, value in environ.items() if name in HOST_VARIABLES or name.startswith(client)
    }
    return {"OPENBLAS_NUM_THREADS": "1"} | allowed
