"""The engine host's side of the socket: it serves any `TokenEngine` to processes that may open the path.

Each connection is a session. When either side ends it, the session's sequences end, and no others. A failed
call gets its error as the reply, and never ends the host. This module does not load an engine or end the
process.

`IdleUnloading` unloads a model that no call needs: after its idle time, or because another model needs the
memory. The host decides, since only the host knows the calls of all HTTP processes. It decides and closes its
connections in one step, so no running call is cut. A call that arrives later finds no connection and is tried
again.
"""

import asyncio
import importlib
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial

from antiphon.domain.request import Constraint
from antiphon.domain.values import Struct, field, replace
from antiphon.engines.base import (
    AdapterEngine,
    ConstraintEngine,
    EmbeddingEngine,
    EncodingEngine,
    PushingEngine,
    TokenEngine,
    TokenEvent,
)
from antiphon.engines.host.control import ChildState, HostOrder, StatusPipe
from antiphon.engines.host.frames import (
    TO_HOST,
    AbsenceNotice,
    AddAdapterCall,
    CancelCall,
    CheckCall,
    DoneReply,
    EmbedCall,
    ErrorReply,
    GenerateCall,
    HeldReply,
    HoldCall,
    HostCall,
    InfoCall,
    InfoReply,
    LayOutCall,
    LayoutsReply,
    MediumPart,
    RemoveAdapterCall,
    Reply,
    ToHost,
    TokenizePiecesCall,
    TokensReply,
    VocabularyCall,
    VocabularyReply,
    build_event_reply,
)
from antiphon.errors import AntiphonError, EngineError, ErrorReport, InvalidValue, UnsupportedParameter
from antiphon.processes.ipc import (
    Channel,
    FrameError,
    FrameReader,
    Hello,
    bind_private,
    from_line,
    remove_socket,
)
from antiphon.task_group import task_group
from antiphon.telemetry.logs import describe_exception, record

BACKLOG = 64
"""The most connections that may wait to be accepted. Each HTTP process opens one."""

MAX_UNSENT = 16 * 1024 * 1024
"""The most unsent bytes for one HTTP process. A decode step of 16 sequences is under 1 kB, so a process that
exceeds this has been stopped for long."""

STOPPED_READING = "the HTTP process has stopped reading"

DRAIN_PAUSE = 0.02
"""Seconds between checks whether all calls have ended."""


class StepWriter:
    """Sends the events of one session's calls as one frame for each flush. The thread that makes the events
    uses it, or the event loop, but never both at once."""

    def __init__(self, channel: Channel[ToHost], max_unsent: int) -> None:
        self._channel = channel
        self._max_unsent = max_unsent
        self._loop = asyncio.get_running_loop()
        self._messages: list[bytes] = []

    def add(self, reply: Reply) -> None:
        """Adds a reply to the next frame. Raises FrameError if it is too large."""
        self._messages.append(self._channel.encode(reply))

    def flush(self) -> None:
        """Sends the frame. If too many unsent bytes wait for this HTTP process, ends the connection."""
        if not self._messages:
            return
        messages, self._messages = self._messages, []
        if self._channel.write_now(messages) > self._max_unsent:
            self.call_on_loop(partial(self._channel.cut, STOPPED_READING))

    def call_on_loop(self, function: Callable[[], object]) -> None:
        """Calls a function on the event loop, from any thread."""
        with suppress(RuntimeError):  # the loop has closed
            self._loop.call_soon_threadsafe(function)


class CallSink:
    """Takes the events of one call. A reply that is too large ends the call."""

    __slots__ = ("_call", "_cancel", "_writer", "problem")

    def __init__(self, call: int, writer: StepWriter, cancel: Callable[[], object]) -> None:
        """`cancel` ends the call on the event loop."""
        self._call = call
        self._writer = writer
        self._cancel = cancel
        self.problem: FrameError | None = None
        """Why the call has ended."""

    def put(self, event: TokenEvent) -> None:
        if self.problem is None:
            try:
                self._writer.add(build_event_reply(self._call, event))
            except FrameError as problem:
                self.problem = problem
                self._writer.call_on_loop(self._cancel)

    def flush(self) -> None:
        self._writer.flush()


