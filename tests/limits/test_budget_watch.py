"""Shares of budgets: what is reported, how often, and from which counts."""

import pytest

from antiphon.domain.limits import Amounts, BudgetWarning, Limit, Measure, Subject, Window
from antiphon.domain.values import replace
from antiphon.errors import BudgetExceeded
from antiphon.limits.budget_watch import BudgetWatch
from antiphon.limits.local import LocalLimiter
from antiphon_testing import FakeClock

NOON = 1_700_000_000.0
DAY = 86_400


def limit(amount: int = 100, window: Window | None = Window.DAY, id_: str = "limit_1") -> Limit:
    return Limit(id_, Subject.PROJECT, "p", Measure.TOKENS, amount, 0, window)


class Watched:
    """A limiter whose warnings are kept."""

    def __init__(self, *shares: float) -> None:
        self.given: list[BudgetWarning] = []
        self.clock = FakeClock()
        self.limiter = LocalLimiter(self.clock)
        self.limiter.watch = BudgetWatch(shares, self.given.append)
        self.numbers = iter(range(1_000))

    def shares(self) -> list[float]:
        return [each.share for each in self.given]

    async def reserve(self, limit: Limit, tokens: int) -> str:
        claim = f"c{next(self.numbers)}"
        await self.limiter.reserve(claim, [limit], Amounts(1, tokens))
        return claim

    async def use(self, limit: Limit, tokens: int, reserved: int | None = None) -> None:
        claim = await self.reserve(limit, tokens if reserved is None else reserved)
        self.limiter.settle(claim, Amounts(1, tokens))


async def test_each_share_is_reported_once_in_a_window() -> None:
    at = Watched(0.5, 0.8, 1.0)
    for tokens in (49, 1, 10, 20, 15, 5):
        await at.use(limit(), tokens)
    assert [(each.share, each.used) for each in at.given] == [(0.5, 50), (0.8, 80), (1.0, 100)]
    assert at.given[0].end - at.given[0].begin == DAY and at.given[0].begin <= at.given[0].at


async def test_a_large_step_reports_every_share_it_passes() -> None:
    at = Watched(0.5, 0.8)
    await at.use(limit(), 90)
    assert at.shares() == [0.5, 0.8]


async def test_what_running_requests_reserve_is_not_used_yet() -> None:
    at = Watched(0.5)
    running = await at.reserve(limit(), 60)
    await at.use(limit(), 5, reserved=40)
    assert at.shares() == []
    at.limiter.settle(running, Amounts(1, 45))
    assert [each.used for each in at.given] == [50]


async def test_a_refusal_reports_that_all_of_a_budget_is_used() -> None:
    at = Watched(0.8, 1.0)
    await at.use(limit(), 70)
    with pytest.raises(BudgetExceeded):
        await at.use(limit(), 40)
    assert [(each.share, each.used) for each in at.given] == [(1.0, 70)]
    await at.use(limit(), 15)
    assert at.shares() == [1.0, 0.8]
    with pytest.raises(BudgetExceeded):
        await at.use(limit(), 40)
    assert len(at.given) == 2


async def test_a_new_window_warns_again_and_a_new_amount_does_not() -> None:
    at = Watched(0.5)
    await at.use(limit(), 60)
    await at.use(replace(limit(), amount=80), 10)
    assert at.shares() == [0.5]
    at.clock.advance(DAY)
    await at.use(limit(), 60)
    assert at.shares() == [0.5, 0.5] and at.given[0].end == at.given[1].begin


async def test_a_higher_amount_counts_from_its_next_request_on() -> None:
    at = Watched(0.5)
    await at.use(limit(), 40)
    await at.use(replace(limit(), amount=1_000), 40)
    assert at.shares() == []


async def test_limits_of_a_minute_and_of_requests_at_once_do_not_warn() -> None:
    at = Watched(0.5)
    await at.use(limit(window=Window.MINUTE), 90)
    await at.use(replace(limit(1, None, "limit_2"), measure=Measure.CONCURRENT), 1)
    assert at.shares() == []
