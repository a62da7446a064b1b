"""What every limiter does, by a clock that the tests own."""

import pytest

from antiphon.domain.limits import Amounts, LimitStatus, Measure, Window
from antiphon.domain.prices import MAX_COST
from antiphon.errors import BudgetExceeded, LargerThanLimit, LimitsUnavailable, RateLimited, StoreUnavailable
from tests.limits.kinds import TimedRedis, ended
from tests.support.limits import NOON, ONE, limit, output_tokens

MONTH_S = 31 * 86_400

OUTPUT = Measure.OUTPUT_TOKENS


async def test_a_minute_admits_its_limit_and_says_when_it_admits_more(limiter, clock):
    three = limit(3)
    for claim in "abc":
        await limiter.reserve(claim, [three], ONE)
        clock.advance(10)
    with pytest.raises(RateLimited) as refused:
        await limiter.reserve("d", [three], ONE)
    assert str(refused.value) == (
        "Rate limit reached for the key key_1: the limit of 3 requests per minute has no room for 1 request "
        "more. Please try again in 31s."
    )
    wait = refused.value.retry_after
    assert wait is not None and 30 < wait <= 30.06
    clock.advance(wait - 0.001)
    with pytest.raises(RateLimited):
        await limiter.reserve("d", [three], ONE)
    clock.advance(0.001)
    assert await limiter.reserve("d", [three], ONE)
    with pytest.raises(RateLimited):
        await limiter.reserve("e", [three], ONE)


async def test_standings_say_what_is_left_and_when_all_of_it_is(limiter, clock):
    five, budget = limit(5), limit(100, OUTPUT, Window.DAY, "two")
    clock.advance(0.03)
    standings = await limiter.reserve("a", [five, budget], Amounts(requests=1, output_tokens=40))
    assert [each.remaining for each in standings] == [4, 60]
    assert 60 <= standings[0].reset <= 60.06
    assert standings[1].reset == pytest.approx(12 * 3600 - 0.03)
    assert await limiter.read_status([five, budget]) == standings


async def test_a_refusal_by_one_limit_takes_of_none(limiter):
    wide, narrow = limit(10), limit(2, id_="two")
    for claim in "ab":
        await limiter.reserve(claim, [wide, narrow], ONE)
    with pytest.raises(RateLimited) as refused:
        await limiter.reserve("c", [wide, narrow], ONE)
    first, second = refused.value.statuses
    assert isinstance(first, LimitStatus) and first.limit == narrow and first.remaining == 0
    assert isinstance(second, LimitStatus) and second.limit == wide and second.remaining == 8


async def test_settling_gives_back_what_was_reserved_last_at_once(limiter, clock):
    hundred = limit(100, OUTPUT)
    await limiter.reserve("a", [hundred], output_tokens(60))
    clock.advance(30)
    await limiter.extend("a", [hundred], output_tokens(40))
    with pytest.raises(RateLimited):
        await limiter.reserve("b", [hundred], output_tokens(1))
    await ended(limiter, "a", output_tokens(70))  # 60 of the beginning stay, 10 of what came later
    assert (await limiter.read_status([hundred]))[0].remaining == 30
    clock.advance(30.06)
    assert (await limiter.read_status([hundred]))[0].remaining == 90
    clock.advance(30)
    assert (await limiter.read_status([hundred]))[0].remaining == 100


async def test_what_was_used_beyond_the_reservation_counts_too(limiter):
    hundred = limit(100, OUTPUT)
    await limiter.reserve("a", [hundred], output_tokens(10))
    await ended(limiter, "a", output_tokens(120))
    assert (await limiter.read_status([hundred]))[0].remaining == 0
    with pytest.raises(RateLimited):
        await limiter.reserve("b", [hundred], output_tokens(1))
    await limiter.reserve("c", [hundred], output_tokens(0))  # takes nothing of it, so it is not refused


async def test_a_refused_extension_changes_nothing(limiter):
    hundred = limit(100, OUTPUT)
    await limiter.reserve("other", [hundred], output_tokens(10))
    await limiter.reserve("a", [hundred], output_tokens(50))
    with pytest.raises(RateLimited):
        await limiter.extend("a", [hundred], output_tokens(41))
    assert (await limiter.extend("a", [hundred], output_tokens(40)))[0].remaining == 0


