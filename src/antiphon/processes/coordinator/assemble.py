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

ENDING_S = 3.0
"""Seconds at the end to write the spool to the database. The spool keeps the remaining entries."""

LIMITS = "limits.json"
"""The file in the spool's directory in which the counters are saved at a clean stop."""


@asynccontextmanager
async def open_coordinator(
    settings: Settings, path: str, clock: Clock, database: "Database | None" = None
) -> AsyncIterator[Coordinator]:
    """Runs a coordinator that listens at the path until the block ends.

    It counts the running requests of routes. With keys it has a database, and drains the spool into it. It
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
                past_usage = await stack.enter_async_context(
                    open_seeds(entries, tenancy, drain, clock, started_ms)
                )
                limiter = LocalLimiter(clock, past_usage, fails_open=settings.limits.unavailable == "open")
                limiter.watch = await stack.enter_async_context(
                    open_budget_watch(settings.limits, SqlWarnings(database), clock, budget_totals.add)
                )
                snapshot_file = Path(settings.ledger.spool or "") / LIMITS

        def build_coordinator(tasks: asyncio.TaskGroup) -> Coordinator:
            """Builds the coordinator, with the saved counters of the previous one."""
            coordinator = Coordinator(tasks, runtime_folder, started_ms, limiter, drain, snapshot_file)
            coordinator.ended_totals = budget_totals
            lora = settings.lora
            coordinator.kept_names = KeptNamesFile(Path(lora.registry or ""), lora.keep_names)
            if snapshot_file is not None:
                snapshot = pop_snapshot(snapshot_file, limiter.now())
                if snapshot is not None:
                    coordinator.load(snapshot)
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
        await asyncio.to_thread(drain.stop, ENDING_S)


@asynccontextmanager
async def open_seeds(
    entries: EntryStore,
    tenancy: TenancyStore,
    drain: Drain | None,
    clock: Clock,
    started_ms: int | None = None,
) -> AsyncIterator[LedgerSeeder]:
    """Yields the reader of past usage for limits; it works until the block ends.

    If `drain` runs in this process, the reader first writes the spool to the ledger. If another process
    drains the spool, as with two servers of one directory, the ledger is read as it is. `started_ms`: see
    `LedgerSeeder`.
    """

    def drain_first() -> None:
        """Writes the spool to the ledger. Raises StoreUnavailable."""
        if drain is not None and not drain.drain_now() and not drain.status.other_is_draining:
            raise StoreUnavailable("the spool is not in the database yet")

    past_usage = LedgerSeeder(entries, clock.wall, drain_first, tenancy.load_families, started_ms)
    try:
        yield past_usage
    finally:
        await asyncio.to_thread(past_usage.close)
