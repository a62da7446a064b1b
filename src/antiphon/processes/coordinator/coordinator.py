"""The coordinator of one server: its limiter, adapter names, directory revision and sum of metrics.

`open_coordinator` builds it, with the drain of the spool. `serve_coordinator` serves it on a socket.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from antiphon.domain.context import Clock
from antiphon.domain.models import NameChange
from antiphon.errors import EngineError, LimitsUnavailable, StoreUnavailable
from antiphon.ledger.drain import Drain
from antiphon.limits.local import LocalLimiter, Snapshot, pop_snapshot, save_snapshot
from antiphon.limits.seeding import SECOND_MS, LedgerSeeder
from antiphon.processes.budget_alerts import open_budget_watch
from antiphon.processes.coordinator.frames import (
    TO_COORDINATOR,
    DirectoryChanged,
    Names,
    ToCoordinator,
    Topic,
    Welcome,
)
from antiphon.processes.coordinator.session import ProcessSession
from antiphon.processes.ipc import Channel, FrameReader, bind_private, from_line, remove_socket
from antiphon.services.response_memory import MEMORY_BYTES, ResponseMemory
from antiphon.settings.schema import Settings
from antiphon.store.base import EntryStore, TenancyStore
from antiphon.task_group import task_group
from antiphon.telemetry.exposition import Totals
from antiphon.telemetry.logs import record
from antiphon.weights.adapter_store import KeptNamesFile

if TYPE_CHECKING:
    from antiphon.store.database import Database


BACKLOG = 64
"""The most connections that wait to be accepted. An HTTP process opens one."""

MAX_WAIT_S = 1.0
"""The most seconds to wait until all processes have read a change. A stuck process reads it later."""

UNCLAIMED_S = 10.0
"""Seconds in which processes must repeat the claims of a snapshot. After that, claims that no process has
repeated count as used."""

UNKNOWN = -1
"""The revision of a process that has not reported one."""

NAMES_FILE = "adapters"
"""The file in the runtime directory with the adapter names, for the next coordinator."""


class Coordinator:
    """State that all HTTP processes of a server share."""

    def __init__(
        self,
        tasks: asyncio.TaskGroup,
        runtime: Path,
        started_ms: int,
        limiter: LocalLimiter | None = None,
        drain: Drain | None = None,
        snapshot_file: Path | None = None,
    ) -> None:
        """`started_ms`: the start of this coordinator in Unix milliseconds; earlier requests are in the
        ledger. `limiter`: None if limits are not counted here. `snapshot_file`: the counters are saved in it
        at a clean stop."""
        self.kept_names: KeptNamesFile | None = None
        """The file of adapter names for the next start; None stores none."""
        self.responses: ResponseMemory | None = None
        """The kept responses; None if they are in the database, or not kept."""
        self.tasks = tasks
        self.started_ms = started_ms
        self.drain = drain
        self.unclaimed: set[str] = set()
        """Claims of a snapshot that no process has repeated yet."""
        self.has_snapshot = False
        """Whether the counters come from a snapshot. They include the claims that were settled before it was
        saved."""
        self._limiter = limiter
        self._snapshot_file = snapshot_file
        self._path = runtime / NAMES_FILE
        self._names = _read_names(self._path)
        self._sessions: dict[ProcessSession, None] = {}
        self.ended_totals = Totals()
        """The sum of the metrics of ended processes."""
        self._has_change = asyncio.Event()
        self._abandoning: asyncio.Task[None] | None = None

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
        if self._limiter is not None and self._snapshot_file is not None:
            try:
                save_snapshot(self._snapshot_file, self._limiter.build_snapshot())
            except OSError as problem:
                record("limits_not_saved", logging.WARNING, problem=os.strerror(problem.errno or 0))

    def load_snapshot(self, snapshot: Snapshot) -> None:
        """Continues from the counters that an earlier coordinator saved."""
        self.limiter.load(snapshot)
        self.has_snapshot = True
        self.unclaimed = {claim.id for claim in snapshot.claims}
        if self.unclaimed:
            self._abandoning = self.tasks.create_task(self._abandon_unclaimed())

    # --- sessions -------------------------------------------------------------------------------------------

    def open_channel(self) -> Channel[ToCoordinator]:
        """Creates the channel of a new connection."""
        session = ProcessSession(self)
        channel: Channel[ToCoordinator] = Channel(FrameReader(TO_COORDINATOR), session.receive, session.close)
        session.link = channel
        channel.greeted.add_done_callback(lambda greeted: self._greet(session, greeted))
        return channel

    def add_session(self, session: ProcessSession) -> None:
        """Adds a process and sends it the current state."""
        self._sessions[session] = None
        session.known_revisions[Topic.ADAPTERS] = UNKNOWN
        session.link.put(Welcome(self.started_ms))
        session.link.put(Names(*self._names))

    def remove_session(self, session: ProcessSession) -> None:
        """Removes a process. Its metrics stay in the sums."""
        if session in self._sessions:
            del self._sessions[session]
            self.ended_totals.add(session.totals, is_running=False)
        self.note_change()

    def close(self) -> None:
        """Ends every connection."""
        if self._abandoning is not None:
            self._abandoning.cancel()
        for session in tuple(self._sessions):
            session.link.cut("the coordinator is stopping")

    def _greet(self, session: ProcessSession, greeted: asyncio.Future[None]) -> None:
        """Adds a process to the sessions when it has sent a valid Hello."""
        if not greeted.cancelled() and greeted.exception() is None:
            self.add_session(session)

    async def _abandon_unclaimed(self) -> None:
        """Waits UNCLAIMED_S, then counts the remaining claims of the snapshot as used."""
        await asyncio.sleep(UNCLAIMED_S)
        for claim in self.unclaimed:
            self.limiter.abandon(claim)
        self.unclaimed.clear()

    # --- state that all processes share ---------------------------------------------------------------------

    async def publish(self, revision: int, names: bytes, change: bytes = b"") -> bool:
        """Replaces the adapter names of this revision in every process, and stores `change` for the next
        start. Returns False if another process has replaced the names first. Raises EngineError if the names
        cannot be stored."""
        if revision != self._names[0]:
            return False
        new_names = (revision + 1, names)
        try:
            _write_names(self._path, *new_names)
        except OSError as problem:
            reason = os.strerror(problem.errno or 0)
            raise EngineError(f"the adapters cannot be changed: the runtime directory: {reason}") from None
        if change and self.kept_names is not None:
            self._store_change(self.kept_names, from_line(change, NameChange))
        self._names = new_names
        for session in self._sessions:
            session.link.put(Names(*new_names))
        await self._wait_until_known(Topic.ADAPTERS, revision + 1)
        return True

    def _store_change(self, kept_names: KeptNamesFile, change: NameChange) -> None:
        """Stores a change of the names. If this fails, restores the names in the runtime directory and raises
        EngineError."""
        try:
            kept_names.apply(change)
        except OSError as problem:
            with suppress(OSError):
                _write_names(self._path, *self._names)
            raise EngineError(
                "the adapters cannot be changed: the registry (ANTIPHON_LORA_REGISTRY): "
                f"{problem.strerror or problem}"
            ) from None

    async def announce(self, revision: int, sender: ProcessSession) -> None:
        """Tells all processes except the sender about a revision of the directory, and waits until they have
        read it."""
        for session in self._sessions:
            if session is not sender:
                session.link.put(DirectoryChanged())
        await self._wait_until_known(Topic.DIRECTORY, revision)

    def note_change(self) -> None:
        """Wakes `_wait_until_known` after a process has reported a revision or has ended."""
        self._has_change.set()

    async def _wait_until_known(self, topic: Topic, revision: int) -> None:
        """Waits at most MAX_WAIT_S seconds until every process that uses the topic has reported the
        revision."""

        def count_late() -> int:
            """Counts the processes that have not reported the revision."""
            return sum(session.known_revisions.get(topic, revision) < revision for session in self._sessions)

        with suppress(TimeoutError):
            async with asyncio.timeout(MAX_WAIT_S):
                while count_late():
                    self._has_change.clear()
                    await self._has_change.wait()
        if count_late():
            record("processes_late", logging.WARNING, topic=topic, processes=count_late())

    def sum_other_metrics(self, session: ProcessSession) -> tuple[int, Totals]:
        """Returns the number of other processes, and the sum of their metrics and the metrics of ended
        processes."""
        totals = Totals()
        totals.add(self.ended_totals)
        other_sessions = [other for other in self._sessions if other is not session]
        for other_session in other_sessions:
            totals.add(other_session.totals)
        return len(other_sessions), totals


@asynccontextmanager
async def serve_coordinator(
    path: str, build: Callable[[asyncio.TaskGroup], Coordinator]
) -> AsyncIterator[Coordinator]:
    """Serves a coordinator on a socket that only this user can open.

    If the socket cannot be created, as on a full disk, the coordinator serves only its own process.
    """
    async with task_group() as tasks, AsyncExitStack() as stack:
        coordinator = build(tasks)
        try:
            sock = bind_private(path)
        except OSError as problem:
            record("coordinator_alone", logging.WARNING, problem=os.strerror(problem.errno or 0))
        else:
            stack.callback(_remove_own_socket, path, os.stat(path))
            loop = asyncio.get_running_loop()
            server = await loop.create_unix_server(coordinator.open_channel, sock=sock, backlog=BACKLOG)
            stack.callback(server.close)
        stack.callback(coordinator.close)
        yield coordinator


def _remove_own_socket(path: str, own_stat: os.stat_result) -> None:
    """Removes the socket's path, unless another process has replaced the socket."""
    with suppress(FileNotFoundError):
        if os.path.samestat(own_stat, os.stat(path)):
            remove_socket(path)


