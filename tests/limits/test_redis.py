"""What only the limiter in Redis does: several nodes, nodes that die, and a Redis that is away."""

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from antiphon.domain.limits import Amounts, BudgetWarning, Measure, Window
from antiphon.errors import BudgetExceeded, LimitsUnavailable, RateLimited, SettingsError, StoreUnavailable
from antiphon.limits.budget_watch import BudgetWatch
from antiphon.limits.redis import LEASE_S, RedisLimiter
from antiphon.limits.windows import find_period
from antiphon_testing.scripted_engine import FakeClock
from tests.limits.kinds import TimedRedis, ended
from tests.support.limits import NOON, ONE, limit, output_tokens
from tests.support.waiting import await_until

OUTPUT = Measure.OUTPUT_TOKENS


@pytest.fixture
async def node(redis_server, clock):
    made = TimedRedis(redis_server.url, clock)
    yield made
    await made.aclose()


@pytest.fixture
async def other(redis_server, clock, node):
    """Another node with the same limits."""
    made = TimedRedis(redis_server.url, clock)
    made._keys = node._keys
    yield made
    await made.aclose()


@asynccontextmanager
async def connected(limiter: RedisLimiter):
    async with asyncio.TaskGroup() as group:
        keeping = group.create_task(limiter.keep_connected())
        yield limiter
        keeping.cancel()
    await limiter.aclose()


async def test_nodes_share_every_limit(node, other):
    limits = [limit(3), limit(100, OUTPUT, Window.DAY, "two"), limit(2, Measure.CONCURRENT, id_="three")]
    await node.reserve("a", limits, Amounts(1, 0, 30))
    standings = await other.reserve("b", limits, Amounts(1, 0, 30))
    assert [each.remaining for each in standings] == [1, 40, 0]
    with pytest.raises(RateLimited, match="at once"):
        await node.reserve("c", limits, Amounts(1, 0, 30))
    await ended(other, "b", Amounts(1, 0, 10))
    assert [each.remaining for each in await node.read_status(limits)] == [1, 60, 1]


async def test_a_share_of_a_budget_is_noticed_on_each_node(node, other):
    budget = limit(100, OUTPUT, Window.DAY)
    given: list[list[BudgetWarning]] = [[], []]
    for each, warnings in zip((node, other), given, strict=True):
        each.watch = BudgetWatch((0.5, 1.0), warnings.append)
    await node.reserve("a", [budget], Amounts(1, 0, 40))
    await ended(node, "a", Amounts(1, 0, 40))
    await node.reserve("b", [budget], Amounts(1, 0, 30))
    await ended(node, "b", Amounts(1, 0, 10))
    await other.reserve("c", [budget], Amounts(1, 0, 10))
    await ended(other, "c", Amounts(1, 0, 10))
    with pytest.raises(BudgetExceeded):
        await other.reserve("d", [budget], Amounts(1, 0, 60))
    assert [(each.share, each.used) for each in given[0]] == [(0.5, 50)]
    assert [(each.share, each.used) for each in given[1]] == [(0.5, 60), (1.0, 60)]
    assert given[0][0].begin == given[1][0].begin, "so the store takes one of them"


async def test_many_at_once_over_two_nodes_take_no_more_than_there_is(node, other):
    budget = limit(10, window=Window.DAY)

    async def asked(number: int) -> bool:
        try:
            await (node, other)[number % 2].reserve(str(number), [budget], ONE)
        except BudgetExceeded:
            return False
        return True

    assert sum(await asyncio.gather(*map(asked, range(100)))) == 10


async def test_requests_of_a_node_that_died_run_until_their_lease_ends(node, other, clock):
    two = limit(2, Measure.CONCURRENT)
    await node.reserve("dies", [two], ONE)
    await other.reserve("lives", [two], ONE)
    clock.advance(LEASE_S - 1)
    await other._renew_leases()
    with pytest.raises(RateLimited):
        await other.reserve("a", [two], ONE)
    clock.advance(2)
    await other.reserve("a", [two], ONE)
    with pytest.raises(RateLimited):
        await other.reserve("b", [two], ONE)


async def test_a_ledger_that_does_not_answer_keeps_no_claim_from_redis(redis_server, clock):
    """The same loop sends settled claims and renews leases."""
    hangs, answers = asyncio.Event(), [StoreUnavailable("away")]

    async def seeds(_):
        if answers:
            raise answers.pop()
        hangs.set()
        await asyncio.Event().wait()

    one = limit(1, Measure.CONCURRENT)
    async with connected(TimedRedis(redis_server.url, clock, seeds)) as node:
        await node.reserve("a", [one], ONE)
        with pytest.raises(LimitsUnavailable):
            await node.reserve("b", [limit(100, OUTPUT, Window.DAY, "two")], ONE)
        clock.advance(LEASE_S / 2)  # for longer than the reader pauses after a failure
        await hangs.wait()
        node.settle("a", ONE)
        await await_until(lambda: not node._settled, what="the claim is sent")
        await node.reserve("c", [one], ONE)


