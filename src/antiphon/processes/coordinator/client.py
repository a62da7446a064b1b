"""An HTTP process's connection to the coordinator, in another process or in this one.

It connects by itself, and again after the coordinator died; then it restates its own claims and revisions. If
several processes may run the coordinator, the one that holds a lock runs it.
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
    CompletedReply,
    DirectoryNews,
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
from antiphon.processes.coordinator.session import ProcessSession
from antiphon.processes.ipc import Channel, Frame, FrameError, FrameReader, Incompatible
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
"""Seconds to wait for an absent coordinator. A new one starts within one or two."""

PING_S = 1.0
"""Seconds in which a running coordinator answers."""

REPORT_S = 0.5
"""Seconds between two reports of changed metrics."""

LEAVING_S = 5.0
"""Seconds at the end for the coordinator of this process to write to the database."""

LOCK_SUFFIX = ".lock"


Begin = Callable[[], AbstractAsyncContextManager[Coordinator]]
"""Starts a coordinator inside this process."""


class LocalLink:
    """The link from a coordinator to its own process."""

    unsent = 0

    def __init__(self, receive: Callable[[Frame], None]) -> None:
        self._receive = receive

    def put(self, message: Frame) -> None:
        asyncio.get_running_loop().call_soon(self._receive, message)

    def cut(self, reason: str) -> None:
        """Does nothing: the link ends with the coordinator."""


class CoordinatorClient:
    """The coordinator for one HTTP process. `keep_connected` must run beside it, in a task group."""

    def __init__(self, path: str, clock: Clock, begin: Begin | None = None) -> None:
        """`path`: the coordinator's socket. `begin`: starts a coordinator here; None where it has its own
        process."""
        self._path = path
        self._begin = begin
        self._loop = asyncio.get_running_loop()
        self.limits = SharedLimiter(self, clock)
        self.coordinator: Coordinator | None = None
        """The coordinator in this process, if any."""
        self._channel: Channel[ToProcess] | None = None
        self._send: Callable[[ToCoordinator], None] | None = None
        self._there = asyncio.Event()
        self._leaving = asyncio.Event()
        """Set when this process must not start a coordinator any more."""
        self._closed = False
        self._is_silent = False
        self._numbers = itertools.count(1)
        self._calls: dict[int, asyncio.Future[Reply | None]] = {}
        """Calls that wait for a reply; the result None means that the coordinator is gone."""
        self._known: dict[Topic, int] = {}
        self._names = Names(0, b"")
        self._follow: Callable[[bytes], None] = lambda _: None
        self._look = threading.Event()
        self._series: Callable[[], Iterable[Series]] = lambda: ()
        self._inherited = Totals()
        """Totals of processes that ended while this one ran the coordinator."""
        self._reported = Totals()

    async def wait_connected(self, within: float | None = None) -> None:
        """Waits until a coordinator is connected. `within`: the most seconds to wait."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._there.wait()

    @property
    def is_reachable(self) -> bool:
        """Whether the coordinator is connected and answered the last ping."""
        return self._there.is_set() and not self._is_silent

    async def ping(self) -> bool:
        """Whether the coordinator answers within a second."""
        try:
            async with asyncio.timeout(PING_S):
                await self.call(Ping)
        except TimeoutError:
            self._is_silent = True
        return not self._is_silent

    def send(self, message: ToCoordinator) -> None:
        """Sends a message; without a coordinator it is dropped."""
        if self._send is not None:
            self._send(message)

    async def call(self, make: Callable[[int], Question]) -> Reply:
        """Sends a question and returns the reply. Asks the next coordinator again if one goes away."""
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
        """The revision of the adapter names; 0 before the first."""
        return self._names.revision

    def follow(self, changed: Callable[[bytes], None]) -> None:
        """Calls `changed` with the shared names, now and whenever they change."""
        self._follow = changed
        if self._names.revision:
            changed(self._names.names)

    async def publish(self, revision: int, names: bytes, change: bytes = b"") -> bool:
        """Replaces the names of a revision in every process, and keeps the change over a restart; False where
        another process was faster.

        Raises EngineError.
        """
        try:
            async with asyncio.timeout(PATIENCE_S):
                reply = await self.call(lambda call: Publish(call, revision, names, change))
        except TimeoutError:
            raise EngineError("the adapters cannot be changed: the coordinator is away; try again") from None
        if isinstance(reply, Refused):
            raise reply.error.to_exception()
        return isinstance(reply, CompletedReply) and reply.is_done

    # --- revisions of the directory -------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        """Blocks the thread until there may be a new revision. `seconds`: the longest wait."""
        if self._look.wait(seconds):
            self._look.clear()

    def report_revision(self, revision: int) -> None:
        """Reports that this process has applied a revision of the directory. Any thread may call it."""
        self._loop.call_soon_threadsafe(self._report_known, Topic.DIRECTORY, revision)

    async def announce(self, revision: int) -> None:
        """Waits until every reachable process knows a revision."""
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await self.call(lambda call: Announce(call, revision))

    def _report_known(self, topic: Topic, revision: int) -> None:
        self._known[topic] = revision
        self.send(KnownRevision(topic, revision))

    def add_totals(self, totals: Totals) -> None:
        """Adds counts to the metrics of this process."""
        self._inherited.add(totals)

    # --- metrics --------------------------------------------------------------------------------------------

    def set_series(self, series: Callable[[], Iterable[Series]]) -> None:
        """Sets the metrics to report."""
        self._series = series

    async def collect_totals(self) -> tuple[int, Totals]:
        """Returns the number of other processes and their totals; zero and none if the coordinator stays
        away."""
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
        totals = Totals.from_series(self._series())
        totals.add(self._inherited)
        if totals != self._reported:
            self._reported = totals
            self.send(Report(totals))

    # --- the connection -------------------------------------------------------------------------------------

    async def keep_connected(self) -> None:
        """Stays connected to a coordinator, or runs it, until closed."""
        with _open_lock(f"{self._path}{LOCK_SUFFIX}") as lock:
            async with task_group() as group:
                while not self._closed:
                    await self._connect_or_coordinate(lock, group)
                    await asyncio.sleep(PAUSE_S)

    def leave(self) -> None:
        """Hands the coordinator over: another process takes this one's place."""
        self._leaving.set()

    def close(self) -> None:
        """Ends the connection after all messages are sent."""
        self._closed = True
        self._leaving.set()
        if self._channel is not None:
            self._report()
            self._channel.finish()

    async def _coordinate(self, begin: Begin, lock: int | None, released: asyncio.Event) -> None:
        """Runs the coordinator until this process leaves.

        Its counters are saved before another process can start one. `released` is set then: this process uses
        the new one, even while its own drain still ends.
        """
        async with begin() as coordinator:
            session = ProcessSession(coordinator)
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
        """Runs the coordinator if no other process does; otherwise connects to it."""
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
        """Runs one connection from greeting to end. Raises OSError, TimeoutError or Incompatible without
        one."""
        over = asyncio.Event()

        def lose(reason: str) -> None:
            over.set()
            if self._channel is channel:
                self._channel = None
                level = logging.DEBUG if self._closed else logging.WARNING
                record("coordinator_lost", level, reason=reason)
                self._lose_coordinator()

        def receive(message: ToProcess) -> None:
            if isinstance(message, Welcome):  # at once, since claims are restated in reply
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
        """Notes that the coordinator is gone. Pending calls ask the next one."""
        self._send = None
        self._there.clear()
        self.limits.lose()
        calls, self._calls = self._calls, {}
        for answer in calls.values():
            if not answer.done():
                answer.set_result(None)

    def _receive(self, message: Frame) -> None:
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
            case LimitsReply(call) | Refused(call) | TotalsReply(call) | CompletedReply(call):
                self._is_silent = False
                if (answer := self._calls.get(call)) is not None and not answer.done():
                    answer.set_result(message)
            case _:
                raise FrameError("the coordinator said Hello twice")

    def _learn(self, names: Names) -> None:
        if names.revision != self._names.revision:
            self._names = names
            if names.revision:  # otherwise the coordinator has no names, and gets them with the next change
                self._follow(names.names)
        self._report_known(Topic.ADAPTERS, names.revision)


@contextmanager
def _open_lock(path: str) -> Iterator[int | None]:
    """Opens a lock file; yields None where it cannot be created, as on a full disk."""
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
    """Whether this process may run the coordinator now."""
    return lock is None or try_lock(lock)


@asynccontextmanager
async def connect_coordinator(
    path: str, clock: Clock, begin: Begin | None = None
) -> AsyncIterator[CoordinatorClient]:
    """Keeps a coordinator connected while the context lasts. Raises what `begin` raises."""
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
