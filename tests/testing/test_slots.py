"""Places for sequences of the scripted engine: none is lost or made by who leaves while it waits."""

import asyncio

import pytest

from antiphon.testing.slots import Slots


@pytest.mark.parametrize("moment", ["before", "with", "after"])
async def test_who_leaves_while_waiting_neither_takes_nor_makes_a_place(moment):
    slots = Slots(1)
    await slots.acquire("a", 0)
    async with asyncio.TaskGroup() as group:
        leaver = group.create_task(slots.acquire("a", 0))
        await asyncio.sleep(0)
        if moment != "after":
            leaver.cancel()
        if moment == "before":
            await asyncio.wait([leaver])
        slots.release()
        leaver.cancel()
    assert leaver.cancelled() and not slots.locked()
    await slots.acquire("b", 0)
    assert slots.locked()
