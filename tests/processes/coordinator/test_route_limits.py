"""The limit of a route counts the requests in flight of every HTTP process, also where keys are off."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from antiphon.domain.context import SystemClock
from antiphon.errors import ProviderUnavailable
from antiphon.processes.coordinator.client import CoordinatorClient
from antiphon.processes.coordinator.coordinator import open_coordinator
from antiphon.settings.schema import Settings
from antiphon_testing import FakeClock, ScriptedAnswer
from tests.processes.coordinator.processes import connected
from tests.support.routing import build_bench, build_route, get_engine


@pytest.fixture
async def processes(tmp_path: Path) -> AsyncIterator[tuple[CoordinatorClient, CoordinatorClient]]:
    """Two HTTP processes of a server without keys."""
    path = str(tmp_path / "c.sock")
    async with (
        open_coordinator(Settings(), path, SystemClock()),
        connected(path) as one,
        connected(path) as two,
    ):
        yield one, two


async def test_two_processes_never_pass_a_routes_limit(processes):
    clock = FakeClock()  # ids are unique in the whole server
    benches = [
        build_bench(build_route("a", in_flight_limit=3), limiter=client.limits, clock=clock)
        for client in processes
    ]
    gate, engines = asyncio.Event(), [get_engine(bench, "a") for bench in benches]
    for engine in engines:
        engine.script = ScriptedAnswer(gate=gate)
    outcomes: list[object] = []

    async def ask(number: int) -> None:
        try:
            outcomes.append(await benches[number % 2].run())
        except ProviderUnavailable as full:
            outcomes.append(full)

    async with asyncio.TaskGroup() as group:
        for number in range(10):
            group.create_task(ask(number))
        while len(outcomes) < 7 or sum(engine.asked for engine in engines) < 3:
            await asyncio.sleep(0.001)
        assert all(isinstance(each, ProviderUnavailable) for each in outcomes)
        gate.set()
    assert sum(engine.asked for engine in engines) == 3
    assert not isinstance(await benches[1].run(), Exception)
