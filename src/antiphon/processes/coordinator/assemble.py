"""Assembles a coordinator: the drain of the spool, the limiter and the socket."""

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
from antiphon.processes.coordinator.coordinator import Coordinator, serve_coordinator
from antiphon.settings.schema import Settings
from antiphon.store.base import EntryStore, TenancyStore

if TYPE_CHECKING:
    from antiphon.store.database import Database

ENDING_S = 3.0
"""Seconds at the end to write the spool to the database. The spool keeps the rest."""

LIMITS = "limits.json"
"""File of the spool's directory that keeps counters over a clean stop."""


@asynccontextmanager
async def open_coordinator(
    settings: Settings, path: str, clock: Clock, database: "Database | None" = None
) -> AsyncIterator[Coordinator]:
    """Runs a coordinator that listens at the path while the context lasts.

    With keys it has a database, drains the spool into it, and counts limits unless Redis does. Raises
    StartupError where the spool cannot be used.
    """
    async with AsyncExitStack() as stack:
        runtime, began = Path(path).parent, int(clock.wall() * SECOND)
        drain = limiter = kept = None
        if database is not None:
            from antiphon.store.ledger import SqlEntries
            from antiphon.store.tenancy import SqlTenancy

            entries = SqlEntries(database)
            drain = await stack.enter_async_context(open_drain(settings, entries))
            if settings.limits.url is None:
                tenancy = SqlTenancy(database)
                seeds = await stack.enter_async_context(open_seeds(entries, tenancy, drain, clock, began))
                limiter = LocalLimiter(clock, seeds, opens=settings.limits.unavailable == "open")
                kept = Path(settings.ledger.spool or "") / LIMITS

        def make(tasks: asyncio.TaskGroup) -> Coordinator:
            coordinator = Coordinator(tasks, runtime, began, limiter, drain, kept)
            if kept is not None and limiter is not None:
                snapshot = pop_snapshot(kept, limiter.now())
                if snapshot is not None:
                    coordinator.load(snapshot)
            return coordinator

        yield await stack.enter_async_context(serve_coordinator(path, make))


def open_database(settings: Settings) -> "Database | None":
    """Opens the database where keys are on. Its library is imported only then; nothing is read yet."""
    if not settings.keys.enabled:
        return None
    from antiphon.store.database import Database

    return Database(settings.keys.store or "", show_details=False)


@asynccontextmanager
async def open_drain(settings: Settings, entries: EntryStore) -> AsyncIterator[Drain]:
    """Drains the spool into the database while the context lasts. Raises StartupError for an unusable
    spool."""
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
    """Reads used amounts of limits from the ledger while the context lasts.

    If `drain` runs in this process, it first writes the spool to the ledger. If another process drains the
    spool, as with two servers of one directory, the ledger is read as it is. `started_ms`: as `began` of
    LedgerSeeder.
    """

    def drain_first() -> None:
        if drain is not None and not drain.drain_now() and not drain.status.another_drains:
            raise StoreUnavailable("what was written down is not in the database yet")

    seeds = LedgerSeeder(entries, clock.wall, drain_first, tenancy.families, started_ms)
    try:
        yield seeds
    finally:
        await asyncio.to_thread(seeds.close)
