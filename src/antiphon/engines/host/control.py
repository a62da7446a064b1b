"""The pipes between the supervisor and the processes it starts: each child's configuration, and its status
reports.

Standard input of a child is a pipe whose other end only the supervisor has. Its first lines are the child's
configuration, so secrets and paths are never arguments. Later lines are orders and messages. Its end means
that the supervisor is gone, for any reason. A second pipe, whose number is in the configuration, carries the
child's status back. Every line is one JSON object.

Engine hosts import this module, so it imports no settings and no knowledge tables. `supervisor_messages` has
the lines of an HTTP process, and `processes.knowledge.config` has KnowledgeConfig.

  engine host    in: HostConfig, HostOrder*                                 out: Status
  Ray driver     in: HostConfig, DriverConfig, HostOrder*                   out: Status
  Ray node       in: NodeConfig                                             out: Status
  HTTP process   in: encode_settings(settings), HttpConfig, SupervisorMessage*      out: Status
  coordinator    in: encode_settings(settings), CoordinatorConfig                   out: Status
  knowledge      in: KnowledgeConfig                                        out: Status
"""

import asyncio
import os
import select
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from enum import StrEnum
from typing import Literal

from antiphon.domain.values import Struct, replace
from antiphon.engines.base import EngineInfo, EngineState, LoadSpec, RefusedMedium
from antiphon.errors import AntiphonError, ErrorReport
from antiphon.processes.ipc import to_line

STDIN = 0

HEARTBEAT_PERIOD = 2.0
"""Seconds between two heartbeats. They cost some milliseconds of CPU time an hour."""

READ_BYTES = 65536
"""The most bytes of one read of standard input."""


class HostConfig(Struct, frozen=True):
    """The configuration of an engine host."""

    name: str
    """The host's name, for its log. It is the model's name if the model has only one host."""
    factory: str
    """`module:attribute` of a callable without arguments that makes the `TokenEngine`."""
    load: LoadSpec
    socket: str
    """The path on which it listens once the engine is loaded; its directory is the supervisor's runtime
    directory."""
    status_fd: int
    log_level: str = "info"
    log_format: Literal["text", "json"] = "text"
    user: str | None = None
    """The user whose rights the host takes; None keeps the supervisor's rights."""
    keep_alive: float | None = None
    """Seconds without a call after which the host unloads its model and ends; None keeps the model loaded."""
    refused: tuple[RefusedMedium, ...] = ()
    """Media that have ended hosts of the model."""


class HostOrder(Struct, frozen=True):
    """One line from the supervisor to a ready engine host."""

    unload: bool = False
    """Whether the host must unload its model if no call needs it. Otherwise it only reports its use."""
    refused: RefusedMedium | None = None
    """A medium that has ended another host of the model. The host reports nothing then."""


class HttpConfig(Struct, frozen=True):
    """The configuration of an HTTP process, besides the settings."""

    listen_fd: int
    """The listening TCP socket, inherited."""
    status_fd: int
    runtime: str
    """The runtime directory, which contains the coordinator's socket."""
    sockets: dict[str, str]
    """The path of each engine host's socket, by the host's name."""
    removed_models: tuple[str, ...] = ()
    """The removed models whose metrics stay."""
    started: float = 0.0
    """When the server started, in Unix seconds."""
    home: str | None = None
    """The directory of the server's own files."""


class CoordinatorConfig(Struct, frozen=True):
    """The configuration of the coordinator, besides the settings."""

    socket: str
    """The path on which it listens; its directory is the runtime directory."""
    status_fd: int


class EngineStateNotice(Struct, frozen=True):
    """The state of one engine host, as the supervisor knows it."""

    engine: str
    """The host's name."""
    state: EngineState
    detail: str = ""
    """For FAILED, the message that callers get. For PARKED, the reason why the model cannot be loaded now."""
    retry_after: float = 0.0
    """Seconds that the reason of a PARKED model holds."""


class ChildState(StrEnum):
    """The state of a child, as the child reports it."""

    LOADING = "loading"
    READY = "ready"
    ALIVE = "alive"
    """A heartbeat: the child's event loop still runs. After the first heartbeat, a child repeats it every
    HEARTBEAT_PERIOD seconds."""
    FAILED = "failed"
    """The child cannot do its work, and ends."""
    ANSWERED = "answered"
    """An HTTP process has done a step of a reload, or refuses it with an error."""
    ASKS_RELOAD = "asks for a reload"
    """A caller of an HTTP process asks for a reload."""
    ASKS_LOAD = "asks for a model"
    """A request of an HTTP process needs a parked model."""
    ASKS_KNOWLEDGE = "asks for knowledge"
    """A request of an HTTP process needs the knowledge process."""
    IDLE = "idle"
    """An engine host reports since when no call needs its model."""
    IN_USE = "in use"
    """Calls need the model of an engine host."""
    ENCODING = "encoding"
    """An engine host begins to encode a medium, or has ended it."""
    UNLOADED = "unloaded"
    """No call needed the model of an engine host, and the host ends."""


