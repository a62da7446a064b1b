"""What is done once on a node, by its only HTTP process or by the keeper: the spool's way into the database,
and the counting of limits."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from antiphon.domain.context import Clock
from antiphon.errors import StoreUnavailable
from antiphon.ledger.drain import Drain
from antiphon.limits.local import LocalLimiter
from antiphon.limits.seeding import LedgerSeeds
from antiphon.settings import Settings
from antiphon.store.base import Entries, Tenancy

ENDING_S = 3.0
"""Seconds that the database gets to take what is in the spool at the end; the spool keeps the rest."""


@asynccontextmanager
async def draining(settings: Settings, entries: Entries) -> AsyncIterator[Drain]:
    """Brings the spool into the database while the context lasts. Raises StartupError where it cannot be
    used."""
    drain = Drain(Path(settings.ledger.spool or ""), entries)
    await asyncio.to_thread(drain.start)
    try:
        yield drain
    finally:
        await asyncio.to_thread(drain.stop, ENDING_S)


@asynccontextmanager
async def seeding(
    entries: Entries, tenancy: Tenancy, drain: Drain | None, clock: Clock
) -> AsyncIterator[LedgerSeeds]:
    """Asks the ledger what is used of limits while the context lasts; after what `drain` has to bring into
    it, where it runs in this process. Where another process drains, as with two servers of one directory,
    that one has had a moment for it, and the ledger is taken as it is."""

    def drained() -> None:
        if drain is not None and not drain.drain_now() and not drain.standing.elsewhere:
            raise StoreUnavailable("what was written down is not in the database yet")

    seeds = LedgerSeeds(entries, clock.wall, drained, tenancy.families)
    try:
        yield seeds
    finally:
        await asyncio.to_thread(seeds.close)


def counting(settings: Settings, seeds: LedgerSeeds, clock: Clock) -> LocalLimiter:
    """Counts limits, from what the ledger knows."""
    return LocalLimiter(clock, seeds, opens=settings.limits.unavailable == "open")
