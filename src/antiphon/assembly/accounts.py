"""What keeps account of requests where keys are on: the ledger's spool, its way into the database, and the
limits. For one HTTP process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from antiphon.assembly.keys import Managed
from antiphon.domain.context import Clock
from antiphon.errors import StoreUnavailable
from antiphon.ledger.drain import Drain
from antiphon.ledger.spool import Spool
from antiphon.limits.local import LocalLimiter
from antiphon.limits.seeding import LedgerSeeds
from antiphon.pipeline.reserve import Accounting
from antiphon.settings import Settings

ENDING_S = 3.0
"""Seconds that the database gets to take what is in the spool when the server ends; the spool keeps the
rest."""

RESERVE_TOKENS = 512
"""Output tokens by which a request without `max_tokens` takes of its limits."""


@asynccontextmanager
async def keeping_account(settings: Settings, managed: Managed, clock: Clock) -> AsyncIterator[Accounting]:
    """While the context lasts, what is written down comes into the database; when it is left, as much of it
    as there is time for. Raises StartupError where the spool cannot be used."""
    from antiphon.store.entries import SqlEntries

    entries = SqlEntries(managed.database)
    directory = Path(settings.ledger.spool or "")
    spool = Spool(directory, settings.ledger.spool_bytes, settings.ledger.sync_interval)
    drain = Drain(directory, entries)

    def drained() -> None:
        if not drain.drain_now():
            raise StoreUnavailable("what was written down is not in the database yet")

    seeds = LedgerSeeds(entries, clock.wall, drained)
    limiter = LocalLimiter(clock, seeds)
    await asyncio.to_thread(spool.start)
    await asyncio.to_thread(drain.start)
    try:
        yield Accounting(limiter, spool, managed.rulebook, RESERVE_TOKENS)
    finally:
        await limiter.aclose()
        await asyncio.to_thread(spool.close)
        await asyncio.to_thread(drain.stop, ENDING_S)
        await asyncio.to_thread(seeds.close)
