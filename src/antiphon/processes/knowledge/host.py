"""Starts the knowledge process at the first request that needs it, and watches it."""

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from antiphon.engines.base import EngineState
from antiphon.engines.host.child import Child, ChildWatch, start_child
from antiphon.engines.host.runtime import (
    build_knowledge_path,
)
from antiphon.errors import AntiphonError, StartupError
from antiphon.processes.engine_hosts import HOST_VARIABLES
from antiphon.processes.ipc import to_line
from antiphon.processes.knowledge.config import KnowledgeConfig, clear_pause, write_pause
from antiphon.retrieval.base import IndexLimits
from antiphon.settings.schema import Settings, find_knowledge_database
from antiphon.telemetry.logs import record

MODULE = "antiphon.processes.knowledge"

FAILED_START_S = 5.0
"""Seconds after a failed start in which calls are refused immediately. A later call starts the process
again."""

POSTGRES_PREFIX = "PG"
"""The prefix of variables that PostgreSQL's client reads. Its password and certificate files are in the home
directory."""


class KnowledgeHost:
    """The knowledge process of one server. It is restarted when it dies."""

    def __init__(
        self,
        settings: Settings,
        runtime: Path,
        group: asyncio.TaskGroup,
        on_death: Callable[[], None] = lambda: None,
    ) -> None:
        """`group` runs the task that watches the process. `on_death` is called when the process has ended
        unasked."""
        self._settings = settings
        self._socket = build_knowledge_path(runtime)
        self._group = group
        self._on_death = on_death
        self._is_running = False
        self._is_stopped = False
        self.watch = self._create_watch()

    def _create_watch(self) -> ChildWatch:
        pause_writer = partial(write_pause, self._socket)
        return ChildWatch(
            "the knowledge process",
            partial(start_knowledge, self._settings, self._socket),
            self._update_state,
            always_restart=True,
            on_rest=pause_writer,
            on_death=self._on_death,
        )

    def _update_state(self, state: EngineState, _: object) -> None:
        """Ends the pause before a restart when the process is ready."""
        if state is EngineState.READY:
            clear_pause(self._socket)

    def request(self) -> None:
        """Starts the process, unless it runs or the server is stopping."""
        if not self._is_running and not self._is_stopped:
            self._is_running = True
            self.watch = self._create_watch()
            self._group.create_task(self._run())

    async def _run(self) -> None:
        """Starts the process, and restarts it until it is stopped. If it never becomes ready, a later request
        starts it again."""
        try:
            await self.watch.keep_running()
        except AntiphonError as error:
            record("knowledge_start_failed", logging.ERROR, problem=error.message)
            write_pause(self._socket, FAILED_START_S)
        finally:
            self._is_running = False

    async def stop(self, deadline: float) -> None:
        """Ends the process permanently."""
        self._is_stopped = True
        await self.watch.stop(deadline)


async def start_knowledge(settings: Settings, socket: str) -> Child:
    """Starts a process that serves at the path `socket`. Raises OSError, and StartupError if the settings
    have no directory for knowledge. `antiphon serve` always sets it."""
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

    def build_configuration(status_fd: int) -> bytes:
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
    return await start_child(command, build_configuration, environ)


def filter_environment(environ: Mapping[str, str], *, has_database: bool = False) -> dict[str, str]:
    """Returns the environment of the knowledge process: the variables of an interpreter, without credentials.
    With a database, also the variables of PostgreSQL's client. Each search uses one thread, because several
    run at the same time."""
    postgres_prefixes = (POSTGRES_PREFIX, "HOME") if has_database else ()
    allowed = {
        name: value
        for name, value in environ.items()
        if name in HOST_VARIABLES or name.startswith(postgres_prefixes)
    }
    return {"OPENBLAS_NUM_THREADS": "1"} | allowed
