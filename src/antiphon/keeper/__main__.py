"""The keeper's process. Started by the supervisor as `python -m antiphon.keeper`, where keys are on and
several HTTP processes serve.

It brings what they all write down into the database, and counts the limits of all of them, unless Redis does.
It opens no port. What it knows is in the ledger, so one that dies is started again and knows it again.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from pathlib import Path

import uvloop

from antiphon.domain.context import SystemClock
from antiphon.engines.host.control import KeeperConfig, Lifeline, StatusPipe
from antiphon.engines.host.runtime import leave
from antiphon.errors import AntiphonError
from antiphon.ipc.frames import from_line
from antiphon.ipc.sockets import remove
from antiphon.keeper.duties import counting, draining, seeding
from antiphon.keeper.sessions import keeping
from antiphon.settings import Settings, decode
from antiphon.telemetry.logs import configure

ORPHANED = 3
"""Exit status of a keeper whose supervisor is gone."""


async def run(settings: Settings, config: KeeperConfig) -> None:
    """Keeps until told to stop."""
    status, stop = StatusPipe(config.status_fd), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    try:
        async with at_work(settings, config.socket):
            status.ready()
            await status.pulse(stop)
    except AntiphonError as error:
        status.failed(error)
        sys.exit(1)


@asynccontextmanager
async def at_work(settings: Settings, path: str) -> AsyncIterator[None]:
    """Drains, and counts for whoever connects to the path, while the context lasts."""
    from antiphon.store.database import Database
    from antiphon.store.entries import SqlEntries
    from antiphon.store.tenancy import SqlTenancy

    async with AsyncExitStack() as stack:
        database = stack.enter_context(closing(Database(settings.keys.store or "", told=False)))
        entries, clock = SqlEntries(database), SystemClock()
        drain = await stack.enter_async_context(draining(settings, entries))
        if settings.limits.url is None:
            seeds = await stack.enter_async_context(seeding(entries, SqlTenancy(database), drain, clock))
            limiter = counting(settings, seeds, clock)
            await stack.enter_async_context(keeping(limiter, path, clock.wall()))
        yield


def _abandon(config: KeeperConfig) -> None:
    """The supervisor is gone. What is not in the database yet is in the spool."""
    with suppress(OSError):
        remove(config.socket)
        leave(Path(config.runtime))
    os._exit(ORPHANED)


def main() -> None:
    """The process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is the supervisor's to answer
    lifeline = Lifeline()
    try:
        settings = decode(lifeline.line())
        config = from_line(lifeline.line(), KeeperConfig)
    except EOFError:
        sys.exit(1)
    configure(settings.log.level, settings.log.format)
    lifeline.watch(told=lambda _: None, gone=lambda: _abandon(config))
    uvloop.run(run(settings, config))


if __name__ == "__main__":
    main()
