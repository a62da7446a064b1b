"""An HTTP process's end of the coordinator: it asks another process, or the coordinator that it runs itself.

It connects by itself, and again after the coordinator died; then it restates what it holds. Of several
processes that may run the coordinator the one that holds a lock does.
"""

import asyncio
import fcntl
import itertools
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress

from antiphon.domain.context import Clock
from antiphon.errors import EngineError
from antiphon.ledger.segments import try_lock
from antiphon.processes.coordinator.coordinator import Coordinator
from antiphon.processes.coordinator.frames import (
    TO_PROCESS,
    Announce,
    AskTotals,
    DirectoryNews,
    Done,
    KnownRevision,
    LimitsReply,
    Names,
    Ping,
    Publish,
    Question,
    Refused,
    Reply,
    Report,
    ToCoordinator,
    Topic,
    ToProcess,
    TotalsReply,
    Welcome,
)
from antiphon.processes.coordinator.limiter import SharedLimiter
from antiphon.processes.coordinator.session import Session
from antiphon.processes.ipc.channel import Channel
from antiphon.processes.ipc.frames import FrameError, FrameReader, Incompatible, Message
from antiphon.task_group import task_group
from antiphon.telemetry.exposition import Series, Totals
from antiphon.telemetry.logs import record

JOIN_S = 10.0
"""Seconds that a process waits for the coordinator before it serves."""

PAUSE_S = 0.02
"""Seconds between attempts to connect; one on a local socket costs microseconds."""

GREETING_S = 5.0
"""Seconds for the coordinator's greeting."""

PATIENCE_S = 3.0
"""Seconds for which a coordinator that is away is waited for: it is back within one or two."""

PING_S = 1.0
"""Seconds in which a coordinator that is not stopped answers."""

REPORT_S = 0.5
"""Seconds between two reports of what a process counts, where something has changed."""

LEAVING_S = 5.0
"""Seconds for what a coordinator inside this process has to bring into the database at the end."""

LOCK_SUFFIX = ".lock"


Begin = Callable[[], AbstractAsyncContextManager[Coordinator]]
"""Begins a coordinator inside this process."""


class LocalLink:
    """The way from a coordinator to the process that runs it."""

    unsent = 0

    def __init__(self, receive: Callable[[Message], None]) -> None:
        self._receive = receive

    def put(self, message: Message) -> None:
        asyncio.get_running_loop().call_soon(self._receive, message)

    def cut(self, reason: str) -> None:
        """It lasts as long as the coordinator."""


