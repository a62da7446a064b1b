"""What keeps account of requests where keys are on: the ledger's spool, and the limits. One HTTP process does
also what is done once on a node; several leave that to the keeper."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

from antiphon.assembly.keys import Managed
from antiphon.domain.context import Clock
from antiphon.keeper.duties import ENDING_S, counting, draining
from antiphon.ledger.spool import Spool
from antiphon.limits.base import Limiter
from antiphon.limits.remote import remote_limiter
from antiphon.pipeline.reserve import Accounting
from antiphon.settings import Settings

RESERVE_TOKENS = 512
"""Output tokens by which a request without `max_tokens` takes of its limits."""

KEEPER_S = 10.0
"""Seconds that this process waits for the keeper before it serves."""


@asynccontextmanager
async def keeping_account(
    settings: Settings, managed: Managed, clock: Clock, keeper: str | None
) -> AsyncIterator[Accounting]:
    """While the context lasts, what is written down comes into the database; when it is left, as much of it
    as there is time for. `keeper`: path of its socket; None, where this process does its work. Raises
    StartupError where the spool cannot be used."""
    directory = Path(settings.ledger.spool or "")
    spool = Spool(directory, settings.ledger.spool_bytes, settings.ledger.sync_interval)
    async with AsyncExitStack() as stack:
        await asyncio.to_thread(spool.start)
        limiter = await _limiter(settings, managed, clock, keeper, stack)
        stack.push_async_callback(asyncio.to_thread, spool.close)  # before the drain ends
        managed.recorder.start()
        stack.push_async_callback(asyncio.to_thread, managed.recorder.stop, ENDING_S)
        yield Accounting(limiter, spool, managed.rulebook, RESERVE_TOKENS, managed.recorder)


async def _limiter(
    settings: Settings, managed: Managed, clock: Clock, keeper: str | None, stack: AsyncExitStack
) -> Limiter:
    """Who counts; until the stack is left."""
    from antiphon.store.entries import SqlEntries

    if keeper is None:
        entries = SqlEntries(managed.database)
        drain = await stack.enter_async_context(draining(settings, entries))
        return await stack.enter_async_context(counting(entries, drain, clock, opens=False))
    limiter = await stack.enter_async_context(remote_limiter(keeper, clock))
    with suppress(TimeoutError):
        async with asyncio.timeout(KEEPER_S):
            await limiter.connected()
    return limiter
