"""Builds a coordinator: the drain of the spool, the limiter and the socket."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from antiphon.domain.context import Clock
from antiphon.errors import StoreUnavailable
from antiphon.ledger.drain import Drain
from antiphon.limits.local import LocalLimiter
from antiphon.limits.seeding import SECOND, LedgerSeeder
from antiphon.limits.snapshot import pop_snapshot
from antiphon.processes.budget_alerts import open_budget_watch
from antiphon.processes.coordinator.coordinator import Coordinator, serve_coordinator
from antiphon.settings.schema import Settings
from antiphon.store.base import EntryStore, TenancyStore
from antiphon.telemetry.exposition import Totals
from antiphon.weights.adapters.kept_names import KeptNamesFile

if TYPE_CHECKING:
    from antiphon.store.database import Database

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
        runtime_folder, started_ms = Path(path).parent, int(clock.wall() * SECOND)
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

    seeder = LedgerSeeder(entries, clock.wall, drain_spool, tenancy.load_families, started_ms)
    try:
        yield seeder
    finally:
        await asyncio.to_thread(seeder.close)
