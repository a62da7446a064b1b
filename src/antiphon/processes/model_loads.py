"""Loads models when requests need them, within a memory budget.

The first request of a parked model starts its host. If there is too little memory, idle models are unloaded
first, the longest idle one before the others. If that is not enough, the load is refused and can be tried
again later. Each host ends by itself after its idle time (`IdleUnloading` of `engines.host.server`).
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from antiphon.domain.values import Struct, field
from antiphon.engines.base import EngineState
from antiphon.engines.host.control import ChildState
from antiphon.errors import AntiphonError, LoadError
from antiphon.processes.engine_hosts import UNLOAD_REPLY_S, EngineHost, EngineHosts
from antiphon.settings.models import ModelSettings
from antiphon.telemetry.logs import record
from antiphon.weights.kv_cache_size import estimate_memory, measure_available_memory

H = TypeVar("H")

NO_MEMORY_S = 2.0
"""Seconds before another attempt at a load that failed for lack of memory."""

FAILURE_S = 5.0
"""Seconds before another attempt at a load that failed for another reason."""

IDLE_REPLY_S = 2.0
"""Seconds in which a host must report its use. A host without a report counts as in use."""

GIB = 1024**3


class ModelLoads(Struct):
    """The loads of all models that are loaded on request. `run` must run in a task."""

    hosts: EngineHosts
    budget: int | None
    """The most bytes of all these models together; None means the free memory."""
    tasks: asyncio.TaskGroup
    """Runs the hosts until the server ends."""
    estimate: Callable[[ModelSettings], int] = estimate_memory
    measure_free: Callable[[], int] = measure_available_memory
    _waiting: asyncio.Queue[EngineHost] = field(default_factory=asyncio.Queue)

    def request(self, name: str) -> None:
        """Loads a model, unless it is loaded or being loaded. Tells all HTTP processes the result."""
        host = self.hosts.find(name)
        if host is None or not host.is_on_request:
            return
        if host.is_running or host.is_queued:
            self.hosts.repeat_state(host)
            return
        host.is_queued = True
        self._waiting.put_nowait(host)
        self.hosts.report_state(host, EngineState.LOADING)

    async def run(self) -> None:
        """Loads the requested models, one after the other: frees memory, and starts the host."""
        while True:
            host = await self._waiting.get()
            try:
                size = self.estimate(host.model)
                await self._free_memory(host, size)
            except AntiphonError as error:
                host.is_queued = False
                self._park(host, error.message, NO_MEMORY_S)
                continue
            host.is_queued = False
            host.memory = size
            self.hosts.prepare_restart(host)
            self.tasks.create_task(self._run_host(host))

    async def _run_host(self, host: EngineHost) -> None:
        """Runs a host from its start to its end, and parks the model after that."""
        record("model_loading", model=host.model.name, bytes=host.memory)
        await self.hosts.keep_running(host)
        host.is_running = False
        host.end.set()
        self._park(host, host.error.message if host.error is not None else host.problem, FAILURE_S)

    def _park(self, host: EngineHost, problem: str, retry_after: float) -> None:
        """Reports that a model is parked. `problem`: why it could not be loaded; empty after an unload.
        `retry_after`: the seconds during which requests are refused with the problem."""
        if problem:
            record("model_not_loaded", logging.ERROR, model=host.model.name, error=problem)
        else:
            record("model_unloaded", model=host.model.name)
        self.hosts.report_state(host, EngineState.PARKED, problem, retry_after if problem else 0.0)

    # --- memory ---------------------------------------------------------------------------------------------

    async def _free_memory(self, new_host: EngineHost, needed_bytes: int) -> None:
        """Unloads idle models until there is enough memory for a model. Raises LoadError if that is not
        possible."""
        in_use: set[EngineHost] = set()
        while (free_bytes := self._measure_free_budget()) < needed_bytes:
            if unloaded := [host for host in self.hosts.list_running() if host.is_unloaded]:
                await unloaded[0].end.wait()  # which frees its memory
                continue
            sizes = {host: host.memory for host in self.hosts.list_running() if host not in in_use}
            idle_s = await self._ask_idle_seconds([host for host in sizes if host.is_ready])
            unloads = choose_unloads(needed_bytes - free_bytes, sizes, idle_s)
            if not unloads:
                if any(host.is_unloaded for host in self.hosts.list_running()):
                    continue  # one became idle while it was asked
                raise LoadError(
                    f"the model {new_host.model.name} cannot be loaded now: it needs "
                    f"{needed_bytes / GIB:.2f} GiB of memory, {max(0, free_bytes) / GIB:.2f} GiB are free, "
                    "and the models that are idle would not free enough; try again later"
                )
            if not await self._unload(unloads[0]):
                in_use.add(unloads[0])

    def _measure_free_budget(self) -> int:
        """Returns the bytes that are available for a further model."""
        running = self.hosts.list_running()
        if self.budget is not None:
            return self.budget - sum(host.memory for host in running)
        return self.measure_free() - sum(host.memory for host in running if not host.is_ready)

    async def _ask_idle_seconds(self, hosts: Sequence[EngineHost]) -> dict[EngineHost, float]:
        """Asks hosts for their use. Returns the seconds since the last call of each idle host."""
        async with asyncio.TaskGroup() as group:
            reply_tasks = {host: group.create_task(host.send_order(False, IDLE_REPLY_S)) for host in hosts}
        replies = {host: task.result() for host, task in reply_tasks.items()}
        return {
            host: reply.idle
            for host, reply in replies.items()
            if reply is not None and reply.state is ChildState.IDLE
        }

    async def _unload(self, host: EngineHost) -> bool:
        """Unloads a model unless a call needs it, and waits for the end of its host. Returns whether it is
        unloaded."""
        reply = await host.send_order(True, UNLOAD_REPLY_S)
        if reply is None or reply.state is not ChildState.UNLOADED:
            return not host.is_running
        await host.end.wait()
        return True


def choose_unloads(needed_bytes: int, sizes: Mapping[H, int], idle_s: Mapping[H, float]) -> list[H]:
    """Returns the hosts to unload for `needed_bytes`, the longest idle one first. Returns an empty list if
    all idle hosts together are too small. `sizes`: the bytes of each host. `idle_s`: the idle seconds of each
    idle host."""
    chosen: list[H] = []
    for host in sorted(idle_s, key=lambda host: -idle_s[host]):
        chosen.append(host)
        needed_bytes -= sizes[host]
        if needed_bytes <= 0:
            return chosen
    return []