class HostSession:
    """One connection and its running calls. Each call is a task of the host's group."""

    def __init__(self, host: "HostServer") -> None:
        self._host = host
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._medium_parts: dict[int, asyncio.Queue[bytes]] = {}
        """The parts of media that calls have still to read."""
        self.channel: Channel[ToHost] = Channel(FrameReader(TO_HOST), self._receive, self._end_calls)
        self._writer = StepWriter(self.channel, host.max_unsent)
        self.channel.greeted.add_done_callback(self._begin_session)

    def is_busy(self) -> bool:
        """Whether a call runs, or a reply is still unsent."""
        return bool(self._calls) or self.channel.unsent > 0

    def _receive(self, message: ToHost) -> None:
        match message:
            case CancelCall(call):
                if call in self._calls:
                    self._calls[call].cancel()
            case MediumPart(call, data):
                if call in self._medium_parts:
                    self._medium_parts[call].put_nowait(data)
            case Hello():
                raise FrameError("the HTTP process said Hello twice")
            case _ if message.call in self._calls:
                raise FrameError(f"call {message.call} began twice")
            case _:
                self._begin(message)

    def _begin_session(self, greeting: asyncio.Future[None]) -> None:
        """After the Hello, tells the HTTP process if no call can be served."""
        is_connected = not greeting.cancelled() and greeting.exception() is None
        if is_connected and self._host.absence:
            self.channel.put(AbsenceNotice(self._host.absence))

    def _begin(self, frame: HostCall) -> None:
        if self._host.is_closing:
            return  # the connection ends, so the HTTP process tries again
        self._host.note_use(frame)
        task = self._host.tasks.create_task(self._serve(frame))
        self._calls[frame.call] = task
        task.add_done_callback(lambda _: self._end_call(frame))

    def _end_call(self, frame: HostCall) -> None:
        """Forgets a call that has ended."""
        del self._calls[frame.call]
        self._host.note_use(frame)

    def _end_calls(self, reason: str) -> None:
        level = logging.INFO if self._calls else logging.DEBUG
        record("gateway_left", level, reason=reason, calls=len(self._calls))
        for task in self._calls.values():
            task.cancel()
        self._host.sessions.discard(self)

    async def _serve(self, frame: HostCall) -> None:
        """Runs one call from beginning to end. Any error of the engine becomes a reply."""
        try:
            if isinstance(frame, GenerateCall):
                await self._generate(frame)
            elif isinstance(frame, EmbedCall):
                await self._embed(frame)
            elif isinstance(frame, HoldCall):
                await self._hold(frame)
            else:
                self._send(await run_call(self._host.engine, frame))
        except AntiphonError as error:
            self._send(ErrorReply(frame.call, ErrorReport.from_error(error)))
        except FrameError as problem:
            self._send_error(frame.call, f"the engine's reply is too large to send: {problem}")
        except Exception as defect:  # noqa: BLE001 - the border around an engine: one call fails, the host goes on
            location = describe_exception(defect)
            record("engine_call_failed", logging.ERROR, call=type(frame).__name__, problem=location)
            self._send_error(
                frame.call, "the engine failed at this request; the server's log says why", location
            )

    def _send(self, reply: Reply) -> None:
        """Sends a reply. If too many unsent bytes wait for this HTTP process, ends the connection instead."""
        if self.channel.unsent > self._host.max_unsent:
            self.channel.cut(STOPPED_READING)
        else:
            self.channel.put(reply)

    def _send_error(self, call: int, message: str, cause: str | None = None) -> None:
        self._send(ErrorReply(call, ErrorReport.from_error(EngineError(message, cause=cause))))

    async def _generate(self, frame: GenerateCall) -> None:
        """Runs one sequence. An engine that pushes its events, such as the embedded one, writes their frames
        on a thread of its own."""
        if isinstance(self._host.engine, PushingEngine):
            sink = CallSink(frame.call, self._writer, self._calls[frame.call].cancel)
            try:
                await self._host.engine.push(frame.request, sink)
            except asyncio.CancelledError:
                if sink.problem is None:
                    raise
            if sink.problem is not None:
                raise sink.problem
            return
        async with aclosing(self._host.engine.generate(frame.request)) as events:
            async for event in events:
                self._send(build_event_reply(frame.call, event))

    async def _hold(self, frame: HoldCall) -> None:
        """Receives a medium unless it is encoded, and holds it until the call is cancelled."""
        engine, medium = require_encoding_engine(self._host.engine), frame.medium
        if not engine.has_encoded(medium.digest, frame.cache_salt):
            data = bytearray()
            parts = self._medium_parts[frame.call] = asyncio.Queue[bytes]()
            try:
                while len(data) < frame.byte_count:
                    self._send(HeldReply(frame.call, len(data)))
                    data += await parts.get()
            finally:
                del self._medium_parts[frame.call]
            medium = replace(medium, data=bytes(data))
        async with engine.hold(medium, frame.cache_salt):
            self._send(HeldReply(frame.call, frame.byte_count))
            await asyncio.Event().wait()

    async def _embed(self, frame: EmbedCall) -> None:
        async with aclosing(require_embedding_engine(self._host.engine).embed(frame.request)) as events:
            async for event in events:
                self._send(build_event_reply(frame.call, event))
        self._send(DoneReply(frame.call))


