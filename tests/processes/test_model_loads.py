"""Which models are loaded and unloaded when a request needs one, with hosts that are no processes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from antiphon.engines.base import EngineState
from antiphon.engines.host.control import ChildState, HostOrder, Status
from antiphon.engines.host.supervisor_messages import SupervisorMessage
from antiphon.errors import LoadError
from antiphon.processes.engine_hosts import EngineHost, EngineHosts
from antiphon.processes.ipc import from_line
from antiphon.processes.model_loads import ModelLoads, choose_unloads
from antiphon.settings.models import ModelSettings
from antiphon.settings.schema import Settings
from antiphon_testing import scripted_info
from tests.support.waiting import PATIENCE


@dataclass
class Watch:
    """A host that loads at once, and follows orders."""

    host: EngineHost
    hosts: "Hosts"
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def keep_running(self) -> None:
        name = self.host.model.name
        self.hosts.starts.append(name)
        if name in self.hosts.broken:
            raise LoadError("the file is cut short")
        self.hosts._update(self.host, EngineState.READY, scripted_info())
        await self.ended.wait()
        await self.hosts.may_end.wait()

    def forbid_restart(self) -> None:
        self.ended.set()

    def send(self, line: bytes) -> None:
        idle = self.hosts.idle[self.host.model.name]
        if idle is None:
            report = Status(ChildState.IN_USE)
        elif from_line(line, HostOrder).unload:
            report = Status(ChildState.UNLOADED)
        else:
            report = Status(ChildState.IDLE, idle=idle)
        self.hosts._receive(self.host, report)


class Hosts(EngineHosts):
    """Hosts without processes."""

    def __init__(self, tmp_path: Any) -> None:
        models = tuple(ModelSettings(name=name, path="no file", load="request") for name in "abc")
        self.told: list[tuple[str, str]] = []
        self.starts: list[str] = []
        self.may_end = asyncio.Event()
        """Set while a host that has unloaded its model ends at once."""
        self.may_end.set()
        self.broken: set[str] = set()
        self.idle: dict[str, float | None] = {"a": 5.0, "b": 7.0, "c": 1.0}
        super().__init__(Settings(models=models), tmp_path, "", self._hear, lambda: None, lambda _: None)

    def _hear(self, line: bytes) -> None:
        news = from_line(line, SupervisorMessage).engine
        assert news is not None
        self.told.append((news.engine, str(news.state) + (f": {news.detail}" if news.detail else "")))

    def prepare_restart(self, host: EngineHost) -> None:
        super().prepare_restart(host)
        host.watch = Watch(host, self)  # type: ignore[assignment]

    def latest(self, name: str) -> str:
        return next((state for model, state in reversed(self.told) if model == name), "")

    async def until(self, name: str, state: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while not self.latest(name).startswith(state):
                await asyncio.sleep(0)


@asynccontextmanager
async def loading(hosts: Hosts, budget: int) -> AsyncIterator[ModelLoads]:
    """The loads of models of ten bytes each."""
    async with asyncio.TaskGroup() as group:
        loads = ModelLoads(hosts, budget, group, estimate=lambda _: 10)
        keeping = group.create_task(loads.run())
        yield loads
        keeping.cancel()
        for host in hosts.list_running():
            host.watch.forbid_restart()


def test_the_longest_idle_models_are_chosen() -> None:
    sizes = {"a": 10, "b": 20, "c": 30}
    assert choose_unloads(5, sizes, {"a": 1.0, "b": 9.0}) == ["b"]
    assert choose_unloads(25, sizes, {"a": 1.0, "b": 9.0}) == ["b", "a"]
    assert choose_unloads(35, sizes, {"a": 1.0, "b": 9.0}) == []


async def test_several_requests_load_a_model_once(tmp_path: Any) -> None:
    hosts = Hosts(tmp_path)
    async with loading(hosts, 100) as loads:
        for _ in range(3):
            loads.request("a")
        loads.request("nobody")
        await hosts.until("a", "ready")
        loads.request("a")
        assert (hosts.starts, hosts.latest("a")) == (["a"], "ready")  # told again, for a process that asks
        assert ("b", "loading") not in hosts.told


async def test_the_longest_idle_model_makes_room(tmp_path: Any) -> None:
    hosts = Hosts(tmp_path)
    async with loading(hosts, 20) as loads:
        for name in "abc":
            loads.request(name)
            await hosts.until(name, "ready")
        assert (hosts.latest("a"), hosts.latest("b")) == ("ready", "parked")
        loads.request("b")
        await hosts.until("b", "ready")
        assert hosts.latest("a") == "parked"


async def test_a_load_waits_for_a_host_that_ends_by_itself(tmp_path: Any) -> None:
    hosts = Hosts(tmp_path)
    async with loading(hosts, 10) as loads:
        loads.request("a")
        await hosts.until("a", "ready")
        (host,) = hosts.list_running()
        hosts.may_end.clear()
        hosts.idle["a"] = None  # it answers no order
        hosts._receive(host, Status(ChildState.UNLOADED))
        loads.request("b")
        for _ in range(20):
            await asyncio.sleep(0)
        assert (hosts.latest("b"), hosts.starts) == ("loading", ["a"])
        hosts.may_end.set()
        await hosts.until("b", "ready")
        assert [state for name, state in hosts.told if name == "b"] == ["loading", "ready"]


async def test_models_in_use_stay_and_the_load_is_refused(tmp_path: Any) -> None:
    hosts = Hosts(tmp_path)
    async with loading(hosts, 10) as loads:
        loads.request("a")
        await hosts.until("a", "ready")
        hosts.idle["a"] = None
        loads.request("b")
        await hosts.until("b", "parked: the model b cannot be loaded now")
        assert hosts.latest("a") == "ready"
        hosts.idle["a"] = 0.0
        loads.request("b")
        await hosts.until("b", "ready")


async def test_a_failed_load_is_told_and_tried_again(tmp_path: Any) -> None:
    hosts = Hosts(tmp_path)
    hosts.broken.add("a")
    async with loading(hosts, 10) as loads:
        loads.request("a")
        await hosts.until("a", "parked: the file is cut short")
        assert b"cut short" not in b"".join(hosts.list_state_lines())  # a new process may try at once
        hosts.broken.clear()
        loads.request("a")
        await hosts.until("a", "ready")


@pytest.mark.parametrize(("free", "state"), [(15, "ready"), (5, "parked: the model a")])
async def test_without_a_budget_the_free_memory_counts(tmp_path: Any, free: int, state: str) -> None:
    hosts = Hosts(tmp_path)
    async with asyncio.TaskGroup() as group:
        loads = ModelLoads(hosts, None, group, estimate=lambda _: 10, measure_free=lambda: free)
        keeping = group.create_task(loads.run())
        loads.request("a")
        await hosts.until("a", state)
        keeping.cancel()
        for host in hosts.list_running():
            host.watch.forbid_restart()
