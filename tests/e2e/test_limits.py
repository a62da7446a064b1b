"""Limits of a real server with several HTTP processes, counted by the coordinator and in Redis: no minute
holds more than its limit, and nobody is refused while there is room. tests/e2e/test_workers.py has a server
with a coordinator, and asks it here."""

import time
from collections.abc import Iterator

import pytest

from benchmarks.limits import KEY_DELAY, LimitedServer, measure_limits, run_limited_server
from tests.e2e.limit_checks import (
    asked,
    require_no_overspending,
)
from tests.e2e.workers import Line, lines
from tests.support.redis_server import Server as Redis
from tests.support.redis_server import running
from tests.support.server import serving
from tests.support.waiting import wait_until

COUNTED = pytest.mark.parametrize("redis", [False, True], ids=["coordinator", "redis"])


def require_kept(place: LimitedServer, clients: int, seconds: float, requests: int, tokens: int) -> None:
    for verdict in measure_limits(place, clients, seconds, requests, tokens):
        verdict.require()


@pytest.fixture(scope="module")
def redis_of_module() -> Iterator[Redis]:
    """One that a test of this module may stop."""
    yield from running()


@pytest.fixture(scope="module")
def counted_by_redis(
    redis_of_module: Redis, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LimitedServer]:
    """Two HTTP processes that count in a Redis."""
    home = tmp_path_factory.mktemp("redis")
    env = {"ANTIPHON_KEYS": "true", "ANTIPHON_HOME": str(home), "ANTIPHON_LIMITS_URL": redis_of_module.url}
    with serving("--workers", "2", env=env, cwd=home) as server:
        yield LimitedServer(server, home)


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_limit_of_a_minute_holds_over_several_processes() -> None:
    """Over the end of the first minute, in which the window slides; tests/limits slide it by a clock."""
    with run_limited_server(2, redis=False, threads=1) as place:
        require_kept(place, clients=2, seconds=64, requests=100, tokens=4_000)


@pytest.mark.slow
@pytest.mark.timeout(480)
def test_fifty_at_once_overspend_a_budget_by_nothing(counted_by_redis: LimitedServer) -> None:
    require_no_overspending(counted_by_redis)


@pytest.mark.soak
@pytest.mark.timeout(600)
@COUNTED
def test_limits_hold_for_five_minutes_of_callers_who_never_stop(redis: bool) -> None:
    with run_limited_server(4, redis, threads=1) as place:
        require_kept(place, clients=8, seconds=300, requests=600, tokens=20_000)


@pytest.mark.slow
@pytest.mark.timeout(480)
def test_a_server_waits_for_its_redis_and_says_so(
    counted_by_redis: LimitedServer, redis_of_module: Redis
) -> None:
    """Redis forgets all when it stops, and runs again when the test ends."""
    place = counted_by_redis
    _, secret = place.create_key("requests", 10**6, "minute")
    free = str(place.call_admin("POST", "keys", kind="service", project="default")["secret"])
    with lines(place.server) as made:
        for line in made:
            wait_until(lambda: line.ask("GET", "/v1/models", key=free)[0] == 200, what="the key")  # noqa: B023
        for away in (True, False):
            redis_of_module.stop() if away else redis_of_module.start()
            health = (503, "unavailable") if away else (200, None)
            for line in made:
                wait_until(lambda: read_health(line) == health, what="health")  # noqa: B023
                said = [line.say(key=key, max_tokens=1)[0] for key in (secret, free)]
                assert said == [503 if away else 200, 200]


def read_health(line: Line) -> tuple[int, str | None]:
    """What readiness says of the limits."""
    status, said = line.ask("GET", "/health/ready")
    return status, said.get("limits")


@pytest.mark.soak
@pytest.mark.timeout(480)
def test_two_servers_share_what_redis_counts(counted_by_redis: LimitedServer, redis_of_module: Redis) -> None:
    """In `make test`, two processes of one server share it; tests/limits/test_redis.py has two nodes."""
    one, home = counted_by_redis.server, counted_by_redis.home
    shared = {"ANTIPHON_KEYS": "true", "ANTIPHON_HOME": str(home), "ANTIPHON_LIMITS_URL": redis_of_module.url}
    with serving(env=shared | {"ANTIPHON_SPOOL": str(home / "other")}, cwd=home) as other:
        limits = [{"measure": "requests", "amount": 5, "window": "day"}]
        key = counted_by_redis.call_admin("POST", "keys", kind="service", project="default", limits=limits)
        time.sleep(KEY_DELAY)  # the other server reads it
        secret = str(key["secret"])
        answers = [asked(server, secret) for _ in range(4) for server in (one, other)]
    assert answers == [200] * 5 + [429] * 3