async def test_settling_twice_or_what_nobody_claimed_changes_nothing(limiter):
    hundred = limit(100, OUTPUT)
    await limiter.reserve("a", [hundred], output_tokens(60))
    await ended(limiter, "a", output_tokens(50))
    await ended(limiter, "a", output_tokens(0))
    await ended(limiter, "b", output_tokens(10))
    assert (await limiter.read_status([hundred]))[0].remaining == 50
    assert await limiter.extend("a", [hundred], output_tokens(1)) == ()


async def test_requests_at_once_count_while_they_run(limiter, clock):
    two = limit(2, Measure.CONCURRENT)
    for claim in "ab":
        await limiter.reserve(claim, [two], ONE)
    clock.advance(20)
    with pytest.raises(RateLimited, match="for the key key_1: the limit of 2 requests at once ") as refused:
        await limiter.reserve("c", [two], ONE)
    assert refused.value.retry_after == 1.0
    await ended(limiter, "a", ONE)
    await limiter.reserve("c", [two], ONE)


async def test_a_released_place_is_free_while_the_rest_stays_reserved(limiter):
    limits = [limit(1, Measure.CONCURRENT), limit(100, OUTPUT, id_="two")]
    await limiter.reserve("a", limits, Amounts(1, 0, 60))
    for claim in ("a", "a", "unknown"):
        limiter.release_place(claim)
    if isinstance(limiter, TimedRedis):
        await limiter._send_settled()
    assert [each.remaining for each in await limiter.read_status(limits)] == [1, 40]
    await limiter.reserve("b", limits, ONE)
    await ended(limiter, "a", Amounts(1, 0, 10))
    assert [each.remaining for each in await limiter.read_status(limits)] == [0, 90]


@pytest.mark.parametrize(
    ("window", "hours", "ends"),
    [
        (Window.DAY, 12, "2027-01-16 00:00:00"),
        (Window.WEEK, 60, "2027-01-18 00:00:00"),
        (Window.MONTH, 16 * 24 + 12, "2027-02-01 00:00:00"),
    ],
)
async def test_a_budget_resets_with_its_period(limiter, clock, window, hours, ends):
    budget = limit(100, OUTPUT, window)
    await limiter.reserve("a", [budget], output_tokens(99))
    clock.advance(hours * 3600 - 1)
    with pytest.raises(BudgetExceeded) as refused:
        await limiter.reserve("b", [budget], output_tokens(2))
    assert str(refused.value) == (
        f"You exceeded your current quota: the budget of 100 output tokens per {window} for the key key_1 "
        f"has no room for 2 output tokens more. It resets at {ends} UTC."
    )
    assert refused.value.retry_after == pytest.approx(1)
    clock.advance(1)
    await limiter.reserve("b", [budget], output_tokens(100))
    with pytest.raises(BudgetExceeded, match=r"for the key key_1 is used up\. It resets"):
        await limiter.reserve("c", [budget], output_tokens(1))
    await ended(limiter, "a", output_tokens(0))  # of the period before
    assert (await limiter.read_status([budget]))[0].remaining == 0


async def test_a_clock_that_is_set_back_finds_what_was_used(limiter, clock):
    budget = limit(100, OUTPUT, Window.DAY)
    clock.advance(12 * 3600 - 1)
    await limiter.reserve("a", [budget], output_tokens(70))
    clock.advance(2)
    await limiter.reserve("b", [budget], output_tokens(10))
    clock.advance(-2)
    assert (await limiter.read_status([budget]))[0].remaining == 30


@pytest.mark.parametrize("window", [Window.DAY, Window.WEEK, Window.MONTH])
async def test_a_clock_that_jumps_ahead_several_times_and_back_forgets_nothing(limiter, clock, window):
    """Each jump is to another period, in which something is used too."""
    budget = limit(100, OUTPUT, window)
    await limiter.reserve("a", [budget], output_tokens(70))
    for number in range(5):
        clock.set_forward(MONTH_S)
        await limiter.reserve(f"ahead {number}", [budget], output_tokens(90))
    clock.set_forward(-5 * MONTH_S)
    assert (await limiter.read_status([budget]))[0].remaining == 30
    await ended(limiter, "a", output_tokens(20))
    assert (await limiter.read_status([budget]))[0].remaining == 80


@pytest.mark.parametrize("window", [Window.MINUTE, Window.MONTH])
async def test_a_request_larger_than_the_limit_is_told_so(limiter, window):
    with pytest.raises(LargerThanLimit) as refused:
        await limiter.reserve("a", [limit(100, OUTPUT, window)], output_tokens(101))
    assert "this request alone takes 101 output tokens, which is larger than the limit of" in str(
        refused.value
    )
    assert not refused.value.retryable and refused.value.retry_after is None


