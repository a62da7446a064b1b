"""What all processes of a server know alike: names of adapters, revisions of the directory, and metrics."""

import asyncio
import threading
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from antiphon.domain.context import SystemClock
from antiphon.domain.models import Histogram
from antiphon.errors import EngineError
from antiphon.processes.coordinator import coordinator as module
from antiphon.processes.coordinator.client import CoordinatorClient
from antiphon.processes.coordinator.frames import Ping
from antiphon.telemetry.exposition import Family, MetricKind, Totals, sum_series
from tests.processes.coordinator.processes import PATIENCE, Processes, connected, coordinating
from tests.support.host_link import short_directory
from tests.support.waiting import await_until

COUNT = Family("count", MetricKind.COUNTER, "", ("model",))
GAUGE = Family("gauge", MetricKind.GAUGE, "")
TIMES = Family("times", MetricKind.HISTOGRAM, "")
BUCKETS = len(Histogram().counts)


@pytest.fixture
def path():
    with short_directory() as place:
        yield str(place / "coordinator")


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """The coordinator waits as long for a process as a machine may stand still."""
    monkeypatch.setattr(module, "MAX_WAIT_S", PATIENCE)


@pytest.fixture
async def stack():
    async with AsyncExitStack() as stack:
        yield stack


async def three(path: str, stack: AsyncExitStack) -> list[CoordinatorClient]:
    await stack.enter_async_context(coordinating(path))
    return [await stack.enter_async_context(connected(path)) for _ in range(3)]


# --- names of adapters --------------------------------------------------------------------------------------


async def test_every_process_knows_new_names_before_the_answer(path, stack):
    clients = await three(path, stack)
    known: list[list[bytes]] = [[], [], []]
    for client, names in zip(clients, known, strict=True):
        client.subscribe_names(names.append)
    assert await clients[0].publish(0, b"one")
    assert known == [[b"one"]] * 3
    assert await clients[1].publish(1, b"two")
    assert known == [[b"one", b"two"]] * 3
    assert {client.revision for client in clients} == {2}


async def test_of_two_changes_of_the_same_names_one_is_made(path, stack):
    clients = await three(path, stack)
    made = await asyncio.gather(*(client.publish(0, b"%d" % number) for number, client in enumerate(clients)))
    assert sorted(made) == [False, False, True]
    assert {client._names.names for client in clients} == {b"%d" % made.index(True)}


async def test_a_later_process_gets_the_names_after_a_coordinator_died(path, stack):
    async with AsyncExitStack() as first:
        await first.enter_async_context(coordinating(path))
        client = await stack.enter_async_context(connected(path))
        assert await client.publish(0, b"names\nof two lines")
    await await_until(lambda: not client.is_reachable)
    await stack.enter_async_context(coordinating(path))
    later = await stack.enter_async_context(connected(path))
    got: list[bytes] = []
    later.subscribe_names(got.append)
    await await_until(lambda: got == [b"names\nof two lines"])
    await client.wait_connected()
    assert await client.publish(1, b"more")


async def test_names_that_cannot_be_kept_are_told_to_nobody(path, stack):
    clients = await three(path, stack)
    blocking = Path(path).parent / "adapters.new"
    blocking.mkdir()  # as a full disk would, it lets nothing be written
    with pytest.raises(EngineError, match="cannot be changed"):
        await clients[0].publish(0, b"names")
    assert {client.revision for client in clients} == {0}
    blocking.rmdir()
    assert await clients[0].publish(0, b"names")


async def test_names_that_a_coordinator_lost_are_kept_by_the_processes(path, stack):
    async with AsyncExitStack() as first:
        await first.enter_async_context(coordinating(path))
        client = await stack.enter_async_context(connected(path))
        got: list[bytes] = []
        client.subscribe_names(got.append)
        assert await client.publish(0, b"one")
    await await_until(lambda: not client.is_reachable)
    (Path(path).parent / "adapters").unlink()
    await stack.enter_async_context(coordinating(path))
    await await_until(lambda: client.revision == 0)
    assert got == [b"one"]
    assert await client.publish(0, b"one and two")
    assert got == [b"one", b"one and two"]


async def test_names_cannot_be_changed_while_the_coordinator_is_away(path, monkeypatch):
    monkeypatch.setattr("antiphon.processes.coordinator.limiter.PATIENCE_S", 0.05)
    client = CoordinatorClient(path, SystemClock())
    with pytest.raises(EngineError, match="is unavailable"):
        await client.publish(0, b"names")


# --- revisions of the directory -----------------------------------------------------------------------------


async def test_a_revision_is_announced_until_every_process_knows_it(path, stack):
    one, other, starting = await three(path, stack)
    for client in (one, other):
        client.report_revision(4)
    await await_until(lambda: len(one._known_revisions) == len(other._known_revisions) == 2)
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        woken = group.create_task(asyncio.to_thread(other.wait_for_revision, PATIENCE))
        one.report_revision(5)
        announcing = group.create_task(one.announce(5))
        await woken
        assert not announcing.done()
        other.report_revision(5)
    assert not starting._known_revisions.keys() & {"directory"}, (
        "one that has read nothing yet is not waited for"
    )


