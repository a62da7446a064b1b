"""A rotated key gets no fresh budget: it and its successor use up one, however limits are counted, and after
a restart too. tests/e2e/test_workers.py asks the same of servers that it has."""

from pathlib import Path

import pytest

from benchmarks.limits import LimitedServer
from tests.support.redis_server import *  # noqa: F403 - fixtures are found by their names; `__all__` lists them
from tests.support.redis_server import Server as Redis
from tests.support.server import Server, serving

ROOM = 5
"""Requests of a day."""


def asked(server: Server, secret: str) -> int:
    """The status of a request, over a connection of its own: of whichever process."""
    with server.client(headers={"authorization": f"Bearer {secret}"}) as client:
        body = {"model": "cantor", "prompt": "Once", "max_tokens": 1}
        return client.post("/v1/completions", json=body).status_code


def found(cards: object) -> list[dict[str, object]]:
    """The limits in an answer."""
    assert isinstance(cards, list)
    return cards


@pytest.mark.soak
@pytest.mark.timeout(480)
@pytest.mark.parametrize(
    "counted",
    ["coordinator", "local", "redis"],
)
def test_a_key_and_its_successors_use_up_one_budget(
    counted: str, redis_server: Redis, tmp_path: Path
) -> None:
    env = {"ANTIPHON_KEYS": "true", "ANTIPHON_HOME": str(tmp_path)}
    env |= {"ANTIPHON_LIMITS_URL": redis_server.url} if counted == "redis" else {}
    workers = ("--workers", "2" if counted == "coordinator" else "1")
    with serving(*workers, env=env, cwd=tmp_path) as server:
        place = LimitedServer(server, tmp_path)
        limits = [{"measure": "requests", "amount": ROOM, "window": "day"}]
        made = place.call_admin("POST", "keys", kind="service", project="default", limits=limits)
        secrets, key = [str(made["secret"])], made["id"]
        assert [asked(server, secrets[0]) for _ in range(2)] == [200, 200]
        for _ in range(2):  # a successor of the successor too
            made = place.call_admin("POST", f"keys/{key}/rotate", overlap=3_600)
            secrets, key = [*secrets, str(made["secret"])], made["id"]
            assert [each["target"] for each in found(made["limits"])] == [key]
        assert [asked(server, secret) for secret in secrets] == [200] * 3
        assert [asked(server, secret) for secret in secrets] == [429] * 3
    with serving(*workers, env=env, cwd=tmp_path) as server:
        assert [asked(server, secret) for secret in secrets] == [429] * 3
        (limit,) = found(LimitedServer(server, tmp_path).call_admin("GET", f"limits?target={key}")["data"])
        LimitedServer(server, tmp_path).call_admin("PATCH", f"limits/{limit['id']}", amount=ROOM + 1)
        assert [asked(server, secret) for secret in secrets] == [200, 429, 429]
