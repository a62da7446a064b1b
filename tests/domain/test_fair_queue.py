"""Places that callers take turns for: none is lost or made by who leaves while it waits."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from antiphon.domain.fair_queue import FairSemaphore, QueueLimits
from antiphon.errors import EngineBusy, Overloaded
from antiphon_testing.scripted_engine import FakeClock
from tests.support.waiting import settle

MANY = 1_000


@pytest.mark.parametrize("moment", ["before", "with", "after"])
async def test_leaving_while_waiting_takes_and_makes_no_place(moment: str) -> None:
    places, clock = FairSemaphore(QueueLimits(1, MANY, MANY)), FakeClock()
    await places.acquire("a", clock)
    async with asyncio.TaskGroup() as group:
        leaver = group.create_task(places.acquire("a", clock))
        await asyncio.sleep(0)
        if moment != "after":
            leaver.cancel()
        if moment == "before":
            await asyncio.wait([leaver])
        places.release("a", clock)
        leaver.cancel()
    assert leaver.cancelled() and places.has_room("b")
    await places.acquire("b", clock)
    assert not places.has_room("b")


class Crowd:
    """Asks for places; `here` are those that have one, in the order in which they got it."""

    def __init__(self, bounds: QueueLimits) -> None:
        self.places = FairSemaphore(bounds)
        self.clock = FakeClock()
        self.here: list[str] = []

    async def come(self, actor: str, priority: int = 0) -> None:
        await self.places.acquire(actor, self.clock, priority)
        self.here.append(f"{actor}{priority or ''}")

    async def end(self, actor: str) -> None:
        self.places.release(actor, self.clock)
        await settle()


@asynccontextmanager
async def crowd(bounds: QueueLimits, *actors: tuple[str, int]) -> AsyncIterator[Crowd]:
    made = Crowd(bounds)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(made.come(*actor)) for actor in actors]
        await settle()
        yield made
        for task in tasks:
            task.cancel()


async def test_callers_take_turns_by_their_lowest_priority() -> None:
    asked = [("a", 0), ("a", 2), ("a", 1), ("b", 0), ("b", 0)]
    async with crowd(QueueLimits(1, MANY, MANY), *asked) as made:
        for actor in "aabab":
            await made.end(actor)
    assert made.here == ["a", "a1", "b", "a2", "b"]


async def test_a_caller_may_have_fewer_places_than_there_are() -> None:
    bounds = QueueLimits(3, MANY, MANY, at_once_per_actor=2)
    async with crowd(bounds, *[("a", 0)] * 4, ("b", 0)) as made:
        assert made.here == ["a", "a", "b"]
        await made.end("b")
        assert made.here == ["a", "a", "b"]
        await made.end("a")
    assert made.here == ["a", "a", "b", "a"]


async def test_refusals_beyond_the_bound_tell_the_queues_speed() -> None:
    bounds = QueueLimits(1, 4, 3, "chores")
    async with crowd(bounds, *[("a", 0)] * 4) as made:
        with pytest.raises(Overloaded, match="no more than 3 chores of yours may wait") as refused:
            await made.come("a")
        assert refused.value.retry_after == 1.0
        for _ in range(2):
            made.clock.advance(5)
            await made.end("a")
        async with asyncio.TaskGroup() as group:
            more = [group.create_task(made.come(actor)) for actor in "abb"]
            await settle()
            with pytest.raises(EngineBusy, match="no more than 4 chores may wait") as busy:
                await made.come("c")
            assert busy.value.retry_after == 4 * 5.0
            for task in more:
                task.cancel()


async def test_hours_of_rest_do_not_make_the_queue_look_slow() -> None:
    bounds = QueueLimits(1, MANY, 1)
    async with crowd(bounds, ("a", 0), ("b", 0)) as made:
        await made.end("a")
        await made.end("b")
        made.clock.advance(3600)
        async with asyncio.TaskGroup() as group:
            later = [group.create_task(made.come(actor)) for actor in "aba"[:2]]
            await settle()
            await made.end("a")
            waiting = group.create_task(made.come("a"))
            await settle()
            with pytest.raises(Overloaded) as refused:
                await made.come("a")
            assert refused.value.retry_after == 1.0
            for task in (*later, waiting):
                task.cancel()
