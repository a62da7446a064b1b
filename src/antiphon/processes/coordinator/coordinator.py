"""The coordinator: one limiter, one list of adapter names, one directory revision and one sum of metrics for
a server. `serve_coordinator` offers it on a socket."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

from antiphon.domain.models import NameChange
from antiphon.errors import EngineError, LimitsUnavailable
from antiphon.ledger.drain import Drain
from antiphon.limits.local import LocalLimiter
from antiphon.limits.snapshot import Snapshot, save_snapshot
from antiphon.processes.coordinator.frames import (
    TO_COORDINATOR,
    DirectoryNews,
    Names,
    ToCoordinator,
    Topic,
    Welcome,
)
from antiphon.processes.coordinator.session import ProcessSession
from antiphon.processes.ipc import Channel, FrameReader, bind_private, from_line, remove_socket
from antiphon.task_group import task_group
from antiphon.telemetry.exposition import Totals
from antiphon.telemetry.logs import record
from antiphon.weights.adapters.kept_names import KeptNamesFile

BACKLOG = 64
"""Connections that may wait to be accepted; an HTTP process opens one."""

MOST_S = 1.0
"""Most seconds to wait until processes know a change. A stuck process learns it later."""

UNCLAIMED_S = 10.0
"""Seconds in which processes restate claims of a snapshot. After that the rest count as used."""

UNKNOWN = -1
"""Revision of a process that has not reported one."""

ADAPTERS = "adapters"
"""File of the runtime directory with the adapter names, for the next coordinator."""


class Coordinator:
    """State that all HTTP processes of a server share."""

    def __init__(
        self,
        tasks: asyncio.TaskGroup,
        runtime: Path,
        began: int,
        limiter: LocalLimiter | None = None,
        drain: Drain | None = None,
        kept: Path | None = None,
    ) -> None:
        """`began`: Unix milliseconds of this coordinator's start; the ledger contains what ended before.
        `limiter`: None where limits are not counted here. `kept`: the file that keeps the counters over a
        clean stop."""
        self.kept_names: KeptNamesFile | None = None
        """The adapter names that last over a restart; None keeps none."""
        self.tasks = tasks
        self.began = began
        self.drain = drain
        self.unclaimed: set[str] = set()
        """Claims of a snapshot that no process has restated yet."""
        self.is_loaded = False
        """Whether a snapshot was loaded. Claims that are not in it have been counted."""
        self._limiter = limiter
        self._kept = kept
        self._path = runtime / ADAPTERS
        self._names = _read_names(self._path)
        self._sessions: dict[ProcessSession, None] = {}
        self.ended = Totals()
        """Sum of the metrics of processes that ended."""
        self._noted = asyncio.Event()
        self._unclaiming: asyncio.Task[None] | None = None

    @property
    def limiter(self) -> LocalLimiter:
        if self._limiter is None:
            raise LimitsUnavailable("limits are not counted here")
        return self._limiter

    @property
    def counts_limits(self) -> bool:
        """Whether limits are counted here."""
        return self._limiter is not None

    def save_snapshot(self) -> None:
        """Writes the current counters for the next coordinator."""
        if self._limiter is not None and self._kept is not None:
            try:
                save_snapshot(self._kept, self._limiter.snapshot())
            except OSError as problem:
                record("limits_not_saved", logging.WARNING, problem=os.strerror(problem.errno or 0))

    def load(self, snapshot: Snapshot) -> None:
        """Continues from the counters that an earlier coordinator saved."""
        self.limiter.load(snapshot)
        self.is_loaded = True
        self.unclaimed = {claim.id for claim in snapshot.claims}
        if self.unclaimed:
            self._unclaiming = self.tasks.create_task(self._abandon_unclaimed())

    # --- sessions -------------------------------------------------------------------------------------------

    def connect(self) -> Channel[ToCoordinator]:
        """Makes the channel of a new connection."""
        session = ProcessSession(self)
        channel: Channel[ToCoordinator] = Channel(FrameReader(TO_COORDINATOR), session.receive, session.lose)
        session.link = channel
        channel.greeted.add_done_callback(lambda greeted: self._greet(session, greeted))
        return channel

    def join(self, session: ProcessSession) -> None:
        """Adds a process and sends it the current state."""
        self._sessions[session] = None
        session.known[Topic.ADAPTERS] = UNKNOWN
        session.link.put(Welcome(self.began))
        session.link.put(Names(*self._names))

    def forget(self, session: ProcessSession) -> None:
        """Removes a process. Its metrics stay in the sums."""
        if session in self._sessions:
            del self._sessions[session]
            self.ended.add(session.totals, is_running=False)
        self.note_change()

    def close(self) -> None:
        """Ends every connection."""
        if self._unclaiming is not None:
            self._unclaiming.cancel()
        for session in tuple(self._sessions):
            session.link.cut("the coordinator is stopping")

    def _greet(self, session: ProcessSession, greeted: asyncio.Future[None]) -> None:
        """Adds the process to the sessions once it has sent a valid Hello."""
        if not greeted.cancelled() and greeted.exception() is None:
            self.join(session)

    async def _abandon_unclaimed(self) -> None:
        """Waits, then counts claims as used that no process has restated."""
        await asyncio.sleep(UNCLAIMED_S)
        for claim in self.unclaimed:
            self.limiter.abandon(claim)
        self.unclaimed.clear()

    # --- what all processes know ----------------------------------------------------------------------------

    async def publish(self, revision: int, names: bytes, change: bytes = b"") -> bool:
        """Replaces the adapter names of a revision in every process, and keeps the change over a restart.
        Returns False if another process has replaced them first. Raises EngineError if the names cannot be
        stored."""
        if revision != self._names[0]:
            return False
        written = (revision + 1, names)
        try:
            _write_names(self._path, *written)
        except OSError as problem:
            reason = os.strerror(problem.errno or 0)
            raise EngineError(f"the adapters cannot be changed: the runtime directory: {reason}") from None
        if change and self.kept_names is not None:
            self._keep_change(self.kept_names, from_line(change, NameChange))
        self._names = written
        for session in self._sessions:
            session.link.put(Names(*written))
        await self._wait_until_known(Topic.ADAPTERS, revision + 1)
        return True

    def _keep_change(self, kept_names: KeptNamesFile, change: NameChange) -> None:
        """Keeps a change of the names. Raises EngineError, after it has restored the stored names."""
        try:
            kept_names.apply(change)
        except OSError as problem:
            with suppress(OSError):
                _write_names(self._path, *self._names)
            raise EngineError(
                "the adapters cannot be changed: the registry (ANTIPHON_LORA_REGISTRY): "
                f"{problem.strerror or problem}"
            ) from None

    async def announce(self, revision: int, by: ProcessSession) -> None:
        """Makes every other process read the directory, and waits until all use the revision."""
        for session in self._sessions:
            if session is not by:
                session.link.put(DirectoryNews())
        await self._wait_until_known(Topic.DIRECTORY, revision)

    def note_change(self) -> None:
        """Notes that a process has reported a revision, or has ended."""
        self._noted.set()

    async def _wait_until_known(self, topic: Topic, revision: int) -> None:
        """Waits until every process that uses the topic has reported the revision, at most `MOST_S`
        seconds."""

        def late() -> int:
            """Returns the number of processes that have not reported the revision."""
            return sum(session.known.get(topic, revision) < revision for session in self._sessions)

        with suppress(TimeoutError):
            async with asyncio.timeout(MOST_S):
                while late():
                    self._noted.clear()
                    await self._noted.wait()
        if late():
            record("processes_late", logging.WARNING, topic=topic, processes=late())

    def sum_others(self, session: ProcessSession) -> tuple[int, Totals]:
        """Returns the number of other processes, and the sum of their metrics and those of ended
        processes."""
        totals = Totals()
        totals.add(self.ended)
        living = [each for each in self._sessions if each is not session]
        for each in living:
            totals.add(each.totals)
        return len(living), totals


@asynccontextmanager
async def serve_coordinator(
    path: str, make: Callable[[asyncio.TaskGroup], Coordinator]
) -> AsyncIterator[Coordinator]:
    """Offers a coordinator on a socket that only this user may open.

    If the socket cannot be created, as on a full disk, the coordinator serves only its own process.
    """
    async with task_group() as tasks, AsyncExitStack() as stack:
        coordinator = make(tasks)
        try:
            sock = bind_private(path)
        except OSError as problem:
            record("coordinator_alone", logging.WARNING, problem=os.strerror(problem.errno or 0))
        else:
            stack.callback(_remove_own, path, os.stat(path))
            loop = asyncio.get_running_loop()
            server = await loop.create_unix_server(coordinator.connect, sock=sock, backlog=BACKLOG)
            stack.callback(server.close)
        stack.callback(coordinator.close)
        yield coordinator


def _remove_own(path: str, own: os.stat_result) -> None:
    """Removes the socket's path, unless another process listens there by now."""
    with suppress(FileNotFoundError):
        if os.path.samestat(own, os.stat(path)):
            remove_socket(path)


def _read_names(path: Path) -> tuple[int, bytes]:
    """Returns the revision and the stored names; revision 0 if none are stored."""
    try:
        revision, names = path.read_bytes().split(b"\n", 1)
        return int(revision), names
    except (OSError, ValueError):
        return 0, b""


def _write_names(path: Path, revision: int, names: bytes) -> None:
    """Stores the adapter names and their revision in one step."""
    new = path.with_suffix(".new")
    new.write_bytes(b"%d\n%b" % (revision, names))
    new.replace(path)
