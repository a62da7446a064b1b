"""Limits of a real server with several HTTP processes, counted by the keeper and in Redis: no minute holds
more than its limit, and nobody is refused while there is room."""

import time

import pytest

from benchmarks.limits import Limited, body, kept, limited, overspent

AFTER = 20
"""Answers after which nobody says anything else any more."""
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
@pytest.mark.timeout(240)
@COUNTED
def test_fifty_at_once_overspend_a_budget_by_nothing(redis: bool) -> None:
    with limited(2, redis) as place:
        passed, used, budget = overspent(place)
    assert used <= budget
    assert 8 <= passed <= 10  # the first token of who is not sized yet may take the room of the last


def last(place: Limited, secret: str, status: int, within: float) -> float:
    """When a request was answered so for the last time, in seconds from now; asked over new connections, so
    by any of the processes, until nobody answers so any more."""
    began = seen = time.monotonic()
    others = 0
    while others < AFTER:
        with place.server.client() as client:
            answer = client.post(
                "/v1/completions", content=body(), headers={"authorization": f"Bearer {secret}"}
            )
        others = 0 if answer.status_code == status else others + 1
        seen = time.monotonic() if answer.status_code == status else seen
        assert time.monotonic() - began < within
    return seen - began


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_limit_that_changes_does_so_in_every_process_within_a_second() -> None:
    with limited(3, redis=False) as place:
        key, secret = place.key("requests", 10**6, "minute")
        (limit,) = listed(place, key)
        place.admin("PATCH", f"limits/{limit}", amount=0)
        assert last(place, secret, 200, within=30) < 1
        place.admin("PATCH", f"limits/{limit}", amount=10**6)
        assert last(place, secret, 400, within=30) < 1
        place.admin("PATCH", f"limits/{limit}", amount=0)
        last(place, secret, 200, within=30)
        place.admin("DELETE", f"limits/{limit}")
        assert last(place, secret, 400, within=30) < 1


def listed(place: Limited, target: str) -> list[str]:
    data = place.admin("GET", f"limits?target={target}")["data"]
    assert isinstance(data, list)
    return [each["id"] for each in data]


@pytest.mark.soak
@pytest.mark.timeout(600)
@COUNTED
def test_limits_hold_for_five_minutes_of_callers_who_never_stop(redis: bool) -> None:
    with limited(4, redis) as place:
        require_kept(place, clients=8, seconds=300, requests=600, tokens=20_000)
