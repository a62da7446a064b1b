"""Runs the end of requests whose caller left between the end of the answer and the vendor's usage.

Such a request is settled when its usage comes, or soon without it. It has no place of its caller any more:
neither a connection nor a place among concurrent requests. The end of the server ends the waits, and each
request is then settled at once.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager

from antiphon.task_group import task_group
from antiphon.telemetry.logs import describe_exception, record

MAX_WAIT_S = 2.0
"""The most seconds to wait for a usage. Vendors send it within milliseconds after the finish reason."""


class LateSettlements:
    """The running waits of one process."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, settlement: Coroutine[None, None, None]) -> None:
        """Runs a settlement, which settles even if it is cancelled. An unexpected error of it is logged,
        because it must not end the process."""
        task = self._group.create_task(_log_failure(settlement))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def end(self) -> None:
        """Ends all waits. Each settlement starts before it is cancelled, because a task that has not started
        would not run at all."""
        await asyncio.sleep(0)
        for task in tuple(self._tasks):
            task.cancel()


async def _log_failure(settlement: Coroutine[None, None, None]) -> None:
    """Runs a settlement, and logs its unexpected error."""
    try:
        await settlement
    except Exception as error:  # noqa: BLE001 - a defect fails one settlement, and the others continue
        record("late_settlement_failed", logging.ERROR, problem=describe_exception(error))


@asynccontextmanager
async def open_late_settlements() -> AsyncIterator[LateSettlements]:
    """Yields the waits, and ends them at the end of the block."""
    async with task_group() as group:
        settlements = LateSettlements(group)
        try:
            yield settlements
        finally:
            await settlements.end()