def _read_names(path: Path) -> tuple[int, bytes]:
    """Returns the stored revision and names. Returns revision 0 if none are stored."""
    try:
        revision, names = path.read_bytes().split(b"\n", 1)
        return int(revision), names
    except (OSError, ValueError):
        return 0, b""


def _write_names(path: Path, revision: int, names: bytes) -> None:
    """Stores the adapter names and their revision atomically."""
    new_file = path.with_suffix(".new")
    new_file.write_bytes(b"%d\n%b" % (revision, names))
    new_file.replace(path)


FINAL_DRAIN_S = 3.0
"""The most seconds to write the spool to the database at the end. Other entries stay in the spool."""

SNAPSHOT_NAME = "limits.json"
"""The name of the file in the spool's directory in which the counters are saved at a clean stop."""


@asynccontextmanager
async def open_coordinator(
    settings: Settings, path: str, clock: Clock, database: "Database | None" = None
) -> AsyncIterator[Coordinator]:
    """Runs a coordinator that listens at the path until the block ends.

    It counts the running requests of routes. If keys are on, it drains the spool into `database`. It then
    also counts the limits of keys, unless Redis counts them. Raises StartupError if the spool is unusable.
    """
    async with AsyncExitStack() as stack:
        runtime_folder, started_ms = Path(path).parent, int(clock.wall() * SECOND_MS)
        drain = snapshot_file = None
        budget_totals = Totals()
        limiter = LocalLimiter(clock)
        if database is not None:
            from antiphon.store.ledger import SqlEntries
            from antiphon.store.tenancy import SqlTenancy, SqlWarnings

            entries = SqlEntries(database)
            drain = await stack.enter_async_context(open_drain(settings, entries))
            if settings.limits.url is None:
                tenancy = SqlTenancy(database)
                seeder = await stack.enter_async_context(
                    open_seeder(entries, tenancy, drain, clock, started_ms)
                )
                limiter = LocalLimiter(clock, seeder, fails_open=settings.limits.unavailable == "open")
                limiter.watch = await stack.enter_async_context(
                    open_budget_watch(settings.limits, SqlWarnings(database), clock, budget_totals.add)
                )
                snapshot_file = Path(settings.ledger.spool or "") / SNAPSHOT_NAME

        def build_coordinator(tasks: asyncio.TaskGroup) -> Coordinator:
            """Builds the coordinator, with the counters that the previous coordinator saved."""
            coordinator = Coordinator(tasks, runtime_folder, started_ms, limiter, drain, snapshot_file)
            coordinator.ended_totals = budget_totals
            lora = settings.lora
            coordinator.kept_names = KeptNamesFile(Path(lora.registry or ""), lora.keep_names)
            if database is None and settings.responses.store:
                coordinator.responses = ResponseMemory(min(settings.responses.project_bytes, MEMORY_BYTES))
            if snapshot_file is not None:
                snapshot = pop_snapshot(snapshot_file, limiter.now())
                if snapshot is not None:
                    coordinator.load_snapshot(snapshot)
            return coordinator

        yield await stack.enter_async_context(serve_coordinator(path, build_coordinator))


