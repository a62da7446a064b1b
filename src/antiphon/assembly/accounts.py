"""What keeps account of requests where keys are on: the ledger's spool, and the limits. One HTTP process does
also what is done once on a node; several leave that to the keeper."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from antiphon.assembly.keys import Managed
from antiphon.domain.context import Clock
from antiphon.errors import SettingsError
from antiphon.ipc.tasks import task_group
from antiphon.keeper.duties import ENDING_S, counting, draining, seeding
from antiphon.ledger.spool import Spool
from antiphon.limits.base import Limiter
from antiphon.limits.remote import remote_limiter
from antiphon.limits.seeding import LedgerSeeds
from antiphon.pipeline.reserve import Accounting
from antiphon.settings import Settings

if TYPE_CHECKING:
    from antiphon.limits.redis import RedisLimiter

KEEPER_S = 10.0
"""Seconds that this process waits for the keeper before it serves."""


@dataclass(frozen=True, slots=True)
class Account:
    """What keeps account in this process."""

    accounting: Accounting
    leave: Callable[[], object]
    """Says that another process takes this one's place: it does from now on what is done once on a node."""


@asynccontextmanager
async def keeping_account(
    settings: Settings, managed: Managed, clock: Clock, keeper: str | None
) -> AsyncIterator[Account]:
    """While the context lasts, what is written down comes into the database; when it is left, as much of it
    as there is time for. `keeper`: path of its socket; None, where this process does its work. Raises
    StartupError where the spool cannot be used."""
    from antiphon.store.entries import SqlEntries
    from antiphon.store.tenancy import SqlTenancy

    directory = Path(settings.ledger.spool or "")
    spool = Spool(directory, settings.ledger.spool_bytes, settings.ledger.sync_interval)
    entries = SqlEntries(managed.database)
    async with AsyncExitStack() as stack:
        await asyncio.to_thread(spool.start)
        drain = None if keeper else await stack.enter_async_context(draining(settings, entries))
        if keeper is not None and settings.limits.url is None:
            limiter = await _kept(keeper, clock, stack)
        else:
            seeds = await stack.enter_async_context(
                seeding(entries, SqlTenancy(managed.database), drain, clock)
            )
            limiter = await _counted(settings, seeds, clock, stack)
        stack.push_async_callback(asyncio.to_thread, spool.close)  # before the drain ends
        managed.recorder.start()
        stack.push_async_callback(asyncio.to_thread, managed.recorder.stop, ENDING_S)
        reserve = settings.limits.reserve_tokens
        accounting = Accounting(limiter, spool, managed.rulebook, reserve, managed.recorder)
        yield Account(accounting, partial(drain.stop, 0.0) if drain else lambda: None)


async def _counted(settings: Settings, seeds: LedgerSeeds, clock: Clock, stack: AsyncExitStack) -> Limiter:
    """The limits of this process, or those in Redis."""
    if settings.limits.url is None:
        return counting(settings, seeds, clock)
    return await stack.enter_async_context(_shared(settings, settings.limits.url, seeds, clock))


async def _kept(keeper: str, clock: Clock, stack: AsyncExitStack) -> Limiter:
    """The keeper's limits."""
    limiter = await stack.enter_async_context(remote_limiter(keeper, clock))
    with suppress(TimeoutError):
        async with asyncio.timeout(KEEPER_S):
            await limiter.connected()
    return limiter


@asynccontextmanager
async def _shared(
    settings: Settings, url: str, seeds: LedgerSeeds, clock: Clock
) -> "AsyncIterator[RedisLimiter]":
    """The limits in Redis, connected while the context lasts. Its library is imported only here. Raises
    SettingsError."""
    try:
        from antiphon.limits.redis import RedisLimiter
    except ModuleNotFoundError:
        raise SettingsError("limits.url needs the client of Redis: pip install 'antiphon[redis]'") from None
    opens = settings.limits.unavailable == "open"
    limiter = RedisLimiter(url, clock, seeds, opens, settings.limits.prefix)
    async with task_group() as group:
        keeping = group.create_task(limiter.keep_connected())
        try:
            yield limiter
        finally:
            keeping.cancel()
            await limiter.aclose()
