"""Serves a `KnowledgeIndex` to HTTP processes on a socket, in the knowledge process.

Each connection is a session. Its end cancels its calls. A failed call returns its error and never ends the
process. A call names a method of `KnowledgeIndex`. The method's annotations determine the encoding of its
arguments and result, so both ends use the same format.

The other processes use three parts of this module: the messages, the configuration that the supervisor
writes, and the pause before a restart. A file next to the socket contains the time of the next start. During
the pause, calls fail immediately with the remaining seconds.
"""

import asyncio
import inspect
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from functools import lru_cache
from pathlib import Path
from types import GenericAlias
from typing import Literal, get_type_hints

import msgspec
from msgspec import Struct as WireStruct

from antiphon.domain.values import Struct, field
from antiphon.errors import AntiphonError, ErrorReport, InternalError, InvalidValue, KnowledgeUnavailable
from antiphon.processes.ipc import Channel, Frame, FrameError, FrameReader, Hello, bind_private, remove_socket
from antiphon.retrieval.base import IndexLimits, KnowledgeIndex
from antiphon.task_group import task_group
from antiphon.telemetry.logs import describe_exception, record


@dataclass(frozen=True, slots=True)
class KnowledgeConfig:
    """The configuration of the knowledge process. Its only secret is the database's password."""

    socket: str
    """The path on which it listens; its directory is the runtime directory."""
    status_fd: int
    directory: str
    """Where the files of knowledge tables are."""
    database: str | None = dataclass_field(repr=False)
    """The address of the PostgreSQL database that contains the tables; None if files contain them."""
    limits: IndexLimits
    memory_bytes: int
    """The most bytes of vectors that stay in memory."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"


SUFFIX = ".rest"


def write_pause(socket: str, seconds: float) -> None:
    """Writes that the process does not start within these seconds. If the file cannot be written, calls wait
    for the process instead of failing immediately."""
    with suppress(OSError):
        Path(socket + SUFFIX).write_text(str(time.monotonic() + seconds), "ascii")


def clear_pause(socket: str) -> None:
    """Removes the file, because the process runs."""
    with suppress(OSError):
        Path(socket + SUFFIX).unlink(missing_ok=True)


def read_pause(socket: str) -> float:
    """Returns the seconds until the process starts again; 0 if there is no pause."""
    try:
        return max(0.0, float(Path(socket + SUFFIX).read_text("ascii")) - time.monotonic())
    except (OSError, ValueError):
        return 0.0


# --- to the knowledge process; `call` is a number from the HTTP process, unique on one connection -----------


class IndexCall(Frame, tag=1):
    """Calls a method. Answered by IndexResult or IndexFailure."""

    call: int
    method: str
    arguments: msgspec.Raw
    """An array of the arguments for all parameters, in order."""


class CancelIndexCall(Frame, tag=2):
    """Cancels a call for whose result nobody waits. Has no answer. A write that has started can be
    completed."""

    call: int


# --- from the knowledge process -----------------------------------------------------------------------------


class IndexResult(Frame, tag=1):
    """The call is done."""

    call: int
    value: msgspec.Raw


class IndexFailure(Frame, tag=2):
    """The call ended with this error."""

    call: int
    error: ErrorReport


Encoded = msgspec.Raw
"""Encoded arguments, or an encoded result."""

ToKnowledge = Hello | IndexCall | CancelIndexCall
FromKnowledge = Hello | IndexResult | IndexFailure

TO_KNOWLEDGE = msgspec.msgpack.Decoder(tuple[int, list[ToKnowledge]])
FROM_KNOWLEDGE = msgspec.msgpack.Decoder(tuple[int, list[FromKnowledge]])


class MethodCodec(WireStruct, frozen=True):
    """Decodes the arguments and the result of one method. `encode_value` encodes them."""

    parameters: tuple[str, ...]
    argument_decoder: "msgspec.msgpack.Decoder[tuple[object, ...]]"
    result_decoder: "msgspec.msgpack.Decoder[object]"

    def decode_arguments(self, encoded: msgspec.Raw) -> Mapping[str, object]:
        """Returns the arguments by name. Raises FrameError."""
        try:
            return dict(zip(self.parameters, self.argument_decoder.decode(encoded), strict=True))
        except msgspec.DecodeError as problem:
            raise FrameError(f"a call's arguments cannot be read: {problem}") from None


def encode_value(value: object) -> msgspec.Raw:
    """Encodes the arguments of a call, as a tuple, or its result. Raises FrameError for a lone surrogate,
    which cannot be encoded."""
    try:
        return msgspec.Raw(msgspec.msgpack.encode(value))
    except UnicodeEncodeError:
        raise FrameError("a text contains half of a character") from None


@lru_cache(maxsize=1)
def load_methods() -> Mapping[str, MethodCodec]:
    """Returns the codec of each method of `KnowledgeIndex`."""
    return {
        name: _build_codec(method)
        for name, method in vars(KnowledgeIndex).items()
        if inspect.iscoroutinefunction(method)
    }


def _build_codec(method: object) -> MethodCodec:
    hints = get_type_hints(method)
    result = hints.pop("return")
    return MethodCodec(
        tuple(hints),
        msgspec.msgpack.Decoder(GenericAlias(tuple, tuple(hints.values()))),
        msgspec.msgpack.Decoder(result),
    )


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
