"""An HTTP process's connection to the coordinator, which runs in another process or in this one.

The client connects by itself, and again after the coordinator died. To the new coordinator it repeats its own
claims and revisions. If several processes can run the coordinator, the process that holds a lock runs it.
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
    ChainReply,
    CompletedReply,
    DirectoryChanged,
    ItemsReply,
    KnownRevision,
    LimitsReply,
    Names,
    Ping,
    Publish,
    Question,
    Refused,
    Reply,
    Report,
    ResponseReply,
    ToCoordinator,
    Topic,
    ToProcess,
    TotalsReply,
    Welcome,
)
from antiphon.processes.coordinator.limiter import PATIENCE_S, SharedLimiter
from antiphon.processes.coordinator.session import ProcessSession
from antiphon.processes.ipc import Channel, Frame, FrameError, FrameReader, Incompatible
from antiphon.task_group import task_group
from antiphon.telemetry.exposition import Series, Totals
from antiphon.telemetry.logs import record

JOIN_S = 10.0
"""Seconds that a process waits for the coordinator before it serves."""

PAUSE_S = 0.02
"""Seconds between attempts to connect. An attempt on a local socket takes microseconds."""

GREETING_S = 5.0
"""Seconds for the coordinator's greeting."""

PING_S = 1.0
"""Seconds in which a running coordinator must answer."""

REPORT_S = 0.5
"""Seconds between two reports of changed metrics."""

LEAVING_S = 5.0
"""Seconds at the end in which the coordinator of this process can write to the database."""

LOCK_SUFFIX = ".lock"

OpenCoordinator = Callable[[], AbstractAsyncContextManager[Coordinator]]
"""Opens a coordinator inside this process."""


class LocalLink:
    """The link from a coordinator to the process in which it runs."""

    unsent = 0

    def __init__(self, receive: Callable[[Frame], None]) -> None:
        self._receive = receive

    def put(self, message: Frame) -> None:
        asyncio.get_running_loop().call_soon(self._receive, message)

    def cut(self, reason: str) -> None:
        """Does nothing. The link ends with the coordinator."""


