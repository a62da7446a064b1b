"""The limits of the only HTTP process while another takes its place, and over a stop and a start: at no
moment is anything forgotten, or counted twice."""

import asyncio
import json
import stat
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from antiphon.domain.limits import Amounts, Limit, Measure, Window
from antiphon.errors import BudgetExceeded, RateLimited, StoreUnavailable
from antiphon.limits.local import LocalLimiter, pop_snapshot, save_snapshot
from antiphon.limits.seeding import SeedAmounts
from antiphon.limits.windows import SECOND_NS, ClockReading
from antiphon.processes.coordinator import coordinator as module
from antiphon.processes.coordinator.client import CoordinatorClient
from antiphon_testing.scripted_engine import FakeClock
from tests.processes.coordinator.processes import KEPT, PATIENCE, Processes
from tests.support.host_link import short_directory
from tests.support.limits import ONE, limit, output_tokens
from tests.support.waiting import await_until

MINUTE = limit(100, Measure.OUTPUT_TOKENS, id_="minute")
DAY = limit(100, Measure.OUTPUT_TOKENS, Window.DAY, id_="day")
AT_ONCE = limit(3, Measure.CONCURRENT, id_="at_once")
ALL = [MINUTE, DAY, AT_ONCE]
LATER = 2**52


@pytest.fixture
def path():
    with short_directory() as place:
        yield str(place / "coordinator")


@pytest.fixture
async def processes(path):
    async with AsyncExitStack() as stack:
        yield Processes(path, stack)


def counts(client: CoordinatorClient) -> bool:
    return client.limits.local is not None


async def left(client: CoordinatorClient) -> list[int]:
    return [each.remaining for each in await client.limits.read_status(ALL)]


async def test_a_new_process_coordinates_once_the_old_one_leaves(processes):
    old = await processes.begin()
    await await_until(lambda: counts(old))
    await old.limits.reserve("ended", ALL, output_tokens(10))
    old.limits.settle("ended", output_tokens(5))
    await old.limits.reserve("runs", ALL, output_tokens(20))
    new = await processes.begin()
    assert not counts(new) and new.limits.available
    assert await left(new) == [75, 75, 2]
    await new.limits.reserve("mine", ALL, output_tokens(30))
    old.close_local()
    await await_until(lambda: counts(new) and old.limits.available)
    await old.limits.extend("runs", ALL, output_tokens(10))
    assert await left(old) == await left(new) == [35, 35, 1]
    with pytest.raises((RateLimited, BudgetExceeded)):
        await new.limits.reserve("too much", ALL, output_tokens(36))
    old.limits.settle("runs", output_tokens(25))
    async with asyncio.timeout(PATIENCE):
        while await left(new) != [40, 40, 2]:
            await asyncio.sleep(0.002)
    await processes.end(old)
    await new.limits.extend("mine", ALL, output_tokens(40))
    assert await left(new) == [0, 0, 2]
    new.limits.settle("mine", output_tokens(1))
    assert await left(new) == [69, 69, 3]


async def test_requests_during_the_handover_count_once(processes):
    old = await processes.begin()
    new = await processes.begin()
    many = limit(10**6, Measure.OUTPUT_TOKENS, Window.DAY)
    under_way = asyncio.Event()

    async def ask(client: CoordinatorClient, name: int) -> None:
        """One request after the other, each of which reserves two and uses one."""
        for number in range(300):
            claim = f"{name}-{number}"
            await client.limits.reserve(claim, [many, AT_ONCE], output_tokens(1))
            await client.limits.extend(claim, [many, AT_ONCE], output_tokens(1))
            await asyncio.sleep(0)
            client.limits.settle(claim, output_tokens(1), LATER)
            if number == 100:
                under_way.set()

    async with asyncio.TaskGroup() as group:
        for name, client in enumerate((new, new, old)):
            group.create_task(ask(client, name))
        await under_way.wait()
        old.close_local()
    await await_until(lambda: counts(new))
    async with asyncio.timeout(PATIENCE):
        while [each.remaining for each in await new.limits.read_status([many, AT_ONCE])] != [10**6 - 900, 3]:
            await asyncio.sleep(0.002)


async def test_a_third_that_comes_meanwhile_counts_with_the_same(processes):
    first = await processes.begin()
    await first.limits.reserve("1", ALL, output_tokens(10))
    second = await processes.begin()
    first.close_local()
    await await_until(lambda: counts(second) and first.limits.available)
    await second.limits.reserve("2", ALL, output_tokens(20))
    third = await processes.begin()
    await third.limits.reserve("3", ALL, output_tokens(30))
    second.close_local()
    await await_until(lambda: counts(third) and first.limits.available and second.limits.available)
    first.limits.settle("1", output_tokens(5))
    second.limits.settle("2", output_tokens(15))
    async with asyncio.timeout(PATIENCE):
        while await left(third) != [50, 50, 2]:
            await asyncio.sleep(0.002)


async def test_claims_that_nobody_restates_count_as_used(processes, monkeypatch):
    monkeypatch.setattr(module, "UNCLAIMED_S", 0.2)
    old = await processes.begin()
    await old.limits.reserve("1", ALL, output_tokens(20))
    await processes.end(old)
    new = await processes.begin()
    assert await left(new) in ([80, 80, 2], [80, 80, 3])
    async with asyncio.timeout(PATIENCE):
        while await left(new) != [80, 80, 3]:
            await asyncio.sleep(0.01)


