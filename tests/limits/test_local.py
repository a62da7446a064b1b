"""What only the limiter of one process does."""

import pytest

from antiphon.domain.limits import Measure
from antiphon.errors import RateLimited
from antiphon.limits.local import LocalLimiter
from tests.support.limits import ONE, limit, output_tokens

OUTPUT = Measure.OUTPUT_TOKENS


@pytest.fixture
def limiter(clock) -> LocalLimiter:
    return LocalLimiter(clock)


async def test_an_abandoned_claim_runs_no_more(limiter):
    one = limit(1, Measure.CONCURRENT)
    await limiter.reserve("a", [one], ONE)
    limiter.abandon("a")
    await limiter.reserve("b", [one], ONE)


async def test_an_abandoned_claim_used_what_it_reserved(limiter):
    hundred = limit(100, OUTPUT)
    await limiter.reserve("a", [hundred], output_tokens(60))
    limiter.abandon("a")
    limiter.settle("a", output_tokens(0))
    assert (await limiter.read_status([hundred]))[0].remaining == 40


async def test_an_open_claim_is_restored_beyond_any_limit(limiter):
    hundred = limit(100, OUTPUT)
    await limiter.restore("a", [hundred], output_tokens(130))
    await limiter.restore("a", [hundred], output_tokens(130))
    with pytest.raises(RateLimited):
        await limiter.reserve("b", [hundred], output_tokens(1))
    limiter.settle("a", output_tokens(20))
    assert (await limiter.reserve("b", [hundred], output_tokens(1)))[0].remaining == 79


async def test_what_nobody_asks_for_is_forgotten(limiter, clock):
    standing = limit(10, id_="standing")
    await limiter.reserve("stands", [standing], ONE)
    for number in range(1_000):
        await limiter.reserve(f"c{number}", [limit(10, id_=str(number))], ONE)
        limiter.settle(f"c{number}", ONE)
    clock.advance(25 * 3600)
    other = limit(10_000, id_="other")
    for number in range(1_100):
        await limiter.reserve(f"d{number}", [other], ONE)
        limiter.settle(f"d{number}", ONE)
    assert sorted(limiter._counters) == ["limit_other", "limit_standing"]
    assert list(limiter._claims) == ["stands"]


async def test_a_window_keeps_a_bounded_number_of_buckets(limiter, clock):
    wide = limit(10**9)
    for number in range(20_000):
        clock.advance(0.02)
        await limiter.reserve(str(number), [wide], ONE)
        limiter.settle(str(number), ONE)
    assert len(limiter._counters["limit_one"].counter._buckets) <= 1_001
