"""A coordinator and the ends of HTTP processes, over a real socket, in one event loop."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

from antiphon.domain.context import SystemClock
from antiphon.limits.local import LocalLimiter, pop_snapshot
from antiphon.limits.seeding import Seeder
from antiphon.processes.coordinator.client import CoordinatorClient, connect_coordinator
from antiphon.processes.coordinator.coordinator import Coordinator, serve_coordinator

PATIENCE = 30.0
KEPT = "limits.json"

STARTS = [0]
"""Starts of coordinators, in Unix milliseconds. Two of one millisecond would pass for the same one."""


@asynccontextmanager
async def coordinating(
    path: str, seeds: Seeder | None = None, began: int | None = None, limiter: LocalLimiter | None = None
) -> AsyncIterator[Coordinator]:
    """A coordinator without a database. `began`: Unix milliseconds."""
    clock, directory = SystemClock(), Path(path).parent

    def make(tasks: asyncio.TaskGroup) -> Coordinator:
        at = began
        if at is None:
            at = max(int(clock.wall() * 1_000), STARTS[-1] + 1)
            STARTS.append(at)
        counting = limiter or LocalLimiter(clock, seeds)
        coordinator = Coordinator(tasks, directory, at, counting, snapshot_file=directory / KEPT)
        if (snapshot := pop_snapshot(directory / KEPT, counting.now())) is not None:
            coordinator.load_snapshot(snapshot)
        return coordinator

    async with serve_coordinator(path, make) as coordinator:
        yield coordinator


@asynccontextmanager
async def connected(path: str) -> AsyncIterator[CoordinatorClient]:
    """The end of an HTTP process beside which the coordinator runs in another."""
    async with connect_coordinator(path, SystemClock()) as client:
        await client.wait_connected()
        yield client


class Processes:
    """HTTP processes of which one runs the coordinator; each may end by itself."""

    def __init__(self, path: str, stack: AsyncExitStack) -> None:
        self._path, self._stack = path, stack
        self._ends: dict[CoordinatorClient, Callable[[], Awaitable[None]]] = {}

    async def begin(self, seeds: Seeder | None = None) -> CoordinatorClient:
        own = await self._stack.enter_async_context(AsyncExitStack())
        begin = partial(coordinating, self._path, seeds)
        client = await own.enter_async_context(connect_coordinator(self._path, SystemClock(), begin))
        self._ends[client] = own.aclose
        return client

    async def end(self, client: CoordinatorClient) -> None:
        """In order."""
        await self._ends.pop(client)()

    async def kill(self, client: CoordinatorClient) -> None:
        """It leaves nothing to anybody."""
        if client.local_coordinator is not None:
            client.local_coordinator._snapshot_file = None
        await self.end(client)
