"""Whatever is reserved, extended and settled: never more than the limit in any window, and hardly less."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.domain.limits import Amounts, Measure, Window
from antiphon.errors import BudgetExceeded, LargerThanLimit, RateLimited
from antiphon.limits.local import LocalLimiter
from antiphon.limits.windows import BUCKET, SECOND_NS
from antiphon_testing.scripted_engine import FakeClock
from tests.limits.kinds import TimedRedis, ended
from tests.limits.reference import Reference
from tests.support.limits import NOON, limit

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

    def __init__(self, url: str | None) -> None:
        """`url`: of Redis; None is the limiter of one process."""
        self.clock = FakeClock(monotonic=1_000.0137, wall=NOON + 0.0137)
        self.limiter = LocalLimiter(self.clock) if url is None else TimedRedis(url, self.clock)
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

    async def settle(self, share: int) -> None:
        if self.reserved:
            claim = next(iter(self.reserved))
            amounts = Amounts(1, 5, self.reserved.pop(claim) * share // 100)
            await ended(self.limiter, claim, amounts)
            for reference in self.references:
                reference.settle(claim, amounts)

    async def asked(self, claim: str, amounts: Amounts, first: bool) -> bool:
        try:
            if first:
                await self.limiter.reserve(claim, LIMITS, amounts)
            else:
                await self.limiter.extend(claim, LIMITS, amounts)
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
            and each.counts(self.at, 2 * BUCKET / SECOND_NS) + asked > each.limit.amount
            for each in self.references
        )

    def check(self) -> None:
        """No window that ends now holds too much; and, as only what is taken now can make one too full, none
        that ended earlier does."""
        for each in self.references:
            assert each.counts(self.at) <= each.limit.amount, each.limit


async def tried(trial: Trial, trial_steps: list[tuple[str, float]]) -> None:
    for kind, value in trial_steps:
        if kind == "wait":
            trial.clock.advance(value)
            if isinstance(trial.limiter, TimedRedis):
                await trial.limiter._renew_leases()
        elif kind == "reserve":
            await trial.reserve(int(value))
        elif kind == "extend":
            await trial.extend(int(value))
        else:
            await trial.settle(int(value))
        trial.check()
    await trial.limiter.aclose()


@given(st.lists(steps, max_size=80))
async def test_no_window_exceeds_or_wrongly_refuses_a_limit(trial_steps):
    await tried(Trial(None), trial_steps)


@given(trial_steps=st.lists(steps, min_size=10, max_size=80))
async def test_nor_is_one_in_redis(redis_server, trial_steps):
    await tried(Trial(redis_server.url), trial_steps)


async def saturated(trial: Trial, amount: int, size: int, minutes: int, step: float) -> None:
    """Asks again and again, and expects 99 % of a limit of output tokens, but never more of it in a minute.
    At the end of each minute less than one request may be left over."""
    tokens, taken = limit(amount, Measure.OUTPUT_TOKENS), []
    while trial.at < minutes * 60:
        with suppress(RateLimited):
            while True:
                await trial.limiter.reserve(trial.clock.unique(), [tokens], Amounts(output_tokens=size))
                taken.append(trial.at)
        trial.clock.advance(step)
    await trial.limiter.aclose()
    assert size * len(taken) >= 0.99 * minutes * amount - size * minutes
    fit = amount // size
    assert all(late - early >= 60 for early, late in zip(taken, taken[fit:], strict=False))


@pytest.mark.parametrize("minutes", [3, pytest.param(10, marks=pytest.mark.soak)])
@pytest.mark.parametrize(("amount", "size"), [(600, 1), (20_000, 37), (7, 1)])
async def test_steady_callers_get_at_least_99_percent_of_a_limit(amount, size, minutes):
    await saturated(Trial(None), amount, size, minutes, step=0.03 if minutes < 10 else 0.01)


@pytest.mark.parametrize(
    ("amount", "size", "minutes", "step"),
    [
        (200, 1, 2, 0.25),
        pytest.param(600, 1, 3, 0.1, marks=pytest.mark.soak),
        pytest.param(20_000, 37, 3, 0.1, marks=pytest.mark.soak),
    ],
)
async def test_and_they_do_in_redis(redis_server, amount, size, minutes, step):
    await saturated(Trial(redis_server.url), amount, size, minutes, step)