async def run_call(engine: TokenEngine, frame: HostCall) -> Reply:
    """The engine's reply to a call that makes no token."""
    match frame:
        case TokenizePiecesCall(call, pieces, add_bos):
            return TokensReply(call, await engine.tokenize(pieces, add_bos))
        case VocabularyCall(call):
            return VocabularyReply(call, await engine.vocabulary())
        case InfoCall(call):
            return InfoReply(call, await engine.info())
        case AddAdapterCall(call, digest, path):
            await require_adapter_engine(engine).add_adapter(digest, path)
            return DoneReply(call)
        case RemoveAdapterCall(call, digest):
            await require_adapter_engine(engine).remove_adapter(digest)
            return DoneReply(call)
        case CheckCall(call, constraint):
            await require_constraint_engine(engine, constraint).check(constraint)
            return DoneReply(call)
        case LayOutCall(call, shapes):
            return LayoutsReply(call, await require_encoding_engine(engine).lay_out(shapes))
        case GenerateCall(call) | EmbedCall(call) | HoldCall(call):
            raise FrameError(f"call {call} is answered by more than one message")


def require_constraint_engine(engine: TokenEngine, constraint: Constraint) -> ConstraintEngine:
    """Returns the engine. Raises UnsupportedParameter if it takes no constraints."""
    if not isinstance(engine, ConstraintEngine):
        raise UnsupportedParameter("this model's engine takes no constraints", param=constraint.field)
    return engine


def require_encoding_engine(engine: TokenEngine) -> EncodingEngine:
    """Returns the engine. Raises UnsupportedParameter if it takes no media."""
    if not isinstance(engine, EncodingEngine):
        raise UnsupportedParameter("this model's engine takes text alone", param="messages")
    return engine


def require_adapter_engine(engine: TokenEngine) -> AdapterEngine:
    """Returns the engine. Raises InvalidValue if it cannot compute with adapters."""
    if not isinstance(engine, AdapterEngine):
        raise InvalidValue("this engine takes no adapters", param="adapter")
    return engine


def require_embedding_engine(engine: TokenEngine) -> EmbeddingEngine:
    """Returns the engine. Raises UnsupportedParameter if it makes no vectors."""
    if not isinstance(engine, EmbeddingEngine):
        raise UnsupportedParameter("this model's engine makes no vectors", param="model")
    return engine


def create_engine(factory: str) -> TokenEngine:
    """Calls the function that `factory` names as `module:attribute`, and returns the engine that it makes."""
    module, _, attribute = factory.partition(":")
    engine: TokenEngine = getattr(importlib.import_module(module), attribute)()
    return engine