class CoordinatorClient:
    """The coordinator, as one HTTP process uses it. `keep_connected` must run in a task."""

    def __init__(self, path: str, clock: Clock, open_local: OpenCoordinator | None = None) -> None:
        """`path`: the coordinator's socket. `open_local` starts a coordinator in this process; None if the
        coordinator has a separate process."""
        self._path = path
        self._open_local = open_local
        self._loop = asyncio.get_running_loop()
        self.limits = SharedLimiter(self, clock)
        self.local_coordinator: Coordinator | None = None
        """The coordinator, if it runs in this process."""
        self._channel: Channel[ToProcess] | None = None
        self._send: Callable[[ToCoordinator], None] | None = None
        self._connected = asyncio.Event()
        self._must_not_coordinate = asyncio.Event()
        """Set when this process must no longer start a coordinator."""
        self._is_closed = False
        self._is_silent = False
        """Whether the coordinator did not answer the last ping, and nothing since."""
        self.can_read_limits = True
        """Whether the coordinator could read the usage of all limits, by its answer to the last ping."""
        self._call_numbers = itertools.count(1)
        self._calls: dict[int, asyncio.Future[Reply | None]] = {}
        """Calls that wait for a reply, by number. The reply None means that the coordinator was lost
        before."""
        self._known_revisions: dict[Topic, int] = {}
        self._names = Names(0, b"")
        self._on_names: Callable[[bytes], None] = lambda _: None
        self._has_new_revision = threading.Event()
        self._series: Callable[[], Iterable[Series]] = lambda: ()
        self._extra_totals = Totals()
        """Counts that no series of this process has: those of `add_totals`, and those of processes that ended
        while this process ran the coordinator."""
        self._reported = Totals()

    async def wait_connected(self, timeout_s: float | None = None) -> None:
        """Waits until a coordinator is connected, or until `timeout_s` seconds have passed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._connected.wait()

    @property
    def is_reachable(self) -> bool:
        """Whether the coordinator is connected and answered the last ping."""
        return self._connected.is_set() and not self._is_silent

    async def ping(self) -> bool:
        """Returns whether the coordinator answers within a second."""
        try:
            async with asyncio.timeout(PING_S):
                reply = await self.call(Ping)
                self.can_read_limits = isinstance(reply, CompletedReply) and reply.is_done
        except TimeoutError:
            self._is_silent = True
        return not self._is_silent

    def send(self, message: ToCoordinator) -> None:
        """Sends a message. Drops it if there is no coordinator."""
        if self._send is not None:
            self._send(message)

    async def call(self, build_question: Callable[[int], Question]) -> Reply:
        """Sends a question and returns the reply. Repeats the question if the coordinator is lost.
        `build_question` builds the question with its number."""
        while True:
            await self._connected.wait()
            call_number = next(self._call_numbers)
            reply_future: asyncio.Future[Reply | None] = self._loop.create_future()
            self._calls[call_number] = reply_future
            try:
                self.send(build_question(call_number))
                if (reply := await reply_future) is not None:
                    return reply
            finally:
                self._calls.pop(call_number, None)

    # --- names of adapters ----------------------------------------------------------------------------------

    @property
    def revision(self) -> int:
        """The revision of the adapter names; 0 if no names were published yet."""
        return self._names.revision

    def subscribe_names(self, on_names: Callable[[bytes], None]) -> None:
        """Calls `on_names` with the shared adapter names, now and at each change."""
        self._on_names = on_names
        if self._names.revision:
            on_names(self._names.names)

    async def publish(self, revision: int, names: bytes, change: bytes = b"") -> bool:
        """Replaces the names of this revision in every process, and stores `change` for the next start.
        Returns False if another process has replaced the names first. Raises EngineError."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                reply = await self.call(lambda call: Publish(call, revision, names, change))
        except TimeoutError:
            raise EngineError(
                "the adapters cannot be changed: the coordinator is unavailable; try again"
            ) from None
        if isinstance(reply, Refused):
            raise reply.error.to_exception()
        return isinstance(reply, CompletedReply) and reply.is_done

    # --- revisions of the directory -------------------------------------------------------------------------

    def wait_for_revision(self, seconds: float) -> None:
        """Blocks the thread until the coordinator reports a new revision of the directory, or until `seconds`
        have passed."""
        if self._has_new_revision.wait(seconds):
            self._has_new_revision.clear()

    def report_revision(self, revision: int) -> None:
        """Reports that this process has read a revision of the directory. Any thread can call it."""
        self._loop.call_soon_threadsafe(self._report_known_revision, Topic.DIRECTORY, revision)

    async def announce(self, revision: int) -> None:
        """Tells the other processes about a revision, and waits until every reachable process has read it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await self.call(lambda call: Announce(call, revision))

    def _report_known_revision(self, topic: Topic, revision: int) -> None:
        """Reports to the coordinator which revision of a topic this process uses."""
        self._known_revisions[topic] = revision
        self.send(KnownRevision(topic, revision))

    # --- metrics --------------------------------------------------------------------------------------------

    def add_totals(self, totals: Totals) -> None:
        """Adds counts to the metrics of this process."""
        self._extra_totals.add(totals)

    def set_series(self, series: Callable[[], Iterable[Series]]) -> None:
        """Sets the function that returns the metrics to report."""
        self._series = series

    async def collect_totals(self) -> tuple[int, Totals]:
        """Returns the number of other processes, and the sum of their metrics and of `add_totals`. Without a
        reply from the coordinator, the sum contains no other process."""
        processes, totals = 0, Totals()
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                reply = await self.call(AskTotals)
                if isinstance(reply, TotalsReply):
                    processes, totals = reply.processes, reply.totals
        totals.add(self._extra_totals)
        return processes, totals

    async def _keep_reporting(self, closed: asyncio.Event) -> None:
        """Reports changed metrics periodically until `closed` is set."""
        self._reported = Totals()
        while not closed.is_set():
            self._report()
            with suppress(TimeoutError):
                async with asyncio.timeout(REPORT_S):
                    await closed.wait()

    def _report(self) -> None:
        """Reports the metrics of this process, if they have changed since the last report."""
        totals = Totals.from_series(self._series())
        totals.add(self._extra_totals)
        if totals != self._reported:
            self._reported = totals
            self.send(Report(totals))

    # --- the connection -------------------------------------------------------------------------------------

    async def keep_connected(self) -> None:
        """Stays connected to a coordinator, or runs it, until `close`."""
        with _open_lock(f"{self._path}{LOCK_SUFFIX}") as lock:
            async with task_group() as group:
                while not self._is_closed:
                    await self._connect_or_coordinate(lock, group)
                    await asyncio.sleep(PAUSE_S)

    def close_local(self) -> None:
        """Stops running the coordinator in this process, so that another process can run it."""
        self._must_not_coordinate.set()

    def close(self) -> None:
        """Ends the connection after all messages are sent."""
        self._is_closed = True
        self._must_not_coordinate.set()
        if self._channel is not None:
            self._report()
            self._channel.finish()

    async def _coordinate(
        self, open_local: OpenCoordinator, lock: int | None, released: asyncio.Event
    ) -> None:
        """Runs the coordinator until `close_local`.

        Its counters are saved before another process can start a coordinator. `released` is set after that:
        this process can connect to the new coordinator while the drain of the old one still ends.
        """
        async with open_local() as coordinator:
            session = ProcessSession(coordinator)
            session.link = LocalLink(self._receive)
            self._send, self.local_coordinator = session.receive, coordinator
            coordinator.add_session(session)
            try:
                await self._connected.wait()
                await session.wait_restored()
                if coordinator.counts_limits:
                    self.limits.local = coordinator.limiter
                await self._must_not_coordinate.wait()
            finally:
                self.local_coordinator = None
                self._lose_coordinator()
                self._extra_totals.add(coordinator.ended_totals)
                coordinator.save_snapshot()
                if lock is not None:
                    fcntl.flock(lock, fcntl.LOCK_UN)
                released.set()

    async def _connect_or_coordinate(self, lock: int | None, group: asyncio.TaskGroup) -> None:
        """Runs the coordinator if no other process runs it. If another process does, connects to it."""
        if self._open_local is not None and not self._must_not_coordinate.is_set() and _can_coordinate(lock):
            released = asyncio.Event()
            group.create_task(self._coordinate(self._open_local, lock, released))
            await released.wait()
            return
        try:
            await self._run_connection()
        except Incompatible as problem:
            record("coordinator_incompatible", logging.ERROR, reason=str(problem))
            self._is_closed = True
        except (OSError, TimeoutError):
            pass

    async def _run_connection(self) -> None:
        """Runs one connection from the greeting to its end. Raises OSError, TimeoutError or Incompatible if
        it cannot connect."""
        closed = asyncio.Event()

        def lose(reason: str) -> None:
            closed.set()
            if self._channel is channel:
                self._channel = None
                level = logging.DEBUG if self._is_closed else logging.WARNING
                record("coordinator_lost", level, reason=reason)
                self._lose_coordinator()

        def receive(message: ToProcess) -> None:
            if isinstance(message, Welcome):  # before `_receive`, which sends the claims
                self._channel, self._send = channel, channel.put
            self._receive(message)

        channel: Channel[ToProcess] = Channel(FrameReader(TO_PROCESS), receive, lose)
        await self._loop.create_unix_connection(lambda: channel, self._path)
        try:
            async with asyncio.timeout(GREETING_S):
                await channel.greeted
                await self.wait_connected()
            await self._keep_reporting(closed)
        finally:
            channel.cut("this side closed")

    def _lose_coordinator(self) -> None:
        """Handles the loss of the coordinator. Pending calls repeat their question."""
        self._send = None
        self._connected.clear()
        self.limits.forget_coordinator()
        calls, self._calls = self._calls, {}
        for reply_future in calls.values():
            if not reply_future.done():
                reply_future.set_result(None)

    def _receive(self, message: Frame) -> None:
        """Handles a message of the coordinator. Raises FrameError for a second Hello."""
        match message:
            case Welcome(started_ms):
                for claim in self.limits.repeat_claims(started_ms):
                    self.send(claim)
                for topic, revision in self._known_revisions.items():
                    self.send(KnownRevision(topic, revision))
                self._is_silent = False
                self._connected.set()
            case Names():
                self._update_names(message)
            case DirectoryChanged():
                self._has_new_revision.set()
            case (
                LimitsReply(call)
                | Refused(call)
                | TotalsReply(call)
                | CompletedReply(call)
                | ResponseReply(call)
                | ChainReply(call)
                | ItemsReply(call)
            ):
                self._is_silent = False
                if (reply_future := self._calls.get(call)) is not None and not reply_future.done():
                    reply_future.set_result(message)
            case _:
                raise FrameError("the coordinator sent Hello twice")

    def _update_names(self, names: Names) -> None:
        """Passes new adapter names to the subscriber, and reports their revision."""
        if names.revision != self._names.revision:
            self._names = names
            if names.revision:  # 0: the coordinator has no names until the next change
                self._on_names(names.names)
        self._report_known_revision(Topic.ADAPTERS, names.revision)


@contextmanager
def _open_lock(path: str) -> Iterator[int | None]:
    """Opens a lock file. Yields None if the file cannot be created, as on a full disk."""
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
    """Whether this process can run the coordinator now."""
    return lock is None or try_lock(lock)


@asynccontextmanager
async def connect_coordinator(
    path: str, clock: Clock, open_local: OpenCoordinator | None = None
) -> AsyncIterator[CoordinatorClient]:
    """Yields a client that stays connected to a coordinator until the block ends. Raises the errors of
    `open_local`."""
    client = CoordinatorClient(path, clock, open_local)
    async with task_group() as group:
        connecting = group.create_task(client.keep_connected())
        try:
            await client.wait_connected(JOIN_S)
            yield client
        finally:
            client.close()
            await asyncio.wait([connecting], timeout=LEAVING_S)
            connecting.cancel()
