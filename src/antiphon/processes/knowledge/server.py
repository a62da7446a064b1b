"""The knowledge process's side of the socket: it serves a `KnowledgeIndex` to HTTP processes.

Each connection is a session. Its end cancels its calls. A failed call is answered with its error and never
ends the process.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from antiphon.errors import AntiphonError, ErrorReport, InternalError, InvalidValue, KnowledgeUnavailable
from antiphon.processes.ipc import Channel, Frame, FrameError, FrameReader, Hello, bind_private, remove_socket
from antiphon.processes.knowledge.frames import (
    TO_KNOWLEDGE,
    CancelIndexCall,
    IndexCall,
    IndexFailure,
    IndexResult,
    ToKnowledge,
    encode_value,
    load_methods,
)
from antiphon.retrieval.base import KnowledgeIndex
from antiphon.task_group import task_group
from antiphon.telemetry.logs import describe_exception, record

BACKLOG = 64
"""The most connections that may wait to be accepted; each HTTP process opens one."""

MAX_UNSENT = 64 * 1024 * 1024
"""The most unsent bytes for one HTTP process; beyond them it has stopped reading."""

MAX_CALLS = 1000
"""Calls of all processes together that run or wait for a thread."""

BUSY_S = 1.0
"""Seconds after which a caller may try again where there were too many calls."""

GetIndex = Callable[[], Awaitable[KnowledgeIndex]]
"""Returns the index. Raises KnowledgeUnavailable while it cannot be opened."""


class KnowledgeSession:
    """One connection: its calls, each a task of the server's group."""

    def __init__(self, server: "KnowledgeServer") -> None:
        self._server = server
        self._calls: dict[int, asyncio.Task[None]] = {}
        self.channel: Channel[ToKnowledge] = Channel(
            FrameReader(TO_KNOWLEDGE), self._receive, self._end_calls
        )

    def _receive(self, message: ToKnowledge) -> None:
        match message:
            case CancelIndexCall(call):
                if call in self._calls:
                    self._calls[call].cancel()
            case Hello():
                raise FrameError("the process said Hello twice")
            case IndexCall(call) if call in self._calls:
                raise FrameError(f"call {call} began twice")
            case IndexCall():
                self._begin(message)

    def _begin(self, asking: IndexCall) -> None:
        if self._server.running >= MAX_CALLS:
            busy = KnowledgeUnavailable(
                "the knowledge process has too many calls: try again", retry_after=BUSY_S
            )
            self._fail(asking.call, busy)
            return
        self._server.running += 1
        task = self._server.tasks.create_task(self._serve(asking))
        self._calls[asking.call] = task
        task.add_done_callback(lambda _: self._end_call(asking.call))

    def _end_call(self, call: int) -> None:
        self._server.running -= 1
        del self._calls[call]

    def _end_calls(self, reason: str) -> None:
        record("knowledge_client_left", logging.DEBUG, reason=reason, calls=len(self._calls))
        for task in tuple(self._calls.values()):
            task.cancel()
        self._server.sessions.discard(self)

    async def _serve(self, asking: IndexCall) -> None:
        """Runs one call. Any error becomes an answer."""
        try:
            value = await call_method(await self._server.get_index(), asking)
            self._send(IndexResult(asking.call, encode_value(value)))
        except AntiphonError as error:
            self._fail(asking.call, error)
        except FrameError as problem:
            self._fail(asking.call, InvalidValue(f"{problem}: ask for fewer at a time", param="limit"))
        except Exception as defect:  # noqa: BLE001 - the border around the index: one call fails, others go on
            location = describe_exception(defect)
            record("knowledge_call_failed", logging.ERROR, method=asking.method, problem=location)
            message = "the knowledge process failed at this call; the server's log says why"
            self._fail(asking.call, InternalError(message, cause=location))

    def _fail(self, call: int, error: AntiphonError) -> None:
        self._send(IndexFailure(call, ErrorReport.from_error(error)))

    def _send(self, reply: Frame) -> None:
        if self.channel.unsent > MAX_UNSENT:
            self.channel.cut("the process has stopped reading")
        else:
            self.channel.put(reply)


async def call_method(index: KnowledgeIndex, asking: IndexCall) -> object:
    """Returns the result of a call. Raises FrameError for a method that the interface does not have."""
    codec = load_methods().get(asking.method)
    if codec is None:
        raise FrameError(f"there is no method {asking.method}")
    result: object = await getattr(index, asking.method)(**codec.decode_arguments(asking.arguments))
    return result


@dataclass(slots=True)
class KnowledgeServer:
    """All sessions of one index."""

    get_index: GetIndex
    tasks: asyncio.TaskGroup
    sessions: set[KnowledgeSession] = field(default_factory=set)
    running: int = 0
    """Calls that run or wait."""

    def open_session(self) -> Channel[ToKnowledge]:
        """Makes the protocol of a new connection."""
        session = KnowledgeSession(self)
        self.sessions.add(session)
        return session.channel

    def close_sessions(self, reason: str) -> None:
        """Ends every connection."""
        for session in tuple(self.sessions):
            session.channel.cut(reason)


@asynccontextmanager
async def serve_index(get_index: GetIndex, path: str) -> AsyncIterator[KnowledgeServer]:
    """Serves an index on a socket that only this user may open; removes the path afterwards."""
    sock = bind_private(path)
    async with task_group() as tasks:
        server = KnowledgeServer(get_index, tasks)
        loop = asyncio.get_running_loop()
        listener = await loop.create_unix_server(server.open_session, sock=sock, backlog=BACKLOG)
        try:
            yield server
        finally:
            listener.close()
            server.close_sessions("the knowledge process is stopping")
            remove_socket(path)
