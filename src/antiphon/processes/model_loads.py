"""Loads models when requests need them, within a budget of memory.

The first request of a parked model has its host started. Without room, the models that no call needs are
unloaded first, the longest idle one before the others. If that is not enough, the load is refused for a
moment. Each host ends by itself after its idle time (`engines.host.idle`).
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from antiphon.engines.base import EngineState
from antiphon.engines.host.control import ChildState
from antiphon.errors import AntiphonError, LoadError
from antiphon.processes.engine_hosts import UNLOAD_REPLY_S, EngineHost, EngineHosts
from antiphon.processes.model_memory import estimate_memory
from antiphon.settings.models import ModelSettings
from antiphon.telemetry.logs import record
from antiphon.weights.kv_cache_size import available_memory

H = TypeVar("H")

NO_ROOM_S = 2.0
"""Seconds that a load is not tried again after there was no room."""

FAILURE_S = 5.0
"""Seconds that a load is not tried again after it failed."""

IDLE_REPLY_S = 2.0
"""Seconds in which a host reports its use. A host that does not counts as in use."""

GIB = 1024**3


@dataclass(slots=True)
class ModelLoads:
    """The loads of all models that are loaded on request. `keep` runs as long as the server does."""

    hosts: EngineHosts
    budget: int | None
    """Bytes of all these models together; None is the memory that is free."""
    tasks: asyncio.TaskGroup
    """Keeps the hosts running, until the server has ended them."""
    estimate: Callable[[ModelSettings], int] = estimate_memory
    measure_free: Callable[[], int] = available_memory
    _waiting: asyncio.Queue[EngineHost] = field(default_factory=asyncio.Queue)

    def request(self, name: str) -> None:
        """Loads a model, unless it is loaded or loads already. Tells all HTTP processes what comes of it."""
        host = self.hosts.find(name)
        if host is None or not host.is_on_request:
            return
        if host.is_running or host.is_queued:
            self.hosts.tell_again(host)
            return
        host.is_queued = True
        self._waiting.put_nowait(host)
        self.hosts.tell_state(host, EngineState.LOADING)

    async def keep(self) -> None:
        """Makes room for one model after the other, and starts their hosts."""
        while True:
            host = await self._waiting.get()
            try:
                size = self.estimate(host.model)
                await self._make_room(host, size)
            except AntiphonError as refused:
                host.is_queued = False
                self._park(host, refused.message, NO_ROOM_S)
                continue
            host.is_queued = False
            host.memory = size
            self.hosts.renew(host)
            self.tasks.create_task(self._run(host))

    async def _run(self, host: EngineHost) -> None:
        """Runs a host from its start to its end, after which the model is parked."""
        record("model_loading", model=host.model.name, bytes=host.memory)
        await self.hosts.keep(host)
        host.is_running = False
        host.end.set()
        self._park(host, host.error.message if host.error is not None else host.problem, FAILURE_S)

    def _park(self, host: EngineHost, problem: str, seconds: float) -> None:
        """Tells that a model is parked, with the reason if it could not be loaded. The reason holds for
        `seconds`."""
        if problem:
            record("model_not_loaded", logging.ERROR, model=host.model.name, error=problem)
        else:
            record("model_unloaded", model=host.model.name)
        self.hosts.tell_state(host, EngineState.PARKED, problem, seconds if problem else 0.0)

    # --- room -----------------------------------------------------------------------------------------------

    async def _make_room(self, wanted: EngineHost, needed: int) -> None:
        """Unloads idle models until there is room for a model. Raises LoadError if there is none."""
        in_use: set[EngineHost] = set()
        while (room := self._measure_room()) < needed:
            sizes = {host: host.memory for host in self.hosts.list_running() if host not in in_use}
            idle = await self._ask_idle([host for host in sizes if host.is_ready])
            chosen = choose_unloads(needed - room, sizes, idle)
            if not chosen:
                raise LoadError(
                    f"the model {wanted.model.name} cannot be loaded now: it needs {needed / GIB:.2f} GiB of "
                    f"memory, {max(0, room) / GIB:.2f} GiB are free, and the loaded models are in use"
                )
            if not await self._unload(chosen[0]):
                in_use.add(chosen[0])

    def _measure_room(self) -> int:
        """Returns the bytes that a further model can have."""
        running = self.hosts.list_running()
        if self.budget is not None:
            return self.budget - sum(host.memory for host in running)
        return self.measure_free() - sum(host.memory for host in running if not host.is_ready)

    async def _ask_idle(self, hosts: Sequence[EngineHost]) -> dict[EngineHost, float]:
        """Returns the seconds since the last call of each host that no call needs."""
        async with asyncio.TaskGroup() as group:
            asked = {host: group.create_task(host.order(False, IDLE_REPLY_S)) for host in hosts}
        replies = {host: task.result() for host, task in asked.items()}
        return {
            host: reply.idle
            for host, reply in replies.items()
            if reply is not None and reply.state is ChildState.IDLE
        }

    async def _unload(self, host: EngineHost) -> bool:
        """Unloads a model unless a call needs it, and waits for the end of its host. Returns whether it is
        unloaded."""
        reply = await host.order(True, UNLOAD_REPLY_S)
        if reply is None or reply.state is not ChildState.UNLOADED:
            return not host.is_running
        await host.end.wait()
        return True


def choose_unloads(needed: int, sizes: Mapping[H, int], idle: Mapping[H, float]) -> list[H]:
    """Returns the models to unload for `needed` bytes, the longest idle one first. Returns none if all idle
    models together are too small. `sizes`: bytes of each model. `idle`: seconds of each idle model."""
    chosen: list[H] = []
    for host in sorted(idle, key=lambda each: -idle[each]):
        chosen.append(host)
        needed -= sizes[host]
        if needed <= 0:
            return chosen
    return []