async def test_so_is_one_whose_size_is_told_later(limiter):
    """The pipeline reserves before it knows the size, and extends once it does."""
    for each in (limit(100, OUTPUT), limit(100, OUTPUT, Window.DAY, "two")):
        await limiter.reserve(each.id, [each], output_tokens(1))
        with pytest.raises(LargerThanLimit, match="this request alone takes 101 output tokens"):
            await limiter.extend(each.id, [each], output_tokens(100))
        await limiter.extend(each.id, [each], output_tokens(90))
        with pytest.raises((RateLimited, BudgetExceeded)):
            await limiter.extend(each.id, [each], output_tokens(10))  # it runs, and has used up what there is


async def test_of_several_refusals_the_one_that_lasts_longest_is_said(limiter, clock):
    first, second, budget = limit(1), limit(1, id_="two"), limit(1, window=Window.DAY, id_="three")
    await limiter.reserve("a", [first], ONE)
    clock.advance(10)
    await limiter.reserve("b", [second], ONE)
    with pytest.raises(RateLimited) as refused:
        await limiter.reserve("c", [first, second], ONE)
    assert (refused.value.retry_after or 0) >= 60
    await limiter.reserve("d", [budget], ONE)
    with pytest.raises(BudgetExceeded):
        await limiter.reserve("e", [first, budget, second], ONE)


async def test_a_changed_limit_applies_to_earlier_usage_at_once(limiter):
    await limiter.reserve("a", [limit(100, OUTPUT)], output_tokens(60))
    with pytest.raises(RateLimited):
        await limiter.reserve("b", [limit(50, OUTPUT)], output_tokens(1))
    with pytest.raises(LargerThanLimit):
        await limiter.extend("a", [limit(50, OUTPUT)], output_tokens(1))
    assert (await limiter.reserve("c", [limit(70, OUTPUT)], output_tokens(10)))[0].remaining == 0


@pytest.mark.parametrize("window", [Window.MINUTE, Window.DAY])
async def test_what_runs_is_held_to_a_limit_as_it_is_now(limiter, window):
    """Whoever reserved it knows the limit as it is; nobody else has said it to the limiter."""
    small, large, smaller = (limit(amount, OUTPUT, window) for amount in (100, 1_000, 130))
    await limiter.reserve("a", [small], output_tokens(60))
    await limiter.extend("a", [small], output_tokens(40))
    with pytest.raises((RateLimited, BudgetExceeded)):
        await limiter.extend("a", [small], output_tokens(1))
    (standing,) = await limiter.extend("a", [large], output_tokens(20))
    assert (standing.limit, standing.remaining) == (large, 880)
    with pytest.raises((RateLimited, BudgetExceeded), match=r"the (limit|budget) of 130 output"):
        await limiter.extend("a", [smaller], output_tokens(11))
    assert (await limiter.extend("a", [smaller], output_tokens(10)))[0].remaining == 0


async def test_looking_at_a_limit_changes_nothing_for_what_runs(limiter):
    hundred = limit(100, OUTPUT)
    await limiter.reserve("a", [hundred], output_tokens(60))
    await limiter.extend("a", [hundred], output_tokens(1))
    assert (await limiter.read_status([limit(1_000, OUTPUT)]))[0].remaining == 939
    with pytest.raises(RateLimited):
        await limiter.extend("a", [hundred], output_tokens(40))


async def test_a_limit_that_is_removed_refuses_nothing_that_runs(limiter):
    gone, stays = limit(100, OUTPUT), limit(300, OUTPUT, Window.DAY, "two")
    at_once = limit(1, Measure.CONCURRENT, id_="three")
    await limiter.reserve("a", [gone, at_once, stays], output_tokens(90))
    (standing,) = await limiter.extend("a", [stays], output_tokens(110))
    assert (standing.limit, standing.remaining) == (stays, 100)
    with pytest.raises(BudgetExceeded) as refused:
        await limiter.extend("a", [stays], output_tokens(101))
    assert [each.limit for each in refused.value.statuses if isinstance(each, LimitStatus)] == [stays]
    assert await limiter.extend("a", [], output_tokens(500)) == ()
    await ended(limiter, "a", output_tokens(250))
    assert [each.remaining for each in await limiter.read_status([stays, at_once])] == [50, 1]


