"""Every limiter by a clock that the tests own."""

from collections.abc import Callable

import pytest

from antiphon.limits.local import LocalLimiter
from antiphon_testing.scripted_engine import FakeClock
from tests.limits.kinds import KINDS, Kind, TimedRedis
from tests.support.limits import NOON
from tests.support.redis_server import *  # noqa: F403 - fixtures are found by their names; `__all__` lists them
from tests.support.waiting import PATIENCE


@pytest.fixture(autouse=True)
def _patient_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine stands still for more than the second after which Redis counts as away. A Redis that is
    stopped refuses at once, so no test waits longer."""
    monkeypatch.setattr("antiphon.limits.redis.TIMEOUT_S", PATIENCE)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(wall=NOON)


@pytest.fixture(params=KINDS)
async def limiters(request, clock):
    """Makes limiters of one kind."""
    made: list[Kind] = []

    def make(*how, **named) -> Kind:
        if request.param == "local":
            made.append(LocalLimiter(clock, *how, **named))
        else:
            made.append(TimedRedis(request.getfixturevalue("redis_server").url, clock, *how, **named))
        return made[-1]

    yield make
    for each in made:
        await each.aclose()


@pytest.fixture
def limiter(limiters: Callable[[], Kind]) -> Kind:
    return limiters()