async def test_after_the_old_process_dies_the_new_ones_claims_count(processes):
    old = await processes.begin()
    new = await processes.begin()
    await new.limits.reserve("mine", ALL, output_tokens(30))
    await new.limits.reserve("ends", ALL, output_tokens(30))
    new._send = lambda _: None  # nobody reads what it says any more
    new.limits.settle("ends", output_tokens(30), 0)  # the ledger has it, which there is none of here
    await processes.kill(old)
    await await_until(lambda: counts(new))
    assert await left(new) == [70, 70, 2]
    new.limits.settle("mine", output_tokens(1))
    assert await left(new) == [99, 99, 3]


class Ledger:
    """What is asked of it is answered when that is released."""

    def __init__(self) -> None:
        self.asked, self.released = asyncio.Event(), asyncio.Event()

    async def __call__(self, limits: Sequence[Limit]) -> SeedAmounts:
        self.asked.set()
        await self.released.wait()
        return {}


async def test_nothing_is_admitted_before_all_open_claims_count(processes):
    old, ledger = await processes.begin(), Ledger()
    new = await processes.begin(ledger)
    for number in range(3):
        await new.limits.reserve(f"{number}", [AT_ONCE], ONE)
    await processes.kill(old)
    async with asyncio.timeout(PATIENCE):
        await ledger.asked.wait()

    async def ask(number: int) -> None:
        with pytest.raises(RateLimited):
            await new.limits.reserve(f"more {number}", [AT_ONCE], ONE)

    async with asyncio.TaskGroup() as group:
        for number in range(5):
            group.create_task(ask(number))
        await asyncio.sleep(0)
        ledger.released.set()


async def test_no_limit_starts_at_zero_while_the_ledger_is_unreadable(processes):
    reads = 0

    async def seeds(limits: Sequence[Limit]) -> SeedAmounts:
        nonlocal reads
        reads += 1
        if reads == 1:
            raise StoreUnavailable("gone")
        return {AT_ONCE.id: [], DAY.id: [(time.time(), 60)]}

    old = await processes.begin()
    new = await processes.begin(seeds)
    await new.limits.reserve("runs", [DAY], output_tokens(10))
    await processes.kill(old)
    async with asyncio.timeout(PATIENCE):
        await await_until(lambda: counts(new))
    assert [each.remaining for each in await new.limits.read_status([DAY])] == [30]


async def test_a_new_one_that_never_serves_changes_nothing(processes):
    old = await processes.begin()
    await old.limits.reserve("1", ALL, ONE)
    new = await processes.begin()
    await processes.end(new)
    assert counts(old) and await left(old) == [100, 100, 2]
    old.limits.settle("1", Amounts())


@pytest.mark.parametrize("missing", [".lock", ""])
async def test_where_no_lock_or_socket_can_be_made_it_counts_alone(path, processes, missing):
    Path(f"{path}{missing}").mkdir()  # noqa: ASYNC240
    only = await processes.begin()
    await only.limits.reserve("1", ALL, output_tokens(10))
    assert await left(only) == [90, 90, 2]


async def test_what_was_counted_outlives_a_stop_and_a_start_in_a_file(path, processes):
    first = await processes.begin()
    await first.limits.reserve("1", ALL, output_tokens(30))
    first.limits.settle("1", output_tokens(20))
    await processes.end(first)
    kept = Path(path).parent / KEPT
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    second = await processes.begin()
    assert not kept.exists()
    assert await left(second) == [80, 80, 3]
    await processes.kill(second)
    third = await processes.begin()
    assert await left(third) == [100, 100, 3], "after a death there is the ledger alone"


NOW = ClockReading(50_000 * SECOND_NS, 1_800_000_000.0)


@pytest.mark.parametrize(
    ("wall", "monotonic", "is_used"),
    [
        (10.0, 10.0, True),
        (10.0, 10.9, True),
        (61.0, 61.0, False),
        (10.0, 15.0, False),
        (-3.0, -3.0, False),
        (10.0, -40_000.0, False),
    ],
)
def test_a_file_is_used_while_its_places_mean_the_same(tmp_path, wall, monotonic, is_used):
    """Not an old one, nor where a clock was set, nor after another start of the machine."""
    clock, path = FakeClock(NOW.monotonic / SECOND_NS, NOW.wall), tmp_path / KEPT
    save_snapshot(path, LocalLimiter(clock).build_snapshot())
    now = ClockReading(NOW.monotonic + int(monotonic * SECOND_NS), NOW.wall + wall)
    assert (pop_snapshot(path, now) is not None) is is_used
    assert not path.exists()


@pytest.mark.parametrize("content", [b"", b"{}", b'{"at":', b"\xff\xfe"])
def test_a_file_that_cannot_be_read_is_none(tmp_path, content):
    path = tmp_path / KEPT
    path.write_bytes(content)
    assert pop_snapshot(path, NOW) is None and not path.exists()


def test_a_file_of_another_release_is_none(tmp_path):
    path = tmp_path / KEPT
    save_snapshot(path, LocalLimiter(FakeClock(NOW.monotonic / SECOND_NS, NOW.wall)).build_snapshot())
    path.write_text(json.dumps(json.loads(path.read_text()) | {"release": "0"}))
    assert pop_snapshot(path, NOW) is None
