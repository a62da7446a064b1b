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
from antiphon.keeper.succession import succeeding
from antiphon.ledger.spool import Spool
from antiphon.limits.base import Limiter
from antiphon.limits.remote import remote_limiter
from antiphon.limits.seeding import LedgerSeeds
from antiphon.pipeline.reserve import Accounting
from antiphon.settings import Settings

if TYPE_CHECKING:
    from antiphon.limits.redis import RedisLimiter

KEEPER_S = 10.0
"""Seconds that this process waits for who counts before it serves."""

COUNTING = "counting"
"""Where the only HTTP process listens for the one that takes its place. Not named as sockets are: it need not
be gone for the directory to be removed."""


@dataclass(frozen=True, slots=True)
class Account:
    """What keeps account in this process."""

    accounting: Accounting
    leave: Callable[[], object]
    """Says that another process takes this one's place. Where this one counts limits, it goes on with that
    and with its drain, which new counters begin from, until it ends."""


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
        leave: Callable[[], object] = _stay
        if keeper is not None and settings.limits.url is None:
            limiter: Limiter = await _kept(keeper, clock, stack)
        else:
            drain = None if keeper else await stack.enter_async_context(draining(settings, entries))
            seeds = await stack.enter_async_context(
                seeding(entries, SqlTenancy(managed.database), drain, clock)
            )
            limiter = await _counted(settings, managed.runtime, seeds, clock, stack)
            if drain is not None and settings.limits.url is not None:
                leave = partial(drain.stop, 0.0)
        stack.push_async_callback(asyncio.to_thread, spool.close)  # before the drain ends
        managed.recorder.start()
        stack.push_async_callback(asyncio.to_thread, managed.recorder.stop, ENDING_S)
        reserve = settings.limits.reserve_tokens
        accounting = Accounting(limiter, spool, managed.rulebook, reserve, managed.recorder)
        yield Account(accounting, leave)


def _stay() -> None:
    """What is done once on a node is done here until this process ends, or is not done here at all."""


async def _counted(
    settings: Settings, runtime: Path, seeds: LedgerSeeds, clock: Clock, stack: AsyncExitStack
) -> Limiter:
    """The limits in Redis, or those that the server's only HTTP process counts."""
    if settings.limits.url is not None:
        return await stack.enter_async_context(_shared(settings, settings.limits.url, seeds, clock))
    made = partial(counting, settings, seeds, clock)
    return await stack.enter_async_context(succeeding(runtime / COUNTING, clock, made, KEEPER_S))


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
