"""The limits of the only HTTP process while another takes its place: at no moment is anything forgotten, or
counted twice."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from antiphon.domain.context import SystemClock
from antiphon.domain.limits import Amounts, Limit, Measure, Window
from antiphon.errors import BudgetExceeded, RateLimited
from antiphon.keeper import succession as module
from antiphon.keeper.succession import Succession, succeeding
from antiphon.limits.local import LocalLimiter
from antiphon.limits.seeding import Seeds, Taken
from tests.engines.host.linked import short_directory
from tests.limits.limits import ONE, limit, tokens

PATIENCE = 20.0
MINUTE = limit(100, Measure.OUTPUT_TOKENS, id_="minute")
DAY = limit(100, Measure.OUTPUT_TOKENS, Window.DAY, id_="day")
AT_ONCE = limit(3, Measure.CONCURRENT, id_="at_once")
ALL = [MINUTE, DAY, AT_ONCE]


@pytest.fixture
def path():
    with short_directory() as place:
        yield place / "counting"


async def soon(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not true():
            await asyncio.sleep(0.002)


class Processes:
    """As many as are begun, each of which may end by itself; all in one event loop."""

    def __init__(self, path: Path, stack: AsyncExitStack) -> None:
        self._path, self._stack = path, stack
        self._ends: dict[Succession, Callable[[], Awaitable[None]]] = {}

    async def begun(self, seeds: Seeds | None = None) -> Succession:
        own = await self._stack.enter_async_context(AsyncExitStack())
        clock = SystemClock()
        made = succeeding(self._path, clock, lambda: LocalLimiter(clock, seeds), PATIENCE)
        limiter = await own.enter_async_context(made)
        self._ends[limiter] = own.aclose
        return limiter

    async def end(self, limiter: Succession) -> None:
        await self._ends.pop(limiter)()

    async def kill(self, limiter: Succession, monkeypatch: pytest.MonkeyPatch) -> None:
        """It leaves nothing to anybody."""

        async def nothing(*_: object) -> bool:
            return False

        with monkeypatch.context() as then:
            then.setattr("antiphon.keeper.sessions.Keeper.bequeath", nothing)
            await self.end(limiter)


@pytest.fixture
async def processes(path):
    async with AsyncExitStack() as stack:
        yield Processes(path, stack)


async def left(limiter: Succession) -> list[int]:
    return [each.remaining for each in await limiter.standing(ALL)]


async def test_the_new_one_asks_the_old_one_and_counts_by_itself_when_that_has_ended(processes):
    old = await processes.begun()
    assert old.counts
    await old.reserve("ended", ALL, tokens(10))
    old.settle("ended", tokens(5))
    await old.reserve("runs", ALL, tokens(20))
    new = await processes.begun()
    assert not new.counts and new.available
    assert await left(new) == [75, 75, 2]
    await new.reserve("mine", ALL, tokens(30))
    await old.extend("runs", ALL, tokens(10))
    assert await left(old) == await left(new) == [35, 35, 1]
    with pytest.raises((RateLimited, BudgetExceeded)):
        await new.reserve("too much", ALL, tokens(36))
    old.settle("runs", tokens(25))
    await processes.end(old)
    await soon(lambda: new.counts)
    assert await left(new) == [40, 40, 2]
    await new.extend("mine", ALL, tokens(40))
    assert await left(new) == [0, 0, 2]
    new.settle("mine", tokens(1))
    assert await left(new) == [69, 69, 3]


async def test_what_is_asked_and_settled_at_the_handover_itself_counts_once(processes):
    old = await processes.begun()
    new = await processes.begun()
    many = limit(10**6, Measure.OUTPUT_TOKENS, Window.DAY)
    used, under_way = 0, asyncio.Event()

    async def asking(name: int) -> int:
        """One request after the other, each of which reserves two and uses one."""
        made = 0
        while made < 300:
            claim = f"{name}-{made}"
            await new.reserve(claim, [many, AT_ONCE], tokens(1))
            await new.extend(claim, [many, AT_ONCE], tokens(1))
            await asyncio.sleep(0)
            new.settle(claim, tokens(1))
            made += 1
            if made == 100:
                under_way.set()
        return made

    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(asking(name)) for name in range(3)]
        await under_way.wait()
        await processes.end(old)
    used = sum(task.result() for task in asked)
    assert new.counts and used == 900
    assert [each.remaining for each in await new.standing([many, AT_ONCE])] == [10**6 - used, 3]


async def test_a_third_that_comes_meanwhile_counts_with_the_same(processes):
    first = await processes.begun()
    await first.reserve("1", ALL, tokens(10))
    second = await processes.begun()
    await second.reserve("2", ALL, tokens(20))
    third = await processes.begun()
    await third.reserve("3", ALL, tokens(30))
    first.settle("1", tokens(10))
    await processes.end(first)
    await soon(lambda: (second.counts or third.counts) and second.available and third.available)
    assert third.counts, "the one that came last is the one that stays"
    second.settle("2", tokens(15))
    await soon(lambda: not second.counts and second.available)
    async with asyncio.timeout(PATIENCE):
        while await left(third) != [45, 45, 2]:
            await asyncio.sleep(0.002)
    await processes.end(second)
    third.settle("3", tokens(30))
    assert await left(third) == [45, 45, 3]


async def test_claims_that_a_third_left_and_never_comes_back_for_count_as_used(processes, monkeypatch):
    monkeypatch.setattr(module, "ORPHANED_S", 0.2)
    first, second = await processes.begun(), await processes.begun()
    await second.reserve("2", ALL, tokens(20))
    third = await processes.begun()
    monkeypatch.setattr(second._remote, "connection", asyncio.Event().wait)  # it hangs from here on
    await processes.end(first)
    await soon(lambda: third.counts)
    assert await left(third) == [80, 80, 2]
    async with asyncio.timeout(PATIENCE):
        while await left(third) != [80, 80, 3]:
            await asyncio.sleep(0.01)


async def test_after_the_death_of_the_old_one_what_runs_in_the_new_one_counts(processes, monkeypatch):
    old = await processes.begun()
    new = await processes.begun()
    await new.reserve("mine", ALL, tokens(30))
    await new.reserve("ends", ALL, tokens(30))
    await processes.kill(old, monkeypatch)
    new.settle("ends", tokens(30))  # the ledger has it, which there is none of here
    await soon(lambda: new.counts)
    assert await left(new) == [70, 70, 2]
    new.settle("mine", tokens(1))
    assert await left(new) == [99, 99, 3]


class Ledger:
    """What is asked of it is read at once, and answered when that is released."""

    def __init__(self) -> None:
        self.rows: dict[str, list[tuple[float, int]]] = {}
        self.read, self.released = asyncio.Event(), asyncio.Event()

    async def __call__(self, limits: Sequence[Limit]) -> Taken:
        taken = {each.id: tuple(self.rows.get(each.id, ())) for each in limits}
        self.read.set()
        await self.released.wait()
        return taken


async def test_after_a_death_what_ends_while_the_ledger_is_read_counts_too(processes, monkeypatch):
    old, ledger, clock = await processes.begun(), Ledger(), SystemClock()
    new = await processes.begun(ledger)
    others = [limit(100, Measure.OUTPUT_TOKENS, Window.DAY, id_="other")]
    await new.reserve("runs", ALL, tokens(10))
    await new.reserve("ends", ALL, tokens(30))
    await new.reserve("ends unread", others, tokens(40))
    ledger.rows = {DAY.id: [(clock.wall(), 5)]}
    await processes.kill(old, monkeypatch)
    await ledger.read.wait()
    for claim, row in (("ends", DAY.id), ("ends unread", others[0].id)):
        ledger.rows.setdefault(row, []).append((clock.wall(), 20))
        new.settle(claim, tokens(20))
    assert not new.counts
    ledger.released.set()
    await soon(lambda: new.counts)
    assert await left(new) == [70, 65, 2]
    assert (await new.standing(others))[0].remaining <= 80
    new.settle("runs", tokens(10))
    assert await left(new) == [70, 65, 3]


async def test_what_could_not_be_left_to_the_one_that_waits_is_said(processes, monkeypatch, caplog):
    monkeypatch.setattr(module, "BEQUEATHED_S", 0.2)
    old = await processes.begun()
    new = await processes.begun()
    monkeypatch.setattr(new._remote, "_leave", lambda: None)  # it hangs
    await processes.end(old)
    await soon(lambda: new.counts)
    assert [each.levelname for each in caplog.records if each.message == "limits_not_bequeathed"] == [
        "WARNING"
    ]
    caplog.clear()
    await processes.end(new)
    assert "limits_not_bequeathed" not in caplog.messages, "nobody waited"


async def test_a_new_one_that_never_serves_changes_nothing(processes):
    old = await processes.begun()
    await old.reserve("1", ALL, ONE)
    new = await processes.begun()
    await processes.end(new)
    assert old.counts and await left(old) == [100, 100, 2]
    old.settle("1", Amounts())


async def test_where_no_file_can_be_made_it_counts_alone(tmp_path):
    clock = SystemClock()
    made = succeeding(tmp_path / "none" / "counting", clock, lambda: LocalLimiter(clock), PATIENCE)
    async with made as limiter:
        await limiter.reserve("1", ALL, tokens(10))
        assert await left(limiter) == [90, 90, 2]