def open_database(settings: Settings) -> "Database | None":
    """Opens the database; returns None if keys are off. Imports the database's library only if it is needed.
    Reads nothing yet."""
    if not settings.keys.enabled:
        return None
    from antiphon.store.database import Database

    return Database(settings.keys.store or "", show_details=False)


@asynccontextmanager
async def open_drain(settings: Settings, entries: EntryStore) -> AsyncIterator[Drain]:
    """Drains the spool into the database until the block ends. Raises StartupError if the spool is
    unusable."""
    drain = Drain(Path(settings.ledger.spool or ""), entries)
    await asyncio.to_thread(drain.start)
    try:
        yield drain
    finally:
        await asyncio.to_thread(drain.stop, FINAL_DRAIN_S)


@asynccontextmanager
async def open_seeder(
    entries: EntryStore,
    tenancy: TenancyStore,
    drain: Drain | None,
    clock: Clock,
    started_ms: int | None = None,
) -> AsyncIterator[LedgerSeeder]:
    """Yields the reader of the usage that limits count from the start. It can be used until the block ends.

    If `drain` runs in this process, the reader first writes the spool to the ledger. If another process
    drains the spool, as with two servers of one directory, the ledger is read as it is. `started_ms`: see
    `LedgerSeeder`.
    """

    def drain_spool() -> None:
        """Writes the spool to the ledger. Raises StoreUnavailable."""
        if drain is not None and not drain.drain_now() and not drain.status.other_is_draining:
            raise StoreUnavailable("the spool is not in the database yet")

    seeder = LedgerSeeder(
        entries, clock.wall, drain_spool, tenancy.load_families, tenancy.load_service_keys, started_ms
    )
    try:
        yield seeder
    finally:
        await asyncio.to_thread(seeder.close)
