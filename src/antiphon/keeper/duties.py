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
from antiphon.store.base import Entries

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
async def counting(entries: Entries, drain: Drain, clock: Clock, opens: bool) -> AsyncIterator[LocalLimiter]:
    """Counts limits while the context lasts, from what the ledger knows. `opens`: as of LocalLimiter."""

    def drained() -> None:
        if not drain.drain_now():
            raise StoreUnavailable("what was written down is not in the database yet")

    seeds = LedgerSeeds(entries, clock.wall, drained)
    limiter = LocalLimiter(clock, seeds, opens)
    try:
        yield limiter
    finally:
        await limiter.aclose()
        await asyncio.to_thread(seeds.close)