class HostServer(Struct):
    """All sessions of one engine."""

    engine: TokenEngine
    tasks: asyncio.TaskGroup
    max_unsent: int
    sessions: set[HostSession] = field(default_factory=set)
    is_closing: bool = False
    """Whether no call is served any more."""
    used_at: float = field(default_factory=time.monotonic)
    """When the latest call began or ended."""
    absence: str = ""
    """Why no call can be served now; empty if calls can be served."""

    def note_absence(self, reason: str) -> None:
        """Tells every HTTP process that no call can be served, or with an empty reason that calls can be
        served."""
        if reason == self.absence:
            return
        self.absence = reason
        for session in self.sessions:
            session.channel.put(AbsenceNotice(reason))

    def note_use(self, frame: HostCall) -> None:
        """Notes that a call needs the model. Calls that only read the model's facts do not count."""
        if not isinstance(frame, InfoCall | VocabularyCall):
            self.used_at = time.monotonic()

    def is_busy(self) -> bool:
        """Whether a call runs, or a reply is still unsent."""
        return any(session.is_busy() for session in self.sessions)

    def close_sessions(self, reason: str) -> None:
        """Ends every connection, and serves no call any more."""
        self.is_closing = True
        for session in tuple(self.sessions):
            session.channel.cut(reason)

    def open_session(self) -> Channel[ToHost]:
        """Creates the session of a new connection, and returns its protocol object."""
        session = HostSession(self)
        self.sessions.add(session)
        return session.channel

    async def drain(self, seconds: float) -> None:
        """Waits until no call runs, but no longer than `seconds`. Then ends every connection."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.is_busy():  # noqa: ASYNC110 - there is no event for it
                    await asyncio.sleep(DRAIN_PAUSE)
        for session in tuple(self.sessions):
            session.channel.cut("the host is stopping")


@asynccontextmanager
async def serve_engine(
    engine: TokenEngine, path: str, max_unsent: int = MAX_UNSENT, sock: socket.socket | None = None
) -> AsyncIterator[HostServer]:
    """Serves a loaded engine on a socket that only this user may open; removes the path afterwards.

    `sock` is a socket that is already bound to the path.
    """
    sock = sock or bind_private(path)
    async with task_group() as tasks:
        host = HostServer(engine, tasks, max_unsent)
        server = await asyncio.get_running_loop().create_unix_server(
            host.open_session, sock=sock, backlog=BACKLOG
        )
        try:
            yield host
        finally:
            server.close()
            await host.drain(0)
            remove_socket(path)


FIRST_USE_S = 5.0
"""Seconds after the load during which the model counts as used, so that the request that needs it can
connect."""

PAUSE_S = 1.0
"""Seconds without a call after which another model may have the memory. A request makes several calls."""


class HostOrders:
    """Passes the supervisor's orders from the thread that reads them to the event loop."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._handler: Callable[[HostOrder], None] = lambda _: None

    def set_handler(self, handler: Callable[[HostOrder], None]) -> None:
        """Makes the running event loop call `handler` with each later order."""
        self._loop, self._handler = asyncio.get_running_loop(), handler

    def receive(self, line: bytes) -> None:
        """Passes an order to the handler in the event loop. Any thread may call it."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended, and so does the process
                self._loop.call_soon_threadsafe(self._handler, from_line(line, HostOrder))


class IdleUnloading:
    """Unloads the model of one host when no call has needed it for some time. `watch` ends when the model is
    unloaded."""

    def __init__(
        self, host: HostServer, status: StatusPipe, stop: asyncio.Event, keep_alive: float | None
    ) -> None:
        """`stop` is set when the host must end. `keep_alive`: seconds without a call after which the model is
        unloaded."""
        self._host = host
        self._status = status
        self._stop = stop
        self._keep_alive = keep_alive
        self._is_unload_ordered = False
        """Whether the supervisor has ordered to unload, because another model needs the memory."""
        self._changed = asyncio.Event()
        host.used_at = time.monotonic() + FIRST_USE_S

    def carry_out(self, order: HostOrder) -> None:
        """Carries out an order of the supervisor."""
        if order.refused is not None:
            require_encoding_engine(self._host.engine).refuse_medium(order.refused)
        elif order.unload:
            self._is_unload_ordered = True
            self._changed.set()
        elif self._host.is_busy():
            self._status.report_use(ChildState.IN_USE)
        else:
            self._status.report_use(ChildState.IDLE, max(0.0, time.monotonic() - self._host.used_at))

    async def watch(self) -> None:
        """Waits until no call has needed the model for the idle time, then unloads the model."""
        while not self._unload_if_idle():
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._compute_pause()):
                    await self._changed.wait()

    def _get_idle_limit(self) -> float | None:
        """Returns the seconds without a call after which the model is unloaded. None means: not before an
        order."""
        return PAUSE_S if self._is_unload_ordered else self._keep_alive

    def _compute_pause(self) -> float | None:
        """Returns the seconds to wait before the model can be unloaded; None waits for an order."""
        limit = self._get_idle_limit()
        if limit is None or self._host.is_busy():
            return limit
        return max(0.0, self._host.used_at + limit - time.monotonic())

    def _unload_if_idle(self) -> bool:
        """Ends all connections if no call has needed the model for the idle limit. Returns whether they were
        ended. An order that a running call prevents is reported as IN_USE and dropped."""
        is_busy, limit = self._host.is_busy(), self._get_idle_limit()
        if is_busy and self._is_unload_ordered:
            self._is_unload_ordered = False
            self._status.report_use(ChildState.IN_USE)
        if is_busy or limit is None or time.monotonic() < self._host.used_at + limit:
            return False
        self._status.report_use(ChildState.UNLOADED)
        self._host.close_sessions("the model is unloaded")
        self._stop.set()
        return True


@asynccontextmanager
async def unload_idle(unloading: IdleUnloading, orders: HostOrders) -> AsyncIterator[None]:
    """Unloads the model when no call needs it, while the context lasts."""
    orders.set_handler(unloading.carry_out)
    async with task_group() as tasks:
        watch_task = tasks.create_task(unloading.watch())
        try:
            yield
        finally:
            watch_task.cancel()
