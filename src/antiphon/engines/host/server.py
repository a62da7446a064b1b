"""The engine host's side of the socket: any `TokenEngine`, offered to whoever may open the path.

Each connection is a session; its end, in either direction, ends the sequences it began and no others. A call
that fails is answered with its error and never ends the host. Nothing here loads an engine or ends the
process.
"""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field

from antiphon.domain.request import Constraint
from antiphon.engines.base import Adapting, Constrainable, Embedding, TokenEngine
from antiphon.engines.host.frames import (
    TO_HOST,
    AddAdapter,
    AskInfo,
    Asking,
    AskVocabulary,
    Cancel,
    Check,
    Done,
    Embed,
    Facts,
    Failed,
    Generate,
    RemoveAdapter,
    Reply,
    Table,
    ToHost,
    Tokenize,
    Tokenized,
    event_reply,
)
from antiphon.errors import AntiphonError, EngineError, ErrorReport, InvalidValue, UnsupportedParameter
from antiphon.processes.ipc.channel import Channel, bind_private, remove_socket
from antiphon.processes.ipc.frames import FrameError, FrameReader, Hello
from antiphon.task_group import task_group
from antiphon.telemetry.logs import describe_exception, record

BACKLOG = 64
"""Connections that may wait to be accepted; a gateway opens one."""

MAX_UNSENT = 16 * 1024 * 1024
"""Bytes that may wait for a gateway to read. A decode step of 16 sequences is under 1 kB, so one that is this
far behind has stood still for long."""

DRAIN_PAUSE = 0.02
"""Seconds between looks at whether all calls have ended."""


class Session:
    """One connection: its calls, each a task of the host's group."""

    def __init__(self, host: "Host") -> None:
        self._host = host
        self._calls: dict[int, asyncio.Task[None]] = {}
        self.channel: Channel[ToHost] = Channel(FrameReader(TO_HOST), self._receive, self._end_calls)

    def busy(self) -> bool:
        """Whether a call runs, or an answer waits to be read."""
        return bool(self._calls) or self.channel.unsent > 0

    def _receive(self, message: ToHost) -> None:
        match message:
            case Cancel(call):
                if call in self._calls:
                    self._calls[call].cancel()
            case Hello():
                raise FrameError("the gateway said Hello twice")
            case _ if message.call in self._calls:
                raise FrameError(f"call {message.call} began twice")
            case _:
                self._begin(message)

    def _begin(self, asking: Asking) -> None:
        task = self._host.tasks.create_task(self._serve(asking))
        self._calls[asking.call] = task
        task.add_done_callback(lambda _: self._calls.pop(asking.call))

    def _end_calls(self, reason: str) -> None:
        level = logging.INFO if self._calls else logging.DEBUG
        record("gateway_left", level, reason=reason, calls=len(self._calls))
        for task in self._calls.values():
            task.cancel()
        self._host.sessions.discard(self)

    async def _serve(self, asking: Asking) -> None:
        """One call from beginning to end. A border: whatever the engine raises becomes an answer."""
        try:
            if isinstance(asking, Generate):
                await self._generate(asking)
            elif isinstance(asking, Embed):
                await self._embed(asking)
            else:
                self._say(await answer(self._host.engine, asking))
        except AntiphonError as error:
            self._say(Failed(asking.call, ErrorReport.of(error)))
        except FrameError as problem:
            self._fail(asking.call, f"the engine's answer is too large: {problem}")
        except Exception as defect:  # noqa: BLE001 - the border around an engine: one call fails, the host goes on
            place = describe_exception(defect)
            record("engine_call_failed", logging.ERROR, call=type(asking).__name__, problem=place)
            self._fail(asking.call, "the engine failed at this request; the server's log says why", place)

    def _say(self, reply: Reply) -> None:
        """Answers, unless the gateway reads no more: then its memory is not ours to fill."""
        if self.channel.unsent > self._host.max_unsent:
            self.channel.cut("the gateway has stopped reading")
        else:
            self.channel.put(reply)

    def _fail(self, call: int, message: str, cause: str | None = None) -> None:
        self._say(Failed(call, ErrorReport.of(EngineError(message, cause=cause))))

    async def _generate(self, asking: Generate) -> None:
        async with aclosing(self._host.engine.generate(asking.request)) as events:
            async for event in events:
                self._say(event_reply(asking.call, event))

    async def _embed(self, asking: Embed) -> None:
        async with aclosing(embedding(self._host.engine).embed(asking.request)) as events:
            async for event in events:
                self._say(event_reply(asking.call, event))
        self._say(Done(asking.call))


async def answer(engine: TokenEngine, asking: Asking) -> Reply:
    """What the engine says to a call that makes no token."""
    match asking:
        case Tokenize(call, pieces, add_bos):
            return Tokenized(call, await engine.tokenize(pieces, add_bos))
        case AskVocabulary(call):
            return Table(call, await engine.vocabulary())
        case AskInfo(call):
            return Facts(call, await engine.info())
        case AddAdapter(call, digest, path):
            await adapting(engine).add_adapter(digest, path)
            return Done(call)
        case RemoveAdapter(call, digest):
            await adapting(engine).remove_adapter(digest)
            return Done(call)
        case Check(call, constraint):
            await constrainable(engine, constraint).check(constraint)
            return Done(call)
        case Generate(call) | Embed(call):
            raise FrameError(f"call {call} is answered by more than one message")


def constrainable(engine: TokenEngine, constraint: Constraint) -> Constrainable:
    """The engine, as one that takes constraints. Raises UnsupportedParameter."""
    if not isinstance(engine, Constrainable):
        raise UnsupportedParameter("this model's engine takes no constraints", param=constraint.field)
    return engine


def adapting(engine: TokenEngine) -> Adapting:
    """The engine, as one that computes with adapters. Raises InvalidValue."""
    if not isinstance(engine, Adapting):
        raise InvalidValue("this engine takes no adapters", param="adapter")
    return engine


def embedding(engine: TokenEngine) -> Embedding:
    """The engine, as one that makes vectors. Raises UnsupportedParameter."""
    if not isinstance(engine, Embedding):
        raise UnsupportedParameter("this model's engine makes no vectors", param="model")
    return engine


@dataclass(slots=True)
class Host:
    """Every session of one engine."""

    engine: TokenEngine
    tasks: asyncio.TaskGroup
    max_unsent: int
    sessions: set[Session] = field(default_factory=set)

    def session(self) -> Channel[ToHost]:
        """The protocol of a new connection."""
        session = Session(self)
        self.sessions.add(session)
        return session.channel

    async def drain(self, seconds: float) -> None:
        """Waits until no call runs, or for this long; then ends every connection."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while any(session.busy() for session in self.sessions):  # noqa: ASYNC110 - no one event says it
                    await asyncio.sleep(DRAIN_PAUSE)
        for session in tuple(self.sessions):
            session.channel.cut("the host is stopping")


@asynccontextmanager
async def listening(
    engine: TokenEngine, path: str, max_unsent: int = MAX_UNSENT, sock: socket.socket | None = None
) -> AsyncIterator[Host]:
    """Offers a loaded engine on a socket that only this user may open; afterwards the path is gone.

    `sock` is bound to the path already, by who may do so.
    """
    sock = sock or bind_private(path)
    async with task_group() as tasks:
        host = Host(engine, tasks, max_unsent)
        server = await asyncio.get_running_loop().create_unix_server(host.session, sock=sock, backlog=BACKLOG)
        try:
            yield host
        finally:
            server.close()
            await host.drain(0)
            remove_socket(path)
