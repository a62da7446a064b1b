"""What running servers promise of changes while an answer runs: limits that are raised, lowered or removed,
and keys that are ended act on it, whichever process makes it."""

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from benchmarks.limits import LimitedServer
from tests.support.server import Server
from tests.support.waiting import wait_until

CHAT = {
    "model": "cantor",
    "messages": [{"role": "user", "content": "Tell a long story."}],
    "ignore_eos": True,
}
RESERVED = "10"
"""The setting limits.reserve_tokens of the servers: answers go on by so many tokens at a time."""
BEGUN = 10
"""Pieces of a stream after which something changes."""
ATTEMPTS = 10
"""Streams of which one must be caught before its limit is used up."""
MOST = 10_000
"""Tokens that no key uses up."""
LOWER = 250
"""Tokens of the lower limit."""
ENOUGH = 290
"""Pieces after which a stream is left that goes on."""


def key(place: LimitedServer, amount: int) -> tuple[str, str, str]:
    """A key of so many output tokens a day: its id, itself, its limit's id."""
    limits = [{"measure": "output_tokens", "amount": amount, "window": "day"}]
    made: dict[str, Any] = place.call_admin("POST", "keys", kind="service", project="default", limits=limits)
    return made["id"], made["secret"], made["limits"][0]["id"]


def streamed(server: Server, secret: str, change: Callable[[], object]) -> tuple[int, dict[str, Any]]:
    """How many pieces came, and the last of them, of a stream during which something changes; it is left when
    it has gone on long enough."""
    pieces, last = 0, {}
    headers = {"authorization": f"Bearer {secret}"}
    with (
        server.client() as client,
        client.stream(
            "POST", "/v1/chat/completions", json=CHAT | {"stream": True}, headers=headers
        ) as answer,
    ):
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                pieces, last = pieces + 1, json.loads(line[6:])
                if pieces == BEGUN:
                    change()
                if pieces == ENOUGH:
                    break
    return pieces, last


def require_held_to_the_limit(place: LimitedServer) -> None:
    host = place.server.host()

    def tried(before: int, method: str, **said: object) -> tuple[int, dict[str, Any]]:
        """The engine stands still while the limit changes, so no token is made meanwhile."""
        for _ in range(ATTEMPTS):
            _, secret, limit = key(place, before)
            left: list[int] = []

            def change(limit: str = limit, left: list[int] = left) -> None:
                host.suspend()
                try:
                    shown: dict[str, Any] = place.call_admin("GET", f"limits/{limit}")
                    left.append(shown["remaining"])
                    place.call_admin(method, f"limits/{limit}", **said)
                finally:
                    host.resume()

            found = streamed(place.server, secret, change)
            if left and left[0] > max(0, before - LOWER):  # less than the lower limit was used by then
                return found
        raise AssertionError("the limit was always used up before it was changed")

    pieces, last = tried(LOWER, "PATCH", note="as it was")
    assert pieces < LOWER + 10 and last["error"]["code"] in ("insufficient_quota", "larger_than_limit")
    pieces, last = tried(LOWER, "PATCH", amount=MOST)
    assert pieces == ENOUGH and "error" not in last
    pieces, last = tried(MOST, "PATCH", amount=LOWER)
    assert pieces < ENOUGH and last["error"]["code"] in ("insufficient_quota", "larger_than_limit")
    pieces, last = tried(LOWER, "DELETE")
    assert pieces == ENOUGH and "error" not in last


@dataclass
class Ending:
    """What became of a stream and of whole answers whose key was ended."""

    made: int
    """Tokens of all of them by then."""
    took: float
    pieces: int
    last: dict[str, Any]
    answers: list[tuple[int, Any]]


def end_while_running(place: LimitedServer, id_: str, secret: str, limit: str) -> Ending:
    """Ends a key that has a stream and three whole answers. The engine stands still meanwhile."""
    host, ended, left = place.server.host(), list[float](), list[int]()

    def whole() -> tuple[int, Any]:
        with place.server.client(headers={"authorization": f"Bearer {secret}"}) as client:
            answer = client.post("/v1/chat/completions", json=CHAT)
            return answer.status_code, answer.json()

    def end() -> None:
        host.suspend()
        try:
            shown: dict[str, Any] = place.call_admin("GET", f"limits/{limit}")
            left.append(shown["remaining"])
            place.call_admin("DELETE", f"keys/{id_}")
            ended.append(time.monotonic())
        finally:
            host.resume()

    with ThreadPoolExecutor(4) as threads:
        answers = [threads.submit(whole) for _ in range(3)]
        pieces, last = streamed(place.server, secret, end)
        found = [answer.result() for answer in answers]
        return Ending(MOST - left[0], time.monotonic() - ended[0], pieces, last, found)


def require_ended_with_its_key(place: LimitedServer) -> None:
    for _ in range(ATTEMPTS):
        id_, secret, limit = key(place, MOST)
        ending = end_while_running(place, id_, secret, limit)
        if ending.made < 400:
            break
    assert ending.made < 400, "the answers had always ended before their key"
    assert ending.pieces < ENOUGH and ending.last["error"]["code"] == "invalid_api_key"
    for status, body in ending.answers:
        assert (status, body["error"]["code"]) == (401, "invalid_api_key")
    assert ending.took < 10, "stated: one second"

    def rows() -> list[dict[str, Any]]:
        page: dict[str, Any] = place.call_admin("GET", f"usage/entries?since=0&key={id_}")
        found: list[dict[str, Any]] = page["data"]
        return found

    def counted() -> bool:
        """Whether the limit has counted what the ledger says."""
        shown: dict[str, Any] = place.call_admin("GET", f"limits/{limit}")
        made = sum(row["output_tokens"] for row in rows())
        return made >= BEGUN - 2 and bool(shown["remaining"] == MOST - made)

    wait_until(counted, 20, "what was made is counted")
    assert {row["status"] for row in rows()} == {"invalid_api_key"}
