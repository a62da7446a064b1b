"""What limits of running servers promise."""

import json
import time
from contextlib import closing

from benchmarks.limits import LimitedServer, measure_burst
from tests.e2e.wire import Wire
from tests.support.server import Server

BODY = json.dumps({"model": "cantor", "prompt": "One", "max_tokens": 1}).encode()
AFTER = 20
"""Answers after which nobody says anything else any more."""


def require_no_overspending(place: LimitedServer) -> None:
    passed, used, budget = measure_burst(place)
    assert used <= budget
    assert 8 <= passed <= 10  # the first token of who is not sized yet may take the room of the last


def asked(server: Server, secret: str) -> int:
    """The status of a request, over a connection of its own."""
    with closing(Wire(server.url)) as wire:
        return wire.ask("POST", "/v1/completions", BODY, {"authorization": f"Bearer {secret}"}).status


def turned(place: LimitedServer, secret: str, before: int, after: int) -> float:
    """Seconds from now until a request was answered by one status for the last time, and from then on by
    another, whichever process answers."""
    began = seen = time.monotonic()
    others = 0
    while others < AFTER:
        status = asked(place.server, secret)
        assert status in (before, after)
        others = 0 if status == before else others + 1
        seen = time.monotonic() if status == before else seen
        assert time.monotonic() - began < 60
    return seen - began


def require_soon_changed(place: LimitedServer) -> None:
    """Every process knows a changed limit. Stated: within a second."""
    assert max(change_limit(place)) < 10


def change_limit(place: LimitedServer) -> list[float]:
    """Changes a limit, and removes it. Returns the seconds of each change."""
    key, secret = place.create_key("requests", 10**6, "minute")
    (limit,) = listed(place, key)
    assert asked(place.server, secret) == 200
    took = []
    for amount, before, after in ((0, 200, 400), (10**6, 400, 200), (0, 200, 400)):
        place.call_admin("PATCH", f"limits/{limit}", amount=amount)
        took.append(turned(place, secret, before, after))
    place.call_admin("DELETE", f"limits/{limit}")
    return [*took, turned(place, secret, 400, 200)]


def listed(place: LimitedServer, target: str) -> list[str]:
    data = place.call_admin("GET", f"limits?target={target}")["data"]
    assert isinstance(data, list)
    return [each["id"] for each in data]
