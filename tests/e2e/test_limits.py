"""Limits of a real server with several HTTP processes, counted by the keeper and in Redis: no minute holds
more than its limit, and nobody is refused while there is room."""

import pytest

from benchmarks.limits import Limited, kept, limited, overspent

COUNTED = pytest.mark.parametrize("redis", [False, True], ids=["keeper", "redis"])


def require_kept(place: Limited, clients: int, seconds: float, requests: int, tokens: int) -> None:
    for verdict in kept(place, clients, seconds, requests, tokens):
        verdict.require()


@pytest.mark.slow
@pytest.mark.timeout(300)
@COUNTED
def test_a_limit_of_a_minute_holds_over_several_processes(redis: bool) -> None:
    """Over the end of the first minute, in which the window slides."""
    with limited(2, redis) as place:
        require_kept(place, clients=2, seconds=64, requests=100, tokens=4_000)


@pytest.mark.slow
@pytest.mark.timeout(120)
@COUNTED
def test_fifty_at_once_overspend_a_budget_by_nothing(redis: bool) -> None:
    with limited(2, redis) as place:
        passed, used, budget = overspent(place)
    assert used <= budget
    assert 8 <= passed <= 10  # the first token of who is not sized yet may take the room of the last


@pytest.mark.soak
@pytest.mark.timeout(600)
@COUNTED
def test_limits_hold_for_five_minutes_of_callers_who_never_stop(redis: bool) -> None:
    with limited(4, redis) as place:
        require_kept(place, clients=8, seconds=300, requests=600, tokens=20_000)
