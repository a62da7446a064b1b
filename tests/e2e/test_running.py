"""What changes while an answer runs acts on it, however limits are counted. tests/e2e/test_workers.py asks
the same of a server with a coordinator."""

from collections.abc import Iterator

import pytest

from benchmarks.limits import LimitedServer
from tests.e2e.running_checks import RESERVED, require_ended_with_its_key, require_held_to_the_limit
from tests.support.redis_server import *  # noqa: F403 - fixtures are found by their names; `__all__` lists them
from tests.support.redis_server import Server as Redis
from tests.support.server import serving

pytestmark = [pytest.mark.soak, pytest.mark.timeout(480)]


# test_what_runs_is_held_to_a_limit_as_it_is_now in tests/limits holds each way to count to the same rules.
@pytest.fixture(scope="module", params=["local", "redis"])
def place(
    request: pytest.FixtureRequest, redis_server: Redis, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LimitedServer]:
    """A server, by how it counts; answers go on by ten tokens at a time."""
    tmp_path = tmp_path_factory.mktemp("running")
    env = {
        "ANTIPHON_KEYS": "true",
        "ANTIPHON_HOME": str(tmp_path),
        "ANTIPHON_LIMITS_RESERVE_TOKENS": RESERVED,
    }
    env |= {"ANTIPHON_LIMITS_URL": redis_server.url} if request.param == "redis" else {}
    workers = "1" if request.param == "local" else "2"
    with serving("--workers", workers, env=env, cwd=tmp_path) as server:
        yield LimitedServer(server, tmp_path)


def test_a_stream_is_held_to_a_limit_as_it_is_by_then(place: LimitedServer) -> None:
    require_held_to_the_limit(place)


def test_ending_a_key_ends_its_streams_and_counts_their_tokens(place: LimitedServer) -> None:
    require_ended_with_its_key(place)
