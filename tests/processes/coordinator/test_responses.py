"""Kept responses that all HTTP processes of a server without keys see."""

import asyncio
import json
from contextlib import AsyncExitStack

import pytest

from antiphon.errors import StoreUnavailable
from antiphon.processes.coordinator.responses import MAX_REPLY_BYTES, SharedResponses
from antiphon.services.response_memory import ResponseMemory
from tests.processes.coordinator.processes import PATIENCE, Processes, connected, coordinating
from tests.support.host_link import short_directory
from tests.support.kept_responses import NOW, keep, make_response

ROOM = 64 << 20


@pytest.fixture
def path():
    with short_directory() as place:
        yield str(place / "coordinator")


@pytest.fixture
async def stack():
    async with AsyncExitStack() as stack:
        yield stack


async def two(path, stack):
    coordinator = await stack.enter_async_context(coordinating(path))
    coordinator.responses = ResponseMemory()
    return [
        SharedResponses(await stack.enter_async_context(connected(path)), patience=PATIENCE) for _ in range(2)
    ]


async def test_each_process_finds_what_another_keeps(path, stack):
    first, second = await two(path, stack)
    for name, previous in (("a", None), ("b", "a")):
        assert await first.add(keep(make_response(name, previous)), NOW)
    assert await second.find("one", "resp_a", NOW) == make_response("a")
    assert await second.find("two", "resp_a", NOW) is None
    chain = await second.find_chain("one", "resp_b", NOW, ROOM)
    assert [item["id"] for array in chain.arrays for item in json.loads(array)][::2] == [
        "msg_a_in",
        "msg_b_in",
    ]
    items = await second.find_items("one", ("msg_a", "msg_none"), NOW, ROOM)
    assert {id_: json.loads(item)["id"] for id_, item in items.items()} == {"msg_a": "msg_a"}
    assert await second.remove("one", "resp_a")
    assert not await first.remove("one", "resp_a")
    assert (await first.find_chain("one", "resp_b", NOW, ROOM)).missing == "resp_a"


async def test_many_large_chains_at_once_keep_the_connection(path, stack):
    first, second = await two(path, stack)
    for number in range(5):
        previous = f"r{number - 1}" if number else None
        assert await first.add(keep(make_response(f"r{number}", previous, text="t" * (1 << 20))), NOW)
    asked = [second.find_chain("one", "resp_r4", NOW, ROOM) for _ in range(4)]
    for chain in await asyncio.gather(*asked):
        assert sum(map(len, chain.arrays)) > 10 << 20


async def test_a_chain_that_no_message_holds_is_too_long(path, stack):
    first, second = await two(path, stack)
    for number in range(7):
        previous = f"r{number - 1}" if number else None
        assert await first.add(keep(make_response(f"r{number}", previous, text="t" * (1 << 20))), NOW)
    assert (await second.find_chain("one", "resp_r6", NOW, ROOM)).is_too_long
    assert MAX_REPLY_BYTES < 14 << 20
    assert not (await second.find_chain("one", "resp_r4", NOW, ROOM)).is_too_long
    with pytest.raises(StoreUnavailable, match="cannot be sent"):
        await second.add(keep(make_response("x", text="t" * (9 << 20))), NOW)
    assert await second.find("one", "resp_r0", NOW), "the connection stays"


async def test_a_process_beside_the_coordinator_needs_no_message(path, stack):
    client = await Processes(path, stack).begin()
    assert client.local_coordinator is not None
    memory = client.local_coordinator.responses = ResponseMemory()
    shared = SharedResponses(client)
    assert await shared.add(keep(make_response("a")), NOW)
    assert await memory.find("one", "resp_a", NOW)
    assert await shared.find("one", "resp_a", NOW)


async def test_a_coordinator_without_a_memory_finds_none(path, stack):
    await stack.enter_async_context(coordinating(path))
    shared = SharedResponses(await stack.enter_async_context(connected(path)), patience=PATIENCE)
    assert not await shared.add(keep(make_response("a")), NOW)
    assert await shared.find("one", "resp_a", NOW) is None


async def test_a_missing_coordinator_is_told(path, stack):
    async with coordinating(path) as coordinator:
        coordinator.responses = ResponseMemory()
        shared = SharedResponses(await stack.enter_async_context(connected(path)), patience=0.1)
    with pytest.raises(StoreUnavailable, match="unavailable"):
        await shared.find("one", "resp_a", NOW)


async def test_a_response_that_the_coordinator_keeps_too_late_is_taken_back(path, stack):
    """The answer has said `"store": false` by then."""
    first, second = await two(path, stack)
    async with asyncio.TaskGroup() as group:
        adding = group.create_task(first.add(keep(make_response("a")), NOW))
        await asyncio.sleep(0)  # sent, and without a reply
        adding.cancel()
    assert adding.cancelled()
    assert await first.add(keep(make_response("b")), NOW)
    assert await second.find("one", "resp_a", NOW) is None
    assert await second.find("one", "resp_b", NOW)
