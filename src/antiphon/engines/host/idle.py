"""Unloads the model of an engine host that no call needs: after its idle time, or because another model needs
the memory.

The host decides, since only the host knows the calls of all HTTP processes. It decides and closes its
connections in one step, so no running call is cut. A call that arrives later finds no connection and is tried
again.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from antiphon.engines.host.control import ChildState, HostOrder, StatusPipe
from antiphon.engines.host.server import HostServer
from antiphon.processes.ipc import from_line
from antiphon.task_group import task_group

FIRST_USE_S = 5.0
"""Seconds after the load during which the model counts as used, so that the request that needs it can
connect."""

PAUSE_S = 1.0
"""Seconds without a call after which another model may have the memory. A request makes several calls."""


class HostOrders:
    """Passes the supervisor's orders from the thread that reads them to the event loop."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._handler: Callable[[HostOrder], None] = lambda _: None

    def set_handler(self, handler: Callable[[HostOrder], None]) -> None:
        """Makes the running event loop call `handler` with each later order."""
        self._loop, self._handler = asyncio.get_running_loop(), handler

    def receive(self, line: bytes) -> None:
        """Passes an order to the handler in the event loop. Any thread may call it."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended, and so does the process
                self._loop.call_soon_threadsafe(self._handler, from_line(line, HostOrder))


class IdleUnloading:
    """Unloads the model of one host when no call has needed it for some time. `watch` ends when the model is
    unloaded."""

    def __init__(
        self, host: HostServer, status: StatusPipe, stop: asyncio.Event, keep_alive: float | None
    ) -> None:
        """`stop` is set when the host must end. `keep_alive`: seconds without a call after which the model is
        unloaded."""
        self._host = host
        self._status = status
        self._stop = stop
        self._keep_alive = keep_alive
        self._is_unload_ordered = False
        """Whether the supervisor has ordered to unload, because another model needs the memory."""
        self._changed = asyncio.Event()
        host.used_at = time.monotonic() + FIRST_USE_S

    def carry_out(self, order: HostOrder) -> None:
        """Carries out an order of the supervisor."""
        if order.unload:
            self._is_unload_ordered = True
            self._changed.set()
        elif self._host.is_busy():
            self._status.report_use(ChildState.IN_USE)
        else:
            self._status.report_use(ChildState.IDLE, max(0.0, time.monotonic() - self._host.used_at))

    async def watch(self) -> None:
        """Waits until no call has needed the model for the idle time, then unloads the model."""
        while not self._unload_if_idle():
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._compute_pause()):
                    await self._changed.wait()

    def _get_idle_limit(self) -> float | None:
        """Returns the seconds without a call after which the model is unloaded. None means: not before an
        order."""
        return PAUSE_S if self._is_unload_ordered else self._keep_alive

    def _compute_pause(self) -> float | None:
        """Returns the seconds to wait before the model can be unloaded; None waits for an order."""
        limit = self._get_idle_limit()
        if limit is None or self._host.is_busy():
            return limit
        return max(0.0, self._host.used_at + limit - time.monotonic())

    def _unload_if_idle(self) -> bool:
        """Ends all connections if no call has needed the model for the idle limit. Returns whether they were
        ended. An order that a running call prevents is reported as IN_USE and dropped."""
        is_busy, limit = self._host.is_busy(), self._get_idle_limit()
        if is_busy and self._is_unload_ordered:
            self._is_unload_ordered = False
            self._status.report_use(ChildState.IN_USE)
        if is_busy or limit is None or time.monotonic() < self._host.used_at + limit:
            return False
        self._status.report_use(ChildState.UNLOADED)
        self._host.close_sessions("the model is unloaded")
        self._stop.set()
        return True


@asynccontextmanager
async def unload_idle(unloading: IdleUnloading, orders: HostOrders) -> AsyncIterator[None]:
    """Unloads the model when no call needs it, while the context lasts."""
    orders.set_handler(unloading.carry_out)
    async with task_group() as tasks:
        watch_task = tasks.create_task(unloading.watch())
        try:
            yield
        finally:
            watch_task.cancel()
