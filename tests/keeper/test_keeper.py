"""The limits of several processes: one counts for all of them, over a real socket; and what is left of a
claim when either side goes away."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from antiphon.domain.context import SystemClock
from antiphon.domain.limits import Amounts, Measure, Standing, Window
from antiphon.errors import BudgetExceeded, LargerThanLimit, LimitsUnavailable, RateLimited
from antiphon.keeper.sessions import keeping
from antiphon.limits.local import LocalLimiter
from antiphon.limits.remote import RemoteLimiter, remote_limiter
from antiphon.testing.clock import FakeClock
from tests.engines.host.linked import short_directory
from tests.limits.limits import NOON, ONE, limit, tokens

NOTHING = Amounts()
PATIENCE = 20.0


@pytest.fixture
def path():
    with short_directory() as place:
        yield str(place / "keeper.sock")


@asynccontextmanager
async def kept(path: str, *names: str, patience: float = PATIENCE) -> AsyncIterator[list[RemoteLimiter]]:
    """A keeper, and as many workers as there are names."""
    clock = FakeClock(wall=NOON)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(keeping(LocalLimiter(clock), path, NOON))
        yield [await stack.enter_async_context(connected(path)) for _ in names]


@asynccontextmanager
async def connected(path: str) -> AsyncIterator[RemoteLimiter]:
    async with remote_limiter(path, SystemClock()) as limiter:
        await limiter.connected()
        yield limiter


async def test_two_workers_share_a_limit_and_a_refusal_says_all_that_the_keeper_knows(path: str) -> None:
    requests, few = limit(3), limit(100, Measure.OUTPUT_TOKENS, id_="two")
    async with kept(path, "a", "b") as (one, other):
        (standing, _) = await one.reserve("1", [requests, few], ONE)
        assert (standing.limit, standing.remaining) == (requests, 2)
        await other.reserve("2", [requests, few], ONE)
        (standing, _) = await one.reserve("3", [requests, few], ONE)
        assert standing.remaining == 0
        with pytest.raises(RateLimited) as refused:
            await other.reserve("4", [requests, few], ONE)
        assert refused.value.limit == requests.id
        assert refused.value.retry_after == pytest.approx(60.0, abs=0.5)
        standings = [each for each in refused.value.standings if isinstance(each, Standing)]
        assert [each.limit for each in standings] == [requests, few]
        with pytest.raises(LargerThanLimit) as larger:
            await other.extend("2", [requests, few], tokens(101))
        assert larger.value.limit == few.id
        (_, standing) = await other.extend("2", [requests, few], tokens(40))
        assert standing.remaining == 60
        other.settle("2", tokens(10))
        (asked,) = await other.standing([few])
        assert asked.remaining == 90, "what is settled is told before what is asked later"


async def test_a_budget_that_is_gone_stays_a_budget(path: str) -> None:
    async with kept(path, "a") as (worker,):
        spent = limit(1, window=Window.DAY)
        await worker.reserve("1", [spent], ONE)
        with pytest.raises(BudgetExceeded) as refused:
            await worker.reserve("2", [spent], ONE)
        assert refused.value.retry_after == pytest.approx(12 * 3600.0)


async def test_the_end_of_a_worker_ends_its_claims_and_no_others(path: str) -> None:
    at_once, used = limit(2, Measure.CONCURRENT), limit(100, Measure.OUTPUT_TOKENS, id_="two")
    async with kept(path, "a") as (worker,):
        await worker.reserve("1", [at_once, used], tokens(10))
        async with connected(path) as leaving:
            await leaving.reserve("2", [at_once, used], tokens(20))
            assert [each.remaining for each in await worker.standing([at_once, used])] == [0, 70]
        async with asyncio.timeout(PATIENCE):
            while (await worker.standing([at_once]))[0].remaining == 0:
                await asyncio.sleep(0.01)
        assert [each.remaining for each in await worker.standing([at_once, used])] == [1, 70], (
            "what it had reserved counts as used"
        )
        worker.settle("1", NOTHING)
        assert [each.remaining for each in await worker.standing([at_once, used])] == [2, 80]


async def test_who_leaves_while_asking_has_reserved_nothing(path: str) -> None:
    async with kept(path, "a") as (worker,):
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(worker.reserve("1", [limit(1)], ONE))
            await asyncio.sleep(0)
            asking.cancel()
        await worker.reserve("2", [limit(1)], ONE)


async def test_a_keeper_that_comes_back_hears_what_stands_and_what_ended_since_it_began(path: str) -> None:
    requests, at_once = limit(10), limit(5, Measure.CONCURRENT, id_="two")
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(AsyncExitStack())
        await first.enter_async_context(keeping(LocalLimiter(SystemClock()), path, 0.0))
        worker = await stack.enter_async_context(connected(path))
        for claim in ("1", "2", "3"):
            await worker.reserve(claim, [requests, at_once], ONE)
        await first.aclose()
        async with asyncio.timeout(PATIENCE):
            while worker.available:
                await asyncio.sleep(0.01)
        worker.settle("1", ONE)
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(worker.reserve("4", [requests, at_once], ONE))
            await stack.enter_async_context(keeping(LocalLimiter(SystemClock()), path, 0.0))
            standings = await waiting
        assert [each.remaining for each in standings] == [6, 2], "one that ended, two that stand, a new one"


async def test_what_ended_before_a_new_keeper_began_is_left_to_the_ledger(path: str) -> None:
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(AsyncExitStack())
        await first.enter_async_context(keeping(LocalLimiter(SystemClock()), path, 0.0))
        worker = await stack.enter_async_context(connected(path))
        await worker.reserve("1", [limit(10)], ONE)
        await first.aclose()
        async with asyncio.timeout(PATIENCE):
            while worker.available:
                await asyncio.sleep(0.01)
        worker.settle("1", ONE)
        clock = SystemClock()
        await stack.enter_async_context(keeping(LocalLimiter(clock), path, clock.wall()))
        (standing,) = await worker.standing([limit(10)])
        assert standing.remaining == 10


async def test_a_keeper_that_stays_away_is_told_to_the_caller(path: str) -> None:
    limiter = RemoteLimiter(path, SystemClock(), patience=0.05)
    assert not limiter.available
    with pytest.raises(LimitsUnavailable, match="keeps the limits is away"):
        await limiter.reserve("1", [limit(1)], ONE)


async def test_bytes_that_are_no_frames_end_that_connection_only(path: str) -> None:
    async with kept(path, "a") as (worker,):
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"GET / HTTP/1.1\r\n\r\n" * 3)
        async with asyncio.timeout(PATIENCE):
            await reader.read()
            assert await reader.read() == b""
        writer.close()
        await worker.reserve("1", [limit(1)], ONE)
    assert not os.path.exists(path)  # noqa: ASYNC240
