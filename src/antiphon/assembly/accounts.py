"""What keeps account of requests where keys are on: the ledger's spool, and the limits."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from antiphon.assembly.keys import Managed
from antiphon.coordinator.client import CoordinatorClient
from antiphon.coordinator.duties import ENDING_S, seeding
from antiphon.domain.context import Clock
from antiphon.errors import SettingsError
from antiphon.ipc.tasks import task_group
from antiphon.ledger.spool import Spool
from antiphon.limits.base import Limiter
from antiphon.limits.seeding import LedgerSeeds
from antiphon.pipeline.reserve import Accounting
from antiphon.settings import Settings

if TYPE_CHECKING:
    from antiphon.limits.redis import RedisLimiter


@asynccontextmanager
async def keeping_account(
    settings: Settings, managed: Managed, clock: Clock, coordinator: CoordinatorClient
) -> AsyncIterator[Accounting]:
    """Writes down and counts while the context lasts. Raises StartupError where the spool cannot be used."""
    from antiphon.store.ledger import SqlEntries
    from antiphon.store.tenancy import SqlTenancy

    spool = Spool(
        Path(settings.ledger.spool or ""), settings.ledger.spool_bytes, settings.ledger.sync_interval
    )
    async with AsyncExitStack() as stack:
        await asyncio.to_thread(spool.start)
        limiter: Limiter = coordinator.limits
        if settings.limits.url is not None:
            entries, tenancy = SqlEntries(managed.database), SqlTenancy(managed.database)
            drain = None if coordinator.coordinator is None else coordinator.coordinator.drain
            seeds = await stack.enter_async_context(seeding(entries, tenancy, drain, clock))
            limiter = await stack.enter_async_context(
                _connect_redis(settings, settings.limits.url, seeds, clock)
            )
        stack.push_async_callback(asyncio.to_thread, spool.close)
        managed.recorder.start()
        stack.push_async_callback(asyncio.to_thread, managed.recorder.stop, ENDING_S)
        yield Accounting(limiter, spool, managed.rulebook, settings.limits.reserve_tokens, managed.recorder)


@asynccontextmanager
async def _connect_redis(
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
