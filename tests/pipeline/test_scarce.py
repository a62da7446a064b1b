"""Which limits had no room lately: remembered for a minute, whoever asks again and whoever does not."""

from antiphon.domain.limits import Limit
from antiphon.pipeline.rules import EXHAUSTED_SECONDS, ExhaustedLimits
from tests.support.accounting import limit


def named(number: int) -> Limit:
    return limit(name=f"limit_{number}")


def test_a_limit_that_refused_is_scarce_for_a_minute() -> None:
    scarce = ExhaustedLimits()
    scarce.add(named(1), 100.0)
    assert scarce.includes_any((named(2), named(1)), 100.0 + EXHAUSTED_SECONDS - 1)
    assert not scarce.includes_any((named(2),), 101.0)
    scarce.add(named(1), 150.0)
    assert scarce.includes_any((named(1),), 100.0 + EXHAUSTED_SECONDS + 1), "it refused again meanwhile"
    assert not scarce.includes_any((named(1),), 150.0 + EXHAUSTED_SECONDS)
    assert len(scarce) == 0


def test_limits_that_nobody_asks_for_again_are_forgotten() -> None:
    """As of keys that are made, used up and revoked."""
    scarce = ExhaustedLimits()
    for number in range(10_000):
        scarce.add(named(number), number / 10)
    assert len(scarce) == 10 * EXHAUSTED_SECONDS