WORK_REPORTS = frozenset(ChildState) - {
    ChildState.LOADING,
    ChildState.READY,
    ChildState.ALIVE,
    ChildState.FAILED,
}
"""The reports about a child's work. The other reports tell whether the child has started and is alive."""


class Status(Struct, frozen=True):
    """One report of a child."""

    state: ChildState
    info: EngineInfo | None = None
    """The facts of a READY engine host, without the chat template."""
    error: ErrorReport | None = None
    """The error of a FAILED child, or of a reload step that is refused."""
    number: int = 0
    """The number of the reload step, or of the request for a reload."""
    model: str = ""
    """The model that a request needs."""
    idle: float = 0.0
    """Seconds since the last call of an IDLE host."""
    digest: str = ""
    """The medium that an ENCODING host encodes now; empty if it has ended."""


class StatusPipe:
    """The child's end of its status pipe. Reports are dropped if the supervisor is gone."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def report_loading(self) -> None:
        self._write(Status(ChildState.LOADING))

    def report_ready(self, info: EngineInfo | None = None) -> None:
        """Reports READY. An engine host passes its `info`; the HTTP process has none."""
        self._write(Status(ChildState.READY, info and replace(info, chat_template=None)))

    def report_alive(self) -> None:
        """Sends a heartbeat. If the pipe is full, it writes nothing, because a supervisor that does not read
        must not block this process."""
        if select.select([], [self._fd], [], 0)[1]:
            self._write(Status(ChildState.ALIVE))

    async def report_alive_until(
        self, stopped: asyncio.Event, check: Callable[[], Awaitable[object]] | None = None
    ) -> None:
        """Sends heartbeats until the event is set. Calls `check` before each one, and raises the error of
        `check`."""
        while not stopped.is_set():
            if check is not None:
                await check()
            self.report_alive()
            with suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_PERIOD):
                    await stopped.wait()

    def report_failure(self, error: AntiphonError) -> None:
        self._write(Status(ChildState.FAILED, error=ErrorReport.from_error(error)))

    def answer_step(self, number: int, error: AntiphonError | None = None) -> None:
        """Reports that a step of a reload is done, or refused with an error."""
        report = None if error is None else ErrorReport.from_error(error)
        self._write(Status(ChildState.ANSWERED, error=report, number=number))

    def ask_reload(self, number: int) -> None:
        """Asks the supervisor for a reload. The supervisor replies with the same number."""
        self._write(Status(ChildState.ASKS_RELOAD, number=number))

    def ask_load(self, model: str) -> None:
        """Asks the supervisor to load a model. The supervisor replies with an EngineStateNotice."""
        self._write(Status(ChildState.ASKS_LOAD, model=model))

    def ask_knowledge(self) -> None:
        """Asks the supervisor to start the knowledge process, if it does not run."""
        self._write(Status(ChildState.ASKS_KNOWLEDGE))

    def report_use(self, state: ChildState, idle: float = 0.0) -> None:
        """Reports that an engine host is IDLE, IN_USE or UNLOADED. `idle`: seconds since the last call of an
        IDLE host."""
        self._write(Status(state, idle=idle))

    def report_encode(self, digest: str) -> None:
        """Reports that the encode of a medium begins, or with an empty digest that it has ended."""
        self._write(Status(ChildState.ENCODING, digest=digest))

    def _write(self, status: Status) -> None:
        """Writes one report completely. Does nothing more if the supervisor is gone."""
        line = to_line(status)
        with suppress(OSError):
            while line:
                line = line[os.write(self._fd, line) :]


class Lifeline:
    """The child's standard input, which ends when the supervisor is gone."""

    def __init__(self, fd: int = STDIN) -> None:
        self._lines = _read_lines(fd)

    def read_line(self) -> bytes:
        """Waits for the next line. Raises EOFError when the supervisor is gone."""
        line = next(self._lines, None)
        if line is None:
            raise EOFError("the supervisor is gone")
        return line

    def watch(self, on_line: Callable[[bytes], None], on_end: Callable[[], None]) -> None:
        """Starts a daemon thread that calls `on_line` with each further line, and `on_end` when standard
        input ends.

        The thread blocks in a read, so it notices the end even while the rest of the process runs native
        code.
        """

        def read() -> None:
            for line in self._lines:
                on_line(line)
            on_end()

        threading.Thread(target=read, name="lifeline", daemon=True).start()


def _read_lines(fd: int) -> Iterator[bytes]:
    """Yields complete lines of a file descriptor. It uses no buffered file, because a thread that waits in
    one breaks the interpreter's exit."""
    pending = b""
    while chunk := os.read(fd, READ_BYTES):
        *lines, pending = (pending + chunk).split(b"\n")
        yield from lines