async def test_a_stuck_process_delays_a_change_only_briefly(path, stack, monkeypatch, caplog):
    monkeypatch.setattr(module, "MAX_WAIT_S", 0.1)
    one, other, _ = await three(path, stack)
    other.report_revision(4)
    await other.call(Ping)
    one.report_revision(5)
    async with asyncio.timeout(PATIENCE):
        await one.announce(5)
    assert "processes_late" in caplog.messages


async def test_a_thread_waits_no_longer_than_it_says(path):
    client = CoordinatorClient(path, SystemClock())
    done = threading.Event()

    def wait() -> None:
        client.wait_for_revision(0.05)
        done.set()

    await asyncio.to_thread(wait)
    assert done.is_set()


# --- metrics ------------------------------------------------------------------------------------------------


class Numbers:
    """What a process counts."""

    def __init__(self, client: CoordinatorClient, count: int, held: int, seconds: float) -> None:
        self.count, self.held = count, held
        self.times = Histogram((1,) * BUCKETS, seconds)
        self.client = client
        client.set_series(self.series)

    def series(self):
        yield COUNT, {("m",): self.count}
        yield GAUGE, {(): self.held}
        yield TIMES, {(): self.times}

    async def sums(self, served: str = "m") -> tuple[float, float, float, int]:
        """Count of a model, gauge, seconds of all times, and processes."""
        processes, others = await self.client.collect_totals()
        found = {
            family.name: values for family, values in sum_series(self.series(), others, {served}.__contains__)
        }
        times = found["times"][()]
        count, gauge = found["count"][("m",)], found["gauge"][()]
        assert isinstance(times, Histogram)
        assert not isinstance(count, Histogram) and not isinstance(gauge, Histogram)
        return count, gauge, times.total, processes + 1

    async def reach(self, *wanted: float) -> None:
        async with asyncio.timeout(PATIENCE):
            while await self.sums() != wanted:
                await asyncio.sleep(0.01)


async def test_all_are_added_up_and_the_dead_count_but_hold_nothing(path, stack):
    await stack.enter_async_context(coordinating(path))
    own = await stack.enter_async_context(AsyncExitStack())
    one = Numbers(await stack.enter_async_context(connected(path)), 3, 100, 1.5)
    other = Numbers(await own.enter_async_context(connected(path)), 4, 20, 2.0)
    await one.reach(7, 120, 3.5, 2)
    await other.reach(7, 120, 3.5, 2)
    other.count = 5
    await one.reach(8, 120, 3.5, 2)
    other.count = 6
    await own.aclose()
    await one.reach(9, 100, 3.5, 1)
    assert (await one.sums("another"))[0] == 3, "of others only models that are served"


async def test_a_new_coordinator_counts_those_that_live(path, stack):
    async with AsyncExitStack() as first:
        await first.enter_async_context(coordinating(path))
        one = Numbers(await stack.enter_async_context(connected(path)), 3, 1, 1.0)
        other = Numbers(await stack.enter_async_context(connected(path)), 4, 1, 1.0)
        async with AsyncExitStack() as third:
            gone = Numbers(await third.enter_async_context(connected(path)), 10, 1, 1.0)
            await gone.reach(17, 3, 3.0, 3)
        await one.reach(17, 2, 3.0, 2)
    await await_until(lambda: not one.client.is_reachable and not other.client.is_reachable)
    await stack.enter_async_context(coordinating(path))
    await one.reach(7, 2, 2.0, 2)


async def test_in_a_replacement_of_the_only_process_its_counts_stay(path, stack):
    processes = Processes(path, stack)
    old = Numbers(await processes.begin(), 3, 1, 1.0)
    assert await old.sums() == (3, 1, 1.0, 1)
    new = Numbers(await processes.begin(), 4, 1, 1.0)
    old.client.close_local()
    await new.reach(7, 2, 2.0, 2)
    await processes.end(old.client)
    await new.reach(7, 1, 2.0, 1)
    last = Numbers(await processes.begin(), 1, 1, 1.0)
    new.client.close_local()
    await last.reach(8, 2, 3.0, 2)
    await processes.end(new.client)
    await last.reach(8, 1, 3.0, 1)


def test_totals_of_one_process_are_its_series():
    totals = Totals.from_series([(COUNT, {("m",): 3}), (GAUGE, {(): 2.5})])
    assert totals == Totals({"count": {("m",): 3}}, {"gauge": {(): 2.5}})


# --- whether it is there ------------------------------------------------------------------------------------


async def test_a_coordinator_responds_unless_it_is_away_or_silent(path, stack, monkeypatch):
    def wait_for(seconds: float) -> None:
        monkeypatch.setattr("antiphon.processes.coordinator.client.PING_S", seconds)

    client = CoordinatorClient(path, SystemClock())
    wait_for(0.05)
    assert not await client.ping()
    async with coordinating(path), connected(path) as there:
        wait_for(PATIENCE)
        assert await there.ping()
        send = there._send
        there._send = lambda _: None  # as one that stands still
        wait_for(0.05)
        assert not await there.ping() and not there.limits.available
        there._send = send
        wait_for(PATIENCE)
        assert await there.ping() and there.limits.available
    wait_for(0.05)
    assert not await there.ping()