async def test_what_is_sent_twice_is_done_once(node):
    limits = [limit(10), limit(100, OUTPUT, Window.DAY, "two"), limit(5, Measure.CONCURRENT, id_="three")]
    twice = node._call

    async def asked(script, arguments):
        await twice(script, arguments)
        return await twice(script, arguments)

    node._call = asked
    await node.reserve("a", limits, Amounts(1, 0, 30))
    standings = await node.extend("a", limits, output_tokens(20))
    assert [each.remaining for each in standings] == [9, 50, 4]
    await ended(node, "a", Amounts(1, 0, 45))
    assert [each.remaining for each in await node.read_status(limits)] == [9, 55, 5]


async def test_a_caller_who_leaves_while_redis_is_asked_takes_nothing(node, clock):
    limits = [limit(10), limit(5, Measure.CONCURRENT, id_="two")]
    await node.read_status(limits)
    answered, asked = asyncio.Event(), node._call

    async def silent(script, arguments):
        await asked(script, arguments)
        answered.set()
        await asyncio.Event().wait()

    node._call = silent
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(node.reserve("a", limits, ONE))
        await answered.wait()
        asking.cancel()
    node._call = asked
    assert [each.remaining for each in await node.read_status(limits)] == [9, 4]
    await node._send_settled()
    assert [each.remaining for each in await node.read_status(limits)] == [10, 5]


async def test_every_day_of_a_long_time_is_in_the_period_that_it_is_in(node, clock):
    """Over leap years and the ends of years."""
    day = datetime(1999, 12, 25, 23, 59, 59, tzinfo=UTC)
    budgets = [limit(10, window=window, id_=window) for window in (Window.DAY, Window.WEEK, Window.MONTH)]
    for number in range(0, 12_000, 11):
        at = (day + timedelta(days=number, seconds=number % 3)).timestamp()
        node._clock = FakeClock(wall=at)
        resets = [each.reset for each in await node.read_status(budgets)]
        ends = [find_period(each.window, at)[1] - at for each in budgets if each.window is not None]
        assert resets == pytest.approx(ends), at


@pytest.mark.parametrize("ahead", [-120.0, 120.0])
async def test_the_clock_of_redis_says_which_day_it_is(node, ahead):
    """A minute from midnight, before it and after it, the node thinks of another day."""
    midnight = find_period(Window.DAY, NOON)[1]
    node.ahead = ahead
    node._clock = FakeClock(wall=midnight - ahead / 2)
    budget = limit(10, window=Window.DAY)
    (standing,) = await node.reserve("a", [budget], ONE)
    assert standing.reset == pytest.approx(60 if ahead < 0 else 24 * 3600 - 60)
    await ended(node, "a", Amounts(requests=3))
    assert [each.remaining for each in await node.read_status([budget])] == [7]
    node._clock.advance(130)
    assert [each.remaining for each in await node.read_status([budget])] == [10 if ahead < 0 else 7]


async def test_every_key_expires(node):
    limits = [limit(10), limit(10, window=Window.MONTH, id_="two"), limit(5, Measure.CONCURRENT, id_="three")]
    await node.reserve("a", limits, ONE)
    (prefix,) = node._keys
    keys = [key for key in await node._redis.keys(f"{prefix}:*") if key[-7:] not in ("seconds", ":micros")]
    assert len(keys) == 5
    for key in keys:
        assert 0 < await node._redis.ttl(key) <= 40 * 24 * 3600, key
    await ended(node, "a", ONE)
    assert not await node._redis.exists(f"{prefix}:k:a", f"{prefix}:r:limit_three")


async def test_nothing_passes_without_redis_and_all_settles_later(own_redis, clock):
    async with connected(RedisLimiter(own_redis.url, FakeClock())) as limiter:
        three = limit(3)
        await limiter.reserve("a", [three], ONE)
        own_redis.stop()
        for _ in range(3):
            with pytest.raises(LimitsUnavailable, match="Redis, which does not answer") as refused:
                await limiter.reserve("b", [three], ONE)
            assert refused.value.retryable
        assert not limiter.available
        with pytest.raises(LimitsUnavailable):
            await limiter.read_status([three])
        with pytest.raises(LimitsUnavailable):
            await limiter.extend("a", [three], ONE)
        limiter.settle("a", ONE)
        own_redis.start()  # empty: what was counted is gone
        await await_until(lambda: limiter.available and not limiter._settled)
        limiter._clock.advance(1)
        assert (await limiter.reserve("c", [three], ONE))[0].remaining == 2


