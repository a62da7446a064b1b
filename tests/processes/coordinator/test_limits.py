"""The limits of several processes: one counts for all of them, over a real socket; and what is left of a
claim when either side goes away."""

import asyncio
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest

from antiphon.domain.context import SystemClock
from antiphon.domain.ledger import Entry
from antiphon.domain.limits import Amounts, Limit, LimitStatus, Measure, Window
from antiphon.errors import BudgetExceeded, LargerThanLimit, LimitsUnavailable, RateLimited
from antiphon.limits.local import LocalLimiter
from antiphon.limits.seeding import LedgerSeeder, SeedAmounts
from antiphon.processes.coordinator.client import CoordinatorClient
from antiphon.processes.coordinator.frames import TO_PROCESS, Welcome
from antiphon.processes.coordinator.limiter import SharedLimiter
from antiphon.processes.ipc import Channel, FrameReader
from antiphon.store.ledger import SqlEntries
from antiphon_testing.scripted_engine import FakeClock
from tests.processes.coordinator.processes import PATIENCE, connected, coordinating
from tests.support.host_link import short_directory
from tests.support.limits import NOON, ONE, limit, output_tokens
from tests.support.stores import open_new_store
from tests.support.waiting import await_until

NOTHING = Amounts()
LATER = 2**52
"""Unix milliseconds after every moment of a test."""


@pytest.fixture
def path():
    with short_directory() as place:
        yield str(place / "coordinator")