async def test_costs_are_said_in_units_of_the_currency(limiter):
    budget = limit(1_500_000_000, Measure.COST, Window.DAY)
    await limiter.reserve("a", [budget], Amounts(cost=1_499_999_999))
    with pytest.raises(BudgetExceeded, match=r"the budget of 1\.5 in cost per day .* 0\.000000002 in cost"):
        await limiter.reserve("b", [budget], Amounts(cost=2))


async def test_a_counter_begins_with_what_the_ledger_knows(limiters, clock):
    known = {
        "limit_one": [(NOON - 20, 7), (NOON - 61, 20), (NOON - 10, 1)],
        "limit_two": [(NOON - 13 * 3600, 1_000), (NOON - 3600, 30), (NOON - 10, 8)],
    }
    asked = []

    async def seeds(limits):
        asked.append([each.id for each in limits])
        return known

    limiter = limiters(seeds)
    minute, day = limit(100, OUTPUT), limit(100, OUTPUT, Window.DAY, "two")
    standings = await limiter.read_status([minute, day])
    assert [each.remaining for each in standings] == [92, 62]
    clock.advance(40.06)
    standings = await limiter.reserve("a", [minute, day], output_tokens(1))
    assert [each.remaining for each in standings] == [98, 61]
    assert asked == [["limit_one", "limit_two"]]


async def test_without_a_ledger_nothing_passes_unless_allowed(limiters, clock):
    asked = []

    async def seeds(limits):
        asked.append(limits)
        raise StoreUnavailable("gone")

    closed = limiters(seeds)
    for _ in range(3):
        with pytest.raises(LimitsUnavailable):
            await closed.reserve("a", [limit(1)], ONE)
    assert len(asked) == 1  # one that does not answer is not asked for every request
    clock.advance(1.1)
    with pytest.raises(LimitsUnavailable):
        await closed.reserve("a", [limit(1)], ONE)
    assert len(asked) == 2
    assert await limiters(seeds, fails_open=True).reserve("a", [limit(1)], ONE)


@pytest.mark.parametrize("window", [Window.MINUTE, Window.MONTH])
async def test_amounts_are_exact_up_to_what_a_limit_may_be(limiters, clock, window):
    budget = limit(MAX_COST, Measure.COST, window)

    async def seeds(_):
        return {budget.id: [(NOON - 2, budget.amount - 2**53 - 5), (NOON - 1, 2**53)]}

    limiter = limiters(seeds)
    assert (await limiter.reserve("a", [budget], Amounts(cost=3)))[0].remaining == 2
    with pytest.raises(
        (BudgetExceeded, RateLimited), match=r"of 9000000000 in cost .* 0\.000000003 in cost more"
    ):
        await limiter.reserve("b", [budget], Amounts(cost=3))
    assert (await limiter.reserve("c", [budget], Amounts(cost=2)))[0].remaining == 0
    with pytest.raises((BudgetExceeded, RateLimited)):
        await limiter.extend("a", [budget], Amounts(cost=1))
    await ended(limiter, "a", Amounts(cost=2))
    assert (await limiter.read_status([budget]))[0].remaining == 1
    clock.advance(61 if window is Window.MINUTE else 32 * 24 * 3600)
    assert (await limiter.read_status([budget]))[0].remaining == budget.amount


@pytest.mark.parametrize("window", [Window.MINUTE, Window.MONTH])
async def test_more_than_a_counter_can_hold_is_a_limit_that_is_used_up(limiters, window):
    budget = limit(MAX_COST, Measure.COST, window)

    async def seeds(_):
        return {budget.id: [(NOON - 1, 2**62)] * 3}

    limiter = limiters(seeds)
    with pytest.raises((BudgetExceeded, RateLimited)):
        await limiter.reserve("a", [budget], Amounts(cost=1))
    assert (await limiter.read_status([budget]))[0].remaining == 0


async def test_usage_beyond_what_a_counter_can_hold_is_settled(limiter):
    budget = limit(MAX_COST, Measure.COST, Window.MONTH)
    for claim in ("a", "b"):
        await limiter.reserve(claim, [budget], Amounts(cost=1))
    for claim in ("a", "b"):
        await ended(limiter, claim, Amounts(cost=MAX_COST))
    assert (await limiter.read_status([budget]))[0].remaining == 0
