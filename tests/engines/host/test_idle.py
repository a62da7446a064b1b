"""A host unloads its model only while no call needs it."""

import asyncio
import json
import os
import time
from collections.abc import Iterator

import pytest

from antiphon.engines.base import TextPiece
from antiphon.engines.host.control import HostOrder, StatusPipe
from antiphon.engines.host.server import FIRST_USE_S, PAUSE_S, IdleUnloading
from antiphon.errors import EngineUnavailable
from antiphon.settings.models import ModelSettings
from tests.support.host_engines import build_request, create_brief_engine, create_endless_engine
from tests.support.host_link import open_link
from tests.support.waiting import PATIENCE, await_until, settle

Pipe = tuple[int, StatusPipe]
"""The end that the supervisor reads, and the host's end."""


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    reading, writing = os.pipe()
    yield reading, StatusPipe(writing)
    os.close(reading)
    os.close(writing)


def read_states(reading: int) -> list[str]:
    """The states of all reports so far."""
    return [json.loads(line)["state"] for line in os.read(reading, 65536).splitlines()]


async def test_looking_at_the_facts_is_no_use(pipe: Pipe) -> None:
    async with open_link(create_brief_engine()) as link:
        link.host.used_at = 0.0
        await link.client.info()
        assert link.host.used_at == 0.0
        await link.client.tokenize([TextPiece("a")], False)
        assert link.host.used_at > 0.0


async def test_an_idle_host_unloads_after_its_idle_time(pipe: Pipe) -> None:
    reading, status = pipe
    stop = asyncio.Event()
    async with open_link(create_brief_engine()) as link, asyncio.timeout(PATIENCE):
        began = time.monotonic()
        unloading = IdleUnloading(link.host, status, stop, 60.0)
        assert link.host.used_at >= began + FIRST_USE_S  # the first call has time to come
        link.host.used_at = time.monotonic() - 60.0
        await unloading.watch()
        assert stop.is_set() and read_states(reading) == ["unloaded"]
        with pytest.raises(EngineUnavailable):
            await link.client.tokenize([TextPiece("a")], False)


async def test_a_host_without_an_idle_time_stays(pipe: Pipe) -> None:
    reading, status = pipe
    stop = asyncio.Event()
    async with (
        open_link(create_brief_engine()) as link,
        asyncio.timeout(PATIENCE),
        asyncio.TaskGroup() as group,
    ):
        unloading = IdleUnloading(link.host, status, stop, ModelSettings(name="a", path="a").keep_alive)
        link.host.used_at = time.monotonic() - 10**9
        watching = group.create_task(unloading.watch())
        await settle()  # a host with any idle time ends in its first step
        unloading.carry_out(HostOrder(unload=False))
        assert read_states(reading) == ["idle"]
        assert not stop.is_set() and not watching.done()
        unloading.carry_out(HostOrder(unload=True))
        await watching
        assert read_states(reading) == ["unloaded"]


async def test_a_busy_host_refuses_to_unload(pipe: Pipe) -> None:
    reading, status = pipe
    async with (
        open_link(create_endless_engine()) as link,
        asyncio.timeout(PATIENCE),
        asyncio.TaskGroup() as group,
    ):
        unloading = IdleUnloading(link.host, status, asyncio.Event(), None)
        watching = group.create_task(unloading.watch())
        events = link.client.generate(build_request())
        await anext(events)
        link.host.used_at = 0.0
        unloading.carry_out(HostOrder(unload=False))
        unloading.carry_out(HostOrder(unload=True))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert read_states(reading) == ["in use", "in use"]
        await anext(events)
        await events.aclose()
        await await_until(lambda: not link.host.is_busy())
        link.host.used_at = time.monotonic() - PAUSE_S
        unloading.carry_out(HostOrder(unload=False))
        unloading.carry_out(HostOrder(unload=True))
        await watching
        assert read_states(reading) == ["idle", "unloaded"]