@pytest.fixture
async def pair(path):
    """Two processes, and a coordinator at noon."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(coordinating(path, limiter=LocalLimiter(FakeClock(wall=NOON))))
        yield [(await stack.enter_async_context(connected(path))).limits for _ in range(2)]


async def test_two_workers_share_a_limit_and_refusals_carry_its_status(pair) -> None:
    one, other = pair
    requests, few = limit(3), limit(100, Measure.OUTPUT_TOKENS, id_="two")
    (standing, _) = await one.reserve("1", [requests, few], ONE)
    assert (standing.limit, standing.remaining) == (requests, 2)
    await other.reserve("2", [requests, few], ONE)
    (standing, _) = await one.reserve("3", [requests, few], ONE)
    assert standing.remaining == 0
    with pytest.raises(RateLimited) as refused:
        await other.reserve("4", [requests, few], ONE)
    assert refused.value.limit == requests.id
    assert refused.value.retry_after == pytest.approx(60.0, abs=0.5)
    standings = [each for each in refused.value.statuses if isinstance(each, LimitStatus)]
    assert [each.limit for each in standings] == [requests, few]
    with pytest.raises(LargerThanLimit) as larger:
        await other.extend("2", [requests, few], output_tokens(101))
    assert larger.value.limit == few.id
    (_, standing) = await other.extend("2", [requests, few], output_tokens(40))
    assert standing.remaining == 60
    other.settle("2", output_tokens(10))
    (asked,) = await other.read_status([few])
    assert asked.remaining == 90, "what is settled is told before what is asked later"


async def test_a_released_place_is_free_in_every_process_and_for_the_next_coordinator(path: str) -> None:
    limits = [limit(1, Measure.CONCURRENT), limit(100, Measure.OUTPUT_TOKENS, id_="two")]
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(AsyncExitStack())
        await first.enter_async_context(coordinating(path))
        one, other = [(await stack.enter_async_context(connected(path))).limits for _ in range(2)]
        await one.reserve("1", limits, output_tokens(60))
        one.release_place("1")
        await await_until(lambda: read_remaining(other, limits, [1, 40]))
        await first.aclose()
        await await_until(lambda: not one.available)
        await stack.enter_async_context(coordinating(path))
        await await_until(lambda: read_remaining(other, limits, [1, 40]))
        one.settle("1", output_tokens(10))
        await await_until(lambda: read_remaining(other, limits, [1, 90]))


async def read_remaining(limiter: SharedLimiter, limits: Sequence[Limit], expected: list[int]) -> bool:
    """Whether so much of each limit remains."""
    return [each.remaining for each in await limiter.read_status(limits)] == expected


async def test_a_budget_that_is_gone_stays_a_budget(pair) -> None:
    spent = limit(1, window=Window.DAY)
    await pair[0].reserve("1", [spent], ONE)
    with pytest.raises(BudgetExceeded) as refused:
        await pair[0].reserve("2", [spent], ONE)
    assert refused.value.retry_after == pytest.approx(12 * 3600.0)


async def test_claims_of_one_tick_travel_in_one_frame_each_way(path: str) -> None:
    async with coordinating(path), connected(path) as client:
        limits = [limit(10)]
        await client.limits.read_status(limits)
        assert client._channel is not None
        frames = (client._channel._writer, client._channel._reader)
        before = [each._sequence for each in frames]
        await asyncio.gather(*(client.limits.reserve(f"{number}", limits, ONE) for number in range(8)))
        assert [each._sequence for each in frames] == [number + 1 for number in before]


async def test_the_end_of_a_worker_ends_its_claims_and_no_others(path: str) -> None:
    at_once, used = limit(2, Measure.CONCURRENT), limit(100, Measure.OUTPUT_TOKENS, id_="two")
    async with coordinating(path), connected(path) as client:
        worker = client.limits
        await worker.reserve("1", [at_once, used], output_tokens(10))
        async with connected(path) as leaving:
            await leaving.limits.reserve("2", [at_once, used], output_tokens(20))
            assert [each.remaining for each in await worker.read_status([at_once, used])] == [0, 70]
        async with asyncio.timeout(PATIENCE):
            while (await worker.read_status([at_once]))[0].remaining == 0:
                await asyncio.sleep(0.01)
        assert [each.remaining for each in await worker.read_status([at_once, used])] == [1, 70], (
            "what it had reserved counts as used"
        )
        worker.settle("1", NOTHING)
        assert [each.remaining for each in await worker.read_status([at_once, used])] == [2, 80]


async def test_who_leaves_while_asking_has_reserved_nothing(pair) -> None:
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(pair[0].reserve("1", [limit(1)], ONE))
        await asyncio.sleep(0)
        asking.cancel()
    await pair[0].reserve("2", [limit(1)], ONE)


async def test_a_new_coordinator_hears_open_and_recently_ended_claims(path: str) -> None:
    requests, at_once = limit(10), limit(5, Measure.CONCURRENT, id_="two")
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(AsyncExitStack())
        await first.enter_async_context(coordinating(path))
        client = await stack.enter_async_context(connected(path))
        for claim in ("1", "2", "3"):
            await client.limits.reserve(claim, [requests, at_once], ONE)
        await first.aclose()
        await await_until(lambda: not client.limits.available)
        client.limits.settle("1", ONE, LATER)
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(client.limits.reserve("4", [requests, at_once], ONE))
            await stack.enter_async_context(coordinating(path))
            standings = await waiting
        assert [each.remaining for each in standings] == [6, 2], "one that ended, two that stand, a new one"


async def test_unheard_settlements_are_told_to_the_next_coordinator(path: str) -> None:
    """The process notices the death late: it settles into a connection that nobody reads any more."""
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(AsyncExitStack())
        await first.enter_async_context(coordinating(path))
        client = await stack.enter_async_context(connected(path))
        await client.limits.reserve("1", [limit(10)], ONE)
        client._send = lambda _: None
        client.limits.settle("1", ONE, LATER)
        await first.aclose()
        await stack.enter_async_context(coordinating(path))
        await await_until(lambda: client.limits.available)
        (standing,) = await client.limits.read_status([limit(10)])
        assert standing.remaining == 9


async def test_a_welcome_that_comes_with_the_greeting_is_answered(path: str, monkeypatch) -> None:
    """Both in one read: what stands is restated all the same."""
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(AsyncExitStack())
        await first.enter_async_context(coordinating(path))
        client = await stack.enter_async_context(connected(path))
        await client.limits.reserve("1", [limit(10)], ONE)
        await first.aclose()
        await await_until(lambda: not client.limits.available)
        received = Channel.data_received
        held: list[bytes] = []

        def receive_together(channel: Channel[Any], data: bytes) -> None:
            if channel._reader._decoder is TO_PROCESS and not channel.greeted.done():
                held.append(data)
                if not holds_welcome(b"".join(held)):
                    return
                data = b"".join(held)
                held.clear()
            received(channel, data)

        monkeypatch.setattr(Channel, "data_received", receive_together)
        await stack.enter_async_context(coordinating(path))
        await await_until(lambda: client.limits.available)
        (standing,) = await client.limits.read_status([limit(10)])
        assert standing.remaining == 9


def holds_welcome(data: bytes) -> bool:
    return any(isinstance(message, Welcome) for message in FrameReader(TO_PROCESS).feed(data))


class SlowLedger:
    """What is asked of it is read at once, and answered when that is released."""

    def __init__(self, seeds: LedgerSeeder) -> None:
        self._seeds = seeds
        self.read, self.released = asyncio.Event(), asyncio.Event()

    async def __call__(self, limits: Sequence[Limit]) -> SeedAmounts:
        taken = await self._seeds(limits)
        self.read.set()
        await self.released.wait()
        return taken


@pytest.mark.parametrize("ended", [-1, 0, 1])
@pytest.mark.parametrize("reads_first", [True, False])
async def test_claims_that_end_at_a_coordinators_start_count_once(
    path: str, tmp_path, ended: int, reads_first: bool
) -> None:
    """It is a row of the ledger, and its process tells it. `ended`: milliseconds after the beginning."""
    budget, clock = limit(10, window=Window.DAY), SystemClock()
    began = int(clock.wall() * 1_000)
    database = open_new_store(tmp_path / "ledger.db")
    entries = SqlEntries(database)
    ledger = SlowLedger(LedgerSeeder(entries, clock.wall, started_ms=began))
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(AsyncExitStack())
        await first.enter_async_context(coordinating(path))
        one, other = [await stack.enter_async_context(connected(path)) for _ in range(2)]
        await one.limits.reserve("ends", [budget], ONE)
        await first.aclose()
        await await_until(lambda: not one.limits.available and not other.limits.available)
        entries.add([row("ends", began - 40, 40 + ended)])
        if not reads_first:
            one.limits.settle("ends", ONE, began + ended)
        await stack.enter_async_context(coordinating(path, ledger, began))
        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
            group.create_task(other.limits.read_status([budget]))
            await ledger.read.wait()
            await await_until(lambda: one.limits.available)
            if reads_first and ended >= 0:
                one.limits.settle("ends", ONE, began + ended)
            elif reads_first:
                one.limits.settle("ends", NOTHING)  # what ended earlier was told to nobody any more
            ledger.released.set()
        async with asyncio.timeout(PATIENCE):
            while (await other.limits.read_status([budget]))[0].remaining != 9:
                await asyncio.sleep(0.002)
        assert (await one.limits.read_status([budget]))[0].remaining == 9
    database.close()


def row(id_: str, at: int, total: int | None) -> Entry:
    return Entry(
        id_, "", at, "default", "key_1", None, dialect="", operation="", asked="", model="m", total_ms=total
    )


async def test_a_limit_newer_than_the_coordinator_counts_all_rows(tmp_path) -> None:
    clock = SystemClock()
    began = int(clock.wall() * 1_000)
    database = open_new_store(tmp_path / "ledger.db")
    entries = SqlEntries(database)
    entries.add([row("a", began - 10, 5), row("b", began - 10, 30), row("c", began - 10, None)])
    seeds = LedgerSeeder(entries, clock.wall, started_ms=began)
    old, new = limit(9), Limit(
        "limit_new", limit(9).subject, "key_1", Measure.REQUESTS, 9, began // 1_000, Window.MINUTE
    )  # fmt: skip
    taken = await seeds([old, new])
    assert {id_: sum(amount for _, amount in parts) for id_, parts in taken.items()} == {
        old.id: 2,
        new.id: 3,
    }
    later = LedgerSeeder(entries, lambda: clock.wall() + 30.0, started_ms=began)
    assert sum(amount for _, amount in (await later([old]))[old.id]) == 3, "all that is told has a counter"
    seeds.close()
    later.close()
    database.close()


async def test_a_coordinator_that_stays_away_is_told_to_the_caller(path: str) -> None:
    client = CoordinatorClient(path, SystemClock())
    limits = SharedLimiter(client, SystemClock(), patience=0.05)
    assert not limits.available
    with pytest.raises(LimitsUnavailable, match="counts the limits is unavailable"):
        await limits.reserve("1", [limit(1)], ONE)


async def test_bytes_that_are_no_frames_end_that_connection_only(path: str) -> None:
    async with coordinating(path), connected(path) as client:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"GET / HTTP/1.1\r\n\r\n" * 3)
        async with asyncio.timeout(PATIENCE):
            await reader.read()
            assert await reader.read() == b""
        writer.close()
        await client.limits.reserve("1", [limit(1)], ONE)
    assert not os.path.exists(path)  # noqa: ASYNC240
