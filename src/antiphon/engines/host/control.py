"""The line between the supervisor and the processes it starts: how each is told what to be, and how it says
how it stands.

Standard input of a child is a pipe that only the supervisor holds. Its first lines are the child's
configuration (so secrets and paths are never arguments), later lines are news; its end means that the
supervisor is gone, however it went. A second pipe, whose number is in the configuration, carries the child's
status back. Every line is one JSON object.

    engine host    in: HostConfig                                   out: Status
    HTTP process   in: settings.encode(), HttpConfig, EngineNews*   out: Status
    coordinator    in: settings.encode(), CoordinatorConfig         out: Status
"""

import asyncio
import os
import select
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

from antiphon.engines.base import EngineInfo, EngineState, LoadSpec
from antiphon.errors import AntiphonError, ErrorReport
from antiphon.processes.ipc.frames import to_line

STDIN = 0

PULSE = 2.0
"""Seconds between two signs of life: some milliseconds of CPU an hour."""

CHUNK = 65536


@dataclass(frozen=True, slots=True)
class HostConfig:
    """What an engine host is."""

    name: str
    """Of the model, for its log."""
    factory: str
    """`module:attribute` of a callable without arguments that makes the `TokenEngine`."""
    load: LoadSpec
    socket: str
    """Path to listen on once the engine is loaded; its directory is the supervisor's runtime directory."""
    status_fd: int
    log_level: str = "info"
    log_format: Literal["text", "json"] = "text"
    user: str | None = None
    """Whose rights it takes; None keeps the supervisor's."""


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """What the HTTP process is told besides the settings."""

    listen_fd: int
    """The listening TCP socket, inherited."""
    status_fd: int
    runtime: str
    """The runtime directory, in which the coordinator listens."""
    sockets: dict[str, str]
    """Path of each engine host's socket, by the model's name."""


@dataclass(frozen=True, slots=True)
class CoordinatorConfig:
    """What the coordinator is told besides the settings."""

    socket: str
    """Path to listen on; its directory is the runtime directory."""
    status_fd: int


@dataclass(frozen=True, slots=True)
class EngineNews:
    """How one engine host stands, as the supervisor sees it."""

    engine: str
    """The model's name."""
    state: EngineState
    detail: str = ""
    """For FAILED, the sentence that callers get."""


class ChildState(StrEnum):
    """How a child stands, as it says itself."""

    LOADING = "loading"
    READY = "ready"
    ALIVE = "alive"
    """Nothing new: its event loop still turns. Who has said so once says so every PULSE seconds."""
    FAILED = "failed"
    """It cannot do its work, and ends."""


@dataclass(frozen=True, slots=True)
class Status:
    """One report of a child."""

    state: ChildState
    info: EngineInfo | None = None
    """Of a READY engine host, without the chat template."""
    error: ErrorReport | None = None
    """Of a FAILED child."""


class StatusPipe:
    """The child's end of its status pipe. A supervisor that is gone hears nothing, and that is no error
    here."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def loading(self) -> None:
        self._say(Status(ChildState.LOADING))

    def ready(self, info: EngineInfo | None = None) -> None:
        """`info` is an engine host's; the HTTP process has none."""
        self._say(Status(ChildState.READY, info and replace(info, chat_template=None)))

    def alive(self) -> None:
        """Says nothing when the pipe is full: a supervisor that does not read must not hold this process
        up."""
        if select.select([], [self._fd], [], 0)[1]:
            self._say(Status(ChildState.ALIVE))

    async def pulse(self, until: asyncio.Event, check: Callable[[], Awaitable[object]] | None = None) -> None:
        """Says so again and again until the event is set. Raises what the check raises, which is asked before
        each time."""
        while not until.is_set():
            if check is not None:
                await check()
            self.alive()
            with suppress(TimeoutError):
                async with asyncio.timeout(PULSE):
                    await until.wait()

    def failed(self, error: AntiphonError) -> None:
        self._say(Status(ChildState.FAILED, error=ErrorReport.of(error)))

    def _say(self, status: Status) -> None:
        line = to_line(status)
        with suppress(OSError):
            while line:
                line = line[os.write(self._fd, line) :]


class Lifeline:
    """The child's end of its standard input."""

    def __init__(self, fd: int = STDIN) -> None:
        self._lines = _lines_of(fd)

    def line(self) -> bytes:
        """The next line; waits for it. Raises EOFError when the supervisor is gone."""
        line = next(self._lines, None)
        if line is None:
            raise EOFError("the supervisor is gone")
        return line

    def watch(self, told: Callable[[bytes], None], gone: Callable[[], None]) -> None:
        """Calls `told` with each further line and `gone` at the end, in a thread of its own that holds up no
        exit.

        A thread, and a blocking read: it sees the end also while the rest of the process is busy in native
        code.
        """

        def read() -> None:
            for line in self._lines:
                told(line)
            gone()

        threading.Thread(target=read, name="lifeline", daemon=True).start()


def _lines_of(fd: int) -> Iterator[bytes]:
    """Complete lines of a file descriptor. Not a buffered file: a thread that waits in one breaks the
    interpreter's exit."""
    pending = b""
    while chunk := os.read(fd, CHUNK):
        *lines, pending = (pending + chunk).split(b"\n")
        yield from lines
