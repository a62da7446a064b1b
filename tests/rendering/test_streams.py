"""Merging and deadlines: order, errors, back-pressure, and that everything is closed, whoever leaves."""

import asyncio
from weakref import ref

import pytest

from antiphon.domain.context import Context
from antiphon.errors import DeadlineExceeded, EngineDied
from antiphon.rendering.streams import MOST_WAITING, enforce_deadline, merge
from antiphon_testing import FakeClock
from antiphon_testing.rules import interrupt, run_beside
from tests.support.references import Held, is_freed


class Source:
    """A stream of numbers that tells how far it went and that it was closed."""

    def __init__(self, count, *, error=None, wait=None):
        self.count, self.error, self.wait = count, error, wait
        self.given = 0
        self.begun = self.closed = False

    async def items(self):
        self.begun = True
        try:
            for number in range(self.count):
                self.given += 1
                yield [(self, number)]
                await asyncio.sleep(0)
            if self.wait is not None:
                await self.wait.wait()
            if self.error is not None:
                raise self.error
        finally:
            self.closed = True


async def collected(events, into):
    async for items in events:
        into += items


@pytest.mark.parametrize("streams", [1, 3])
async def test_every_item_comes_in_the_order_of_its_stream(streams):
    sources = [Source(200) for _ in range(streams)]
    got = [item async for items in merge([source.items() for source in sources]) for item in items]
    for source in sources:
        assert [number for of, number in got if of is source] == list(range(200))
        assert source.closed


async def test_items_that_arrive_together_are_a_group():
    sources = [Source(5) for _ in range(3)]
    events = merge([source.items() for source in sources])
    assert [of for of, _ in await anext(events)] == sources
    await events.aclose()


@pytest.mark.parametrize("streams", [1, 3])
async def test_the_first_error_ends_all_and_is_raised_as_itself(streams):
    error = EngineDied("gone")
    sources = [Source(2, error=error), *(Source(5, wait=asyncio.Event()) for _ in range(streams - 1))]
    events = merge([source.items() for source in sources])
    with pytest.raises(EngineDied) as raised:
        await collected(events, [])
    assert raised.value is error
    assert all(source.closed for source in sources)


@pytest.mark.parametrize("streams", [1, 3])
async def test_items_before_an_error_are_not_lost(streams):
    sources = [
        Source(5, error=EngineDied("gone")),
        *(Source(0, wait=asyncio.Event()) for _ in range(streams - 1)),
    ]
    got: list[tuple[Source, int]] = []
    events = merge([source.items() for source in sources])
    with pytest.raises(EngineDied):
        await collected(events, got)
    assert len(got) == 5


@pytest.mark.parametrize("streams", [1, 3])
async def test_closing_closes_all(streams):
    sources = [Source(5, wait=asyncio.Event()) for _ in range(streams)]
    events = merge([source.items() for source in sources])
    await anext(events)
    await events.aclose()
    assert all(source.closed for source in sources if source.begun)
    assert sources[0].begun


@pytest.mark.parametrize("streams", [1, 3])
async def test_a_cancelled_reader_closes_all(streams):
    sources = [Source(1, wait=asyncio.Event()) for _ in range(streams)]

    async def read():
        async for _ in merge([source.items() for source in sources]):
            pass

    await interrupt(read(), 0.01)
    assert all(source.closed for source in sources)


async def test_a_slow_reader_makes_the_streams_wait():
    sources = [Source(10_000), Source(10_000)]
    events = merge([source.items() for source in sources])
    await anext(events)
    for _ in range(500):
        await asyncio.sleep(0)
    # The reader has one of each, and one more of each waits at the full queue.
    assert sum(source.given for source in sources) <= MOST_WAITING + 2 * len(sources)
    await events.aclose()


async def test_a_reader_that_is_elsewhere_is_not_cancelled_by_an_error():
    events = merge([Source(1, error=EngineDied("gone")).items(), Source(1, wait=asyncio.Event()).items()])
    await anext(events)
    await asyncio.sleep(0.01)  # the error happens now
    with pytest.raises(EngineDied):
        await collected(events, [])


async def test_the_deadline_ends_a_stream_that_waits():
    source = Source(1, wait=asyncio.Event())
    clock = FakeClock()
    events = enforce_deadline(source.items(), Context("r", deadline=clock.monotonic() + 0.05, clock=clock))
    await anext(events)
    with pytest.raises(DeadlineExceeded):
        await anext(events)
    assert source.closed


async def test_a_deadline_that_has_passed_begins_nothing():
    source = Source(1)
    clock = FakeClock()
    with pytest.raises(DeadlineExceeded):
        await anext(enforce_deadline(source.items(), Context("r", deadline=clock.monotonic(), clock=clock)))
    assert not source.begun


async def test_the_deadline_counts_while_the_reader_is_elsewhere():
    clock = FakeClock()
    source = Source(10)
    events = enforce_deadline(source.items(), Context("r", deadline=clock.monotonic() + 5, clock=clock))
    await anext(events)
    clock.advance(6)
    with pytest.raises(DeadlineExceeded):
        await anext(events)
    assert source.closed


async def test_a_stream_without_a_deadline_goes_on():
    gate = asyncio.Event()
    events = enforce_deadline(Source(1, wait=gate).items(), Context("r"))
    await anext(events)
    async with run_beside(anext(events, None)) as (waiting,):
        await asyncio.sleep(0.01)
        assert not waiting.done()
        gate.set()
        assert await waiting is None


@pytest.mark.parametrize(("streams", "apart"), [(1, 0), (3, 0), (3, 1)])
async def test_nothing_stays_of_streams_that_failed(streams, apart):
    """All at once too: one error is raised, and nobody comes for the others."""
    held = []

    async def failing(count):
        its = Held()
        held.append(ref(its))
        for number in range(count):
            yield [number]
        raise EngineDied("gone")

    async def read():
        await collected(merge([failing(2 + apart * number) for number in range(streams)]), [])

    assert await is_freed(read, EngineDied)
    assert [its() for its in held] == [None] * streams
