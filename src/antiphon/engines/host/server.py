"""The engine host's side of the socket: any `TokenEngine`, offered to whoever may open the path.

Each connection is a session; its end, in either direction, ends the sequences it began and no others. A call
that fails is answered with its error and never ends the host. Nothing here loads an engine or ends the
process.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path

from antiphon.engines.base import TokenEngine
from antiphon.engines.host.channel import Channel
from antiphon.engines.host.frames import (
    TO_HOST,
    AskInfo,
    Asking,
    AskVocabulary,
    Cancel,
    Counted,
    Facts,
    Failed,
    FrameError,
    FrameReader,
    Generate,
    Hello,
    Prepare,
    Reply,
    Table,
    ToHost,
    Tokenize,
    Tokenized,
    event_reply,
)
from antiphon.errors import AntiphonError, EngineError, ErrorReport
from antiphon.telemetry.logs import LOGGER, record

BACKLOG = 64
"""Connections that may wait to be accepted; a gateway opens one."""

DRAIN_PAUSE = 0.02
"""Seconds between looks at whether all calls have ended."""


class Session:
    """One connection: its calls, each a task of the host's group. `ended` is told when it is over."""

    def __init__(
        self, engine: TokenEngine, tasks: asyncio.TaskGroup, ended: Callable[["Session"], None]
    ) -> None:
        self._engine = engine
        self._tasks = tasks
        self._ended = ended
        self._calls: dict[int, asyncio.Task[None]] = {}
        self.channel: Channel[ToHost] = Channel(FrameReader(TO_HOST), self._receive, self._lost)

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
        task = self._tasks.create_task(self._serve(asking))
        self._calls[asking.call] = task
        task.add_done_callback(lambda _: self._calls.pop(asking.call))

    def _lost(self, reason: str) -> None:
        record("gateway_left", reason=reason, calls=len(self._calls))
        for task in self._calls.values():
            task.cancel()
        self._ended(self)

    async def _serve(self, asking: Asking) -> None:
        """One call from beginning to end. A border: whatever the engine raises becomes an answer."""
        try:
            if isinstance(asking, Generate):
                await self._generate(asking)
            else:
                self.channel.put(await answer(self._engine, asking))
        except AntiphonError as error:
            self.channel.put(Failed(asking.call, ErrorReport.of(error)))
        except FrameError as problem:
            self._fail(asking.call, f"the engine's answer is too large: {problem}")
        except Exception:  # noqa: BLE001 - the border around an engine: one call fails, the host goes on
            LOGGER.exception("engine_call_failed")
            self._fail(asking.call, "the engine failed at this request; the server's log says why")

    def _fail(self, call: int, message: str) -> None:
        self.channel.put(Failed(call, ErrorReport.of(EngineError(message))))

    async def _generate(self, asking: Generate) -> None:
        async with aclosing(self._engine.generate(asking.request)) as events:
            async for event in events:
                self.channel.put(event_reply(asking.call, event))


async def answer(engine: TokenEngine, asking: Asking) -> Reply:
    """What the engine says to a call that makes no token."""
    match asking:
        case Prepare(call, segments):
            return Counted(call, await engine.prepare(segments))
        case Tokenize(call, pieces, add_bos):
            return Tokenized(call, await engine.tokenize(pieces, add_bos))
        case AskVocabulary(call):
            return Table(call, await engine.vocabulary())
        case AskInfo(call):
            return Facts(call, await engine.info())
        case Generate(call):
            raise FrameError(f"call {call} makes tokens")


class Host:
    """Every session of one engine."""

    def __init__(self, engine: TokenEngine, tasks: asyncio.TaskGroup) -> None:
        self._engine = engine
        self._tasks = tasks
        self._sessions: set[Session] = set()

    def session(self) -> Channel[ToHost]:
        """The protocol of a new connection."""
        session = Session(self._engine, self._tasks, self._sessions.discard)
        self._sessions.add(session)
        return session.channel

    async def drain(self, seconds: float) -> None:
        """Waits until no call runs, or for this long; then ends every connection."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while any(session.busy() for session in self._sessions):  # noqa: ASYNC110 - no one event says it
                    await asyncio.sleep(DRAIN_PAUSE)
        for session in tuple(self._sessions):
            session.channel.cut("the host is stopping")


@asynccontextmanager
async def listening(engine: TokenEngine, path: str) -> AsyncIterator[Host]:
    """Offers a loaded engine on a socket that only this user may open; afterwards the path is gone."""
    sock = bind_private(path)
    async with asyncio.TaskGroup() as tasks:
        host = Host(engine, tasks)
        server = await asyncio.get_running_loop().create_unix_server(host.session, sock=sock, backlog=BACKLOG)
        try:
            yield host
        finally:
            server.close()
            await host.drain(0)
            remove(path)


def bind_private(path: str) -> socket.socket:
    """A socket at the path, mode 0600 before anybody can connect; what lay there before is replaced."""
    remove(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.bind(path)
    Path(path).chmod(0o600)
    return sock


def remove(path: str) -> None:
    """Takes a socket's path away, if it is there."""
    Path(path).unlink(missing_ok=True)
