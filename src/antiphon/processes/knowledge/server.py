"""Serves a `KnowledgeIndex` to HTTP processes on a socket, in the knowledge process.

Each connection is a session. Its end cancels its calls. A failed call returns its error and never ends the
process.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from antiphon.domain.values import Struct, field
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
"""The most connections that wait to be accepted. Each HTTP process opens one."""

MAX_UNSENT = 64 * 1024 * 1024
"""The most unsent bytes for one HTTP process. A process with more has stopped reading."""

MAX_CALLS = 1000
"""The most calls of all processes that run or wait for a thread."""

BUSY_S = 1.0
"""The retry delay for callers in seconds, if there are too many calls."""

GetIndex = Callable[[], Awaitable[KnowledgeIndex]]
"""Returns the index. Raises KnowledgeUnavailable while it cannot be opened."""


class KnowledgeSession:
    """One connection. Each of its calls is a task of the server's group."""

    def __init__(self, server: "KnowledgeServer") -> None:
        self._server = server
        self._calls: dict[int, asyncio.Task[None]] = {}
        self.channel: Channel[ToKnowledge] = Channel(
            FrameReader(TO_KNOWLEDGE), self._receive, self._end_calls
        )

    def _receive(self, message: ToKnowledge) -> None:
        """Starts or cancels a call. Raises FrameError for a message that violates the protocol."""
        match message:
            case CancelIndexCall(call):
                if call in self._calls:
                    self._calls[call].cancel()
            case Hello():
                raise FrameError("the process sent Hello twice")
            case IndexCall(call) if call in self._calls:
                raise FrameError(f"call {call} was sent twice")
            case IndexCall():
                self._start_call(message)

    def _start_call(self, call_message: IndexCall) -> None:
        """Starts the task of a call. Replies with KnowledgeUnavailable if there are too many calls."""
        if self._server.running_calls >= MAX_CALLS:
            error = KnowledgeUnavailable(
                "the knowledge process has too many calls: try again", retry_after=BUSY_S
            )
            self._send_error(call_message.call, error)
            return
        self._server.running_calls += 1
        task = self._server.tasks.create_task(self._run_call(call_message))
        self._calls[call_message.call] = task
        task.add_done_callback(lambda _: self._end_call(call_message.call))

    def _end_call(self, call: int) -> None:
        """Removes a call that has ended."""
        self._server.running_calls -= 1
        del self._calls[call]

    def _end_calls(self, reason: str) -> None:
        """Cancels all calls at the end of the connection."""
        record("knowledge_client_left", logging.DEBUG, reason=reason, calls=len(self._calls))
        for task in tuple(self._calls.values()):
            task.cancel()
        self._server.sessions.discard(self)

    async def _run_call(self, call_message: IndexCall) -> None:
        """Runs one call, and sends its result or its error."""
        try:
            value = await call_method(await self._server.get_index(), call_message)
            self._send(IndexResult(call_message.call, encode_value(value)))
        except AntiphonError as error:
            self._send_error(call_message.call, error)
        except FrameError as problem:
            self._send_error(
                call_message.call, InvalidValue(f"{problem}: request fewer at a time", param="limit")
            )
        except Exception as defect:  # noqa: BLE001 - a defect fails one call, and the others continue
            location = describe_exception(defect)
            record("knowledge_call_failed", logging.ERROR, method=call_message.method, problem=location)
            message = "the knowledge process failed at this call; the server's log has the reason"
            self._send_error(call_message.call, InternalError(message, cause=location))

    def _send_error(self, call: int, error: AntiphonError) -> None:
        """Replies to a call with an error."""
        self._send(IndexFailure(call, ErrorReport.from_error(error)))

    def _send(self, reply: Frame) -> None:
        """Sends a reply. Ends the connection if the HTTP process has stopped reading."""
        if self.channel.unsent > MAX_UNSENT:
            self.channel.cut("the process has stopped reading")
        else:
            self.channel.put(reply)


async def call_method(index: KnowledgeIndex, call_message: IndexCall) -> object:
    """Returns the result of a call. Raises FrameError for an unknown method."""
    codec = load_methods().get(call_message.method)
    if codec is None:
        raise FrameError(f"there is no method {call_message.method}")
    result: object = await getattr(index, call_message.method)(
        **codec.decode_arguments(call_message.arguments)
    )
    return result


class KnowledgeServer(Struct):
    """The sessions of one index."""

    get_index: GetIndex
    tasks: asyncio.TaskGroup
    sessions: set[KnowledgeSession] = field(default_factory=set)
    running_calls: int = 0
    """The number of calls that run or wait."""

    def open_session(self) -> Channel[ToKnowledge]:
        """Creates the protocol of a new connection."""
        session = KnowledgeSession(self)
        self.sessions.add(session)
        return session.channel

    def close_sessions(self, reason: str) -> None:
        """Ends every connection."""
        for session in tuple(self.sessions):
            session.channel.cut(reason)


@asynccontextmanager
async def serve_index(get_index: GetIndex, path: str) -> AsyncIterator[KnowledgeServer]:
    """Serves an index until the block ends, on a socket that only this user can open. Removes the socket at
    the end."""
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