async def test_without_redis_each_process_counts_alone_if_allowed(own_redis):
    async with connected(RedisLimiter(own_redis.url, FakeClock(), fails_open=True)) as limiter:
        two = limit(2)
        await limiter.reserve("before", [two], ONE)
        own_redis.stop()
        assert (await limiter.reserve("a", [two], ONE))[0].remaining == 1
        await limiter.reserve("b", [two], ONE)
        with pytest.raises(RateLimited):
            await limiter.reserve("c", [two], ONE)
        assert (await limiter.read_status([two]))[0].remaining == 0
        limiter.settle("b", Amounts())
        assert (await limiter.extend("a", [two], ONE))[0].remaining == 0
        assert await limiter.extend("before", [two], ONE) == ()
        own_redis.start()
        await await_until(lambda: limiter.available)
        limiter._clock.advance(1)
        assert (await limiter.reserve("d", [two], ONE))[0].remaining == 1


async def test_it_is_known_to_be_away_without_being_asked(own_redis):
    async with connected(RedisLimiter(own_redis.url, FakeClock())) as limiter:
        assert limiter.available
        own_redis.stop()
        await await_until(lambda: not limiter.available)
        own_redis.start()
        await await_until(lambda: limiter.available)


async def test_a_lost_redis_learns_budgets_again_from_the_ledger(own_redis, clock):
    async def seeds(limits):
        return {each.id: [(NOON - 3600, 70)] for each in limits}

    limiter = TimedRedis(own_redis.url, clock, seeds)
    budget = limit(100, OUTPUT, Window.DAY)
    await limiter.reserve("a", [budget], output_tokens(20))
    own_redis.stop()
    own_redis.start()
    assert (await limiter.reserve("b", [budget], output_tokens(20)))[0].remaining == 10
    with pytest.raises(BudgetExceeded):
        await limiter.reserve("c", [budget], output_tokens(20))
    await limiter.aclose()


@pytest.mark.parametrize("url", ["", "localhost:6379", "http://localhost", "sqlite:///x"])
def test_an_address_of_nothing_is_refused_without_being_repeated(url):
    with pytest.raises(SettingsError, match="redis://HOST:PORT/DB") as refused:
        RedisLimiter(url, FakeClock())
    assert not url or url not in str(refused.value)


async def test_nothing_prints_the_password(own_redis, caplog):
    address = own_redis.url.replace("unix://", "unix://ann:canary-hunter2@") + "?db=0"
    limiter = RedisLimiter(address, FakeClock())
    with pytest.raises(LimitsUnavailable) as refused:
        await limiter.reserve("a", [limit(1)], ONE)
    assert "canary" not in f"{refused.value}{caplog.text}{limiter!r}"
    await limiter.aclose()


class OnTheWay:
    """Holds back what a limiter sends, until it is let through; nobody hears the answer."""

    def __init__(self, limiter: Any) -> None:
        self._limiter = limiter
        self._really = limiter._call
        self._sent: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._limiter._call = self._call

    async def _call(self, script, arguments):
        self._sent.set_result((script, arguments))
        await asyncio.Event().wait()

    async def left(self, call) -> None:
        """The caller goes while its call is on the way."""
        async with asyncio.TaskGroup() as group:
            task = group.create_task(call)
            await self._sent
            task.cancel()
        assert task.cancelled()
        self._limiter._call = self._really

    async def arrives(self) -> None:
        await self._really(*self._sent.result())


@pytest.mark.parametrize("late", [False, True], ids=["before", "after its end"])
@pytest.mark.parametrize("times", [1, 2])
async def test_leaving_during_a_reservation_leaves_nothing_counted(node, late, times):
    limits = [limit(10), limit(1000, OUTPUT, Window.MONTH, "two"), limit(5, Measure.CONCURRENT, id_="three")]
    await node.read_status(limits)
    await node.reserve("stays", limits, Amounts(1, 0, 30))
    way = OnTheWay(node)
    await way.left(node.reserve("leaves", limits, Amounts(1, 0, 400)))
    if not late:
        await way.arrives()
    await asyncio.gather(*(node._call(node._settle_script, ["leaves", 0, 0, 0, 0]) for _ in range(times - 1)))
    await node._send_settled()
    if late:
        await way.arrives()
    assert [each.remaining for each in await node.read_status(limits)] == [9, 970, 4]


@pytest.mark.parametrize("late", [False, True], ids=["before", "after its end"])
async def test_leaving_during_an_extension_counts_what_was_used(node, late):
    budget = limit(1000, OUTPUT, Window.MONTH)
    await node.reserve("a", [budget], output_tokens(100))
    way = OnTheWay(node)
    await way.left(node.extend("a", [budget], output_tokens(400)))
    if not late:
        await way.arrives()
    await ended(node, "a", output_tokens(120))
    if late:
        await way.arrives()
    assert (await node.read_status([budget]))[0].remaining == 880


async def test_all_that_is_settled_is_told_where_two_tell_at_once(node, monkeypatch):
    """As at the end: `aclose` tells beside `keep_connected`."""
    monkeypatch.setattr("antiphon.limits.redis.BATCH", 1)
    budget = limit(100, OUTPUT, Window.DAY)
    for claim in "abc":
        await node.reserve(claim, [budget], output_tokens(20))
        node.settle(claim, output_tokens(1))
    await asyncio.gather(node._send_settled(), node._send_settled())
    assert (await node.read_status([budget]))[0].remaining == 97