class CoordinatorClient:
    """The coordinator as one HTTP process uses it. `keep_connected` must run beside it, in a task group."""

    def __init__(self, path: str, clock: Clock, begin: Begin | None = None) -> None:
        """`path`: of the coordinator's socket. `begin`: None where a process of its own coordinates."""
        self._path = path
        self._begin = begin
        self._loop = asyncio.get_running_loop()
        self.limits = SharedLimiter(self, clock)
        self.coordinator: Coordinator | None = None
        """The one in this process."""
        self._channel: Channel[ToProcess] | None = None
        self._send: Callable[[ToCoordinator], None] | None = None
        self._there = asyncio.Event()
        self._leaving = asyncio.Event()
        """Set when this process begins no coordinator any more."""
        self._closed = False
        self._is_silent = False
        self._numbers = itertools.count(1)
        self._calls: dict[int, asyncio.Future[Reply | None]] = {}
        """What is waited for; None: the coordinator is gone."""
        self._known: dict[Topic, int] = {}
        self._names = Names(0, b"")
        self._follow: Callable[[bytes], None] = lambda _: None
        self._look = threading.Event()
        self._series: Callable[[], Iterable[Series]] = lambda: ()
        self._inherited = Totals()
        """Of processes that ended while this one coordinated."""
        self._reported = Totals()

    async def wait_connected(self, within: float | None = None) -> None:
        """Waits until there is a coordinator, for so many seconds at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._there.wait()

    @property
    def is_reachable(self) -> bool:
        """Whether the coordinator can be asked now, as far as it is known."""
        return self._there.is_set() and not self._is_silent

    async def ping(self) -> bool:
        """Whether the coordinator is there and answers within a moment."""
        try:
            async with asyncio.timeout(PING_S):
                await self.call(Ping)
        except TimeoutError:
            self._is_silent = True
        return not self._is_silent

    def send(self, message: ToCoordinator) -> None:
        """Tells the coordinator something; while there is none, nobody hears it."""
        if self._send is not None:
            self._send(message)

    async def call(self, make: Callable[[int], Question]) -> Reply:
        """What a coordinator answers that does not go away meanwhile."""
        while True:
            await self._there.wait()
            number = next(self._numbers)
            answer: asyncio.Future[Reply | None] = self._loop.create_future()
            self._calls[number] = answer
            try:
                self.send(make(number))
                if (reply := await answer) is not None:
                    return reply
            finally:
                self._calls.pop(number, None)

    # --- names of adapters ----------------------------------------------------------------------------------

    @property
    def revision(self) -> int:
        """Of the names; 0: there were none yet."""
        return self._names.revision

    def follow(self, changed: Callable[[bytes], None]) -> None:
        """Calls this with the names that all processes have, now and whenever they change."""
        self._follow = changed
        if self._names.revision:
            changed(self._names.names)

    async def publish(self, revision: int, names: bytes) -> bool:
        """Puts other names in the place of those of a revision, in every process; False where another process
        was faster. Raises EngineError."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                reply = await self.call(lambda call: Publish(call, revision, names))
        except TimeoutError:
            raise EngineError("the adapters cannot be changed: the coordinator is away; try again") from None
        if isinstance(reply, Refused):
            raise reply.error.to_exception()
        return isinstance(reply, Done) and reply.is_done

    # --- revisions of the directory -------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        """Blocks a thread until there may be a new revision, but no longer than so."""
        if self._look.wait(seconds):
            self._look.clear()

    def report_revision(self, revision: int) -> None:
        """This process answers by that revision from now on. To be called in any thread."""
        self._loop.call_soon_threadsafe(self._report_known, Topic.DIRECTORY, revision)

    async def announce(self, revision: int) -> None:
        """Waits until every process that can be reached knows the revision."""
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await self.call(lambda call: Announce(call, revision))

    def _report_known(self, topic: Topic, revision: int) -> None:
        self._known[topic] = revision
        self.send(KnownRevision(topic, revision))

    # --- metrics --------------------------------------------------------------------------------------------

    def set_series(self, series: Callable[[], Iterable[Series]]) -> None:
        """Reports these numbers from now on."""
        self._series = series

    async def collect_totals(self) -> tuple[int, Totals]:
        """How many other processes there are, and what they count. A coordinator that is away is waited for a
        moment; then nothing is known of others."""
        processes, totals = 0, Totals()
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                reply = await self.call(AskTotals)
                if isinstance(reply, TotalsReply):
                    processes, totals = reply.processes, reply.totals
        totals.add(self._inherited)
        return processes, totals

    async def _keep_reporting(self, over: asyncio.Event) -> None:
        self._reported = Totals()
        while not over.is_set():
            self._report()
            with suppress(TimeoutError):
                async with asyncio.timeout(REPORT_S):
                    await over.wait()

    def _report(self) -> None:
        totals = Totals.of(self._series())
        totals.add(self._inherited)
        if totals != self._reported:
            self._reported = totals
            self.send(Report(totals))

    # --- the connection -------------------------------------------------------------------------------------

    async def keep_connected(self) -> None:
        """Asks a coordinator, or runs it, until closed."""
        with _open_lock(f"{self._path}{LOCK_SUFFIX}") as lock:
            async with task_group() as group:
                while not self._closed:
                    await self._connect_or_coordinate(lock, group)
                    await asyncio.sleep(PAUSE_S)

    def leave(self) -> None:
        """Another process takes this one's place: it counts from now on."""
        self._leaving.set()

    def close(self) -> None:
        """Ends the connection after what was put into it."""
        self._closed = True
        self._leaving.set()
        if self._channel is not None:
            self._report()
            self._channel.finish()

    async def _coordinate(self, begin: Begin, lock: int | None, released: asyncio.Event) -> None:
        """Runs the coordinator until this process leaves. What it counted is saved before another process can
        begin one; from then on, `released`, that one is asked, also while this one's drain ends."""
        async with begin() as coordinator:
            session = Session(coordinator)
            session.link = LocalLink(self._receive)
            self._send, self.coordinator = session.receive, coordinator
            coordinator.join(session)
            try:
                await self._there.wait()
                await session.wait_restored()
                if coordinator.counts_limits:
                    self.limits.local = coordinator.limiter
                await self._leaving.wait()
            finally:
                self.coordinator = None
                self._lose_coordinator()
                self._inherited.add(coordinator.ended)
                coordinator.save_snapshot()
                if lock is not None:
                    fcntl.flock(lock, fcntl.LOCK_UN)
                released.set()

    async def _connect_or_coordinate(self, lock: int | None, group: asyncio.TaskGroup) -> None:
        """Runs the coordinator where nobody else does; else asks the one that is there."""
        if self._begin is not None and not self._leaving.is_set() and _can_coordinate(lock):
            released = asyncio.Event()
            group.create_task(self._coordinate(self._begin, lock, released))
            await released.wait()
            return
        try:
            await self._run_connection()
        except Incompatible as problem:
            record("coordinator_incompatible", logging.ERROR, reason=str(problem))
            self._closed = True
        except (OSError, TimeoutError):
            pass

    async def _run_connection(self) -> None:
        """One connection from greeting to end. Raises OSError, TimeoutError or Incompatible when there is
        none."""
        over = asyncio.Event()

        def lose(reason: str) -> None:
            over.set()
            if self._channel is channel:
                self._channel = None
                level = logging.DEBUG if self._closed else logging.WARNING
                record("coordinator_lost", level, reason=reason)
                self._lose_coordinator()

        def receive(message: ToProcess) -> None:
            if isinstance(message, Welcome):  # not later: it is answered by what is restated
                self._channel, self._send = channel, channel.put
            self._receive(message)

        channel: Channel[ToProcess] = Channel(FrameReader(TO_PROCESS), receive, lose)
        await self._loop.create_unix_connection(lambda: channel, self._path)
        try:
            async with asyncio.timeout(GREETING_S):
                await channel.greeted
                await self.wait_connected()
            await self._keep_reporting(over)
        finally:
            channel.cut("this side closed")

    def _lose_coordinator(self) -> None:
        """There is no coordinator: what was asked of it is asked again of the next."""
        self._send = None
        self._there.clear()
        self.limits.lose()
        calls, self._calls = self._calls, {}
        for answer in calls.values():
            if not answer.done():
                answer.set_result(None)

    def _receive(self, message: Message) -> None:
        match message:
            case Welcome(began):
                for each in self.limits.restate(began):
                    self.send(each)
                for topic, revision in self._known.items():
                    self.send(KnownRevision(topic, revision))
                self._is_silent = False
                self._there.set()
            case Names():
                self._learn(message)
            case DirectoryNews():
                self._look.set()
            case LimitsReply(call) | Refused(call) | TotalsReply(call) | Done(call):
                self._is_silent = False
                if (answer := self._calls.get(call)) is not None and not answer.done():
                    answer.set_result(message)
            case _:
                raise FrameError("the coordinator said Hello twice")

    def _learn(self, names: Names) -> None:
        if names.revision != self._names.revision:
            self._names = names
            if names.revision:  # else the coordinator has lost them, and hears them with the next change
                self._follow(names.names)
        self._report_known(Topic.ADAPTERS, names.revision)


@contextmanager
def _open_lock(path: str) -> Iterator[int | None]:
    """A file whose lock may be taken, and is let go of at the end; None where it cannot be made, as on a full
    disk."""
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as problem:
        record("coordinator_alone", logging.WARNING, problem=os.strerror(problem.errno or 0))
        yield None
        return
    try:
        yield lock
    finally:
        os.close(lock)


def _can_coordinate(lock: int | None) -> bool:
    """Whether this process may coordinate now."""
    return lock is None or try_lock(lock)


@asynccontextmanager
async def connect_coordinator(
    path: str, clock: Clock, begin: Begin | None = None
) -> AsyncIterator[CoordinatorClient]:
    """The coordinator, kept connected while the context lasts. Raises what `begin` raises."""
    client = CoordinatorClient(path, clock, begin)
    async with task_group() as group:
        connecting = group.create_task(client.keep_connected())
        try:
            await client.wait_connected(JOIN_S)
            yield client
        finally:
            client.close()
            await asyncio.wait([connecting], timeout=LEAVING_S)
            connecting.cancel()
