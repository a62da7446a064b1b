"""Whatever is reserved, extended and settled: never more than the limit in any window, and hardly less."""

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.domain.limits import Amounts, Measure, Window
from antiphon.errors import BudgetExceeded, LargerThanLimit, RateLimited
from antiphon.limits.local import LocalLimiter
from antiphon.limits.windows import BUCKET, SECOND
from antiphon.testing.clock import FakeClock
from tests.limits.limits import NOON, limit
from tests.limits.reference import Reference

LIMITS = [
    limit(7, Measure.REQUESTS, Window.MINUTE, "requests"),
    limit(90, Measure.OUTPUT_TOKENS, Window.MINUTE, "tokens"),
    limit(200, Measure.TOKENS, Window.DAY, "day"),
    limit(3, Measure.CONCURRENT, None, "running"),
]
REFUSED = (RateLimited, BudgetExceeded, LargerThanLimit)

steps = st.one_of(
    st.tuples(st.just("wait"), st.sampled_from([0.001, 0.06, 0.5, 7.0, 31.0, 59.94, 60.0, 60.06, 7_200.0])),
    st.tuples(st.just("reserve"), st.integers(0, 100)),
    st.tuples(st.just("extend"), st.integers(0, 60)),
    st.tuples(st.just("settle"), st.integers(0, 100)),
)


class Trial:
    """A limiter beside the obvious one, of several limits at once."""

    def __init__(self) -> None:
        self.clock = FakeClock(monotonic=1_000.0137, wall=NOON)
        self.limiter = LocalLimiter(self.clock)
        self.references = [Reference(each, NOON) for each in LIMITS]
        self.reserved: dict[str, int] = {}
        """Output tokens of the claims that stand, in their order."""
        self.began = self.clock.monotonic()

    @property
    def at(self) -> float:
        return self.clock.monotonic() - self.began

    async def reserve(self, output: int) -> None:
        claim = self.clock.unique()
        if await self.asked(claim, Amounts(1, 5, output), True):
            self.reserved[claim] = output

    async def extend(self, output: int) -> None:
        if self.reserved:
            claim = next(iter(self.reserved))
            if await self.asked(claim, Amounts(output_tokens=output), False):
                self.reserved[claim] += output

    def settle(self, share: int) -> None:
        if self.reserved:
            claim = next(iter(self.reserved))
            amounts = Amounts(1, 5, self.reserved.pop(claim) * share // 100)
            self.limiter.settle(claim, amounts)
            for reference in self.references:
                reference.settle(claim, amounts)

    async def asked(self, claim: str, amounts: Amounts, first: bool) -> bool:
        try:
            if first:
                await self.limiter.reserve(claim, LIMITS, amounts)
            else:
                await self.limiter.extend(claim, amounts)
        except REFUSED:
            assert self.has_reason(amounts, first)
            return False
        for reference in self.references:
            reference.take(self.at, claim, amounts, first)
        return True

    def has_reason(self, amounts: Amounts, first: bool) -> bool:
        """Whether some limit has no room, or had none a bucket ago."""
        return any(
            (asked := each.asked(amounts, first))
            and each.counts(self.at, 2 * BUCKET / SECOND) + asked > each.limit.amount
            for each in self.references
        )

    def check(self) -> None:
        """No window that ends now holds too much; and, as only what is taken now can make one too full, none
        that ended earlier does."""
        for each in self.references:
            assert each.counts(self.at) <= each.limit.amount, each.limit


@settings(max_examples=150, deadline=None)
@given(st.lists(steps, max_size=80))
async def test_no_window_is_ever_over_a_limit_and_none_refuses_for_nothing(
    trial_steps: list[tuple[str, float]],
) -> None:
    trial = Trial()
    for kind, value in trial_steps:
        if kind == "wait":
            trial.clock.advance(value)
        elif kind == "reserve":
            await trial.reserve(int(value))
        elif kind == "extend":
            await trial.extend(int(value))
        else:
            trial.settle(int(value))
        trial.check()


@pytest.mark.parametrize(("amount", "size"), [(600, 1), (20_000, 37), (7, 1)])
async def test_callers_who_never_stop_get_at_least_99_percent_of_a_limit(amount, size):
    """Ten minutes, asked a hundred times a second; and no minute holds more than the limit."""
    trial, minutes, taken = Trial(), 10, []
    tokens = limit(amount, Measure.OUTPUT_TOKENS)
    while trial.at < minutes * 60:
        with suppress(RateLimited):
            for _ in range(100):
                await trial.limiter.reserve(trial.clock.unique(), [tokens], Amounts(output_tokens=size))
                taken.append(trial.at)
        trial.clock.advance(0.01)
    assert size * len(taken) >= 0.99 * minutes * amount - size * minutes
    fit = amount // size
    assert all(late - early >= 60 for early, late in zip(taken, taken[fit:], strict=False))
