"""The largest texts that a body can hold, of one caller, beside others: the server goes on answering, and no
short text waits for a long one, and nothing stays of them."""

import json
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx2
import pytest

from tests.support.server import Server, serving, share_of

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
WIDE = {"type": "object", "properties": {"a": {"enum": list(range(100_000))}}}
SHORT: dict[str, Any] = {"model": "cantor", "prompt": "The hen", "max_tokens": 1}
STAYS = 50_000_000
"""Bytes by which two more rounds may make a process larger: less than the texts of one round."""
GIVES_BACK = {"MALLOC_MMAP_THRESHOLD_": "262144", "MALLOC_TRIM_THRESHOLD_": "262144"}
"""Has glibc give freed blocks of this size back at once: otherwise a small one above them may keep them, and
memory that nothing holds looks as if it were held."""
STATED = 0.1
"""Seconds within which 99 of 100 questions for the server's health are answered, on an idle machine; one that
is shared gets ten times as long."""


def chat(content: str, **more: Any) -> bytes:
    return json.dumps({"model": "cantor", "messages": [{"role": "user", "content": content}]} | more).encode()


LARGEST = (
    (CHAT, chat("word " * 1_600_000)),
    (CHAT, chat("<|im_start|>" * 600_000)),
    (CHAT, chat("hi", tools=[{"type": "function", "function": {"name": "f", "parameters": WIDE}}])),
    (TEXT, json.dumps(SHORT | {"prompt": "word " * 1_600_000}).encode()),
    (TEXT, json.dumps(SHORT | {"prompt": [300] * 1_000_000}).encode()),
    ("/tokenize", json.dumps({"prompt": " " * 8_000_000}).encode()),
    ("/detokenize", json.dumps({"tokens": [300] * 1_000_000}).encode()),
)
SLOW = json.dumps(SHORT | {"prompt": "a" * 1_000_000, "truncate_prompt_tokens": 5}).encode()
"""Keeps the tokenizer busy for seconds."""


MEASURED = 300
"""Questions of which one of a hundred may be late, since the machine may stand still for a moment."""
ROUNDS = 5
"""How often it is tried whether short prompts are answered beside long ones: a machine that stands still may
end the long ones first."""


def waits(client: httpx2.Client, ask: Callable[[], httpx2.Response], over: Callable[[], bool]) -> list[float]:
    """Seconds of each answer, one question after the other, until it is over."""
    found: list[float] = []
    while not over():
        begun = time.monotonic()
        assert ask().status_code == 200
        found.append(time.monotonic() - begun)
        time.sleep(0.01)
    return found


def sent(server: Server, path: str, body: bytes) -> int:
    with server.client() as client:
        return client.post(path, content=body, headers={"content-type": "application/json"}).status_code


@dataclass
class Observed:
    """What was seen while the largest texts were refused, round after round."""

    statuses: list[list[int]] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    """Seconds of the questions for the server's health meanwhile."""
    sizes: list[int] = field(default_factory=list)
    """Bytes of the HTTP process after each round."""


@pytest.fixture(scope="module")
def observed() -> Observed:
    found = Observed()
    with (
        serving(env=GIVES_BACK) as server,
        server.client() as client,
        ThreadPoolExecutor(1) as threads,
    ):
        (http,) = server.children("assembly")
        while len(found.sizes) < 3 or len(found.waits) < MEASURED:
            large = threads.submit(lambda: [sent(server, *each) for each in LARGEST])
            found.waits += waits(client, partial(client.get, "/health"), large.done)
            found.statuses.append(large.result())
            found.sizes.append(share_of(http))
    return found


@pytest.mark.soak
def test_health_is_told_while_the_largest_texts_are_read(observed: Observed) -> None:
    assert [each[:5] for each in observed.statuses] == [[400] * 5] * len(observed.sizes)
    beside = sorted(observed.waits)
    assert beside[len(beside) * 99 // 100] < 10 * STATED, beside[-5:]


@pytest.mark.soak
def test_refusing_the_largest_texts_keeps_no_memory(observed: Observed) -> None:
    assert observed.sizes[2] - observed.sizes[0] < STAYS, observed.sizes


def test_a_short_prompt_waits_for_no_long_one(server: Server) -> None:
    """One that waited for a long one would be answered after it: of several none could be answered before."""
    with server.client() as client, ThreadPoolExecutor(3) as threads:
        for _ in range(ROUNDS):
            long: list[Future[int]] = [threads.submit(sent, server, TEXT, SLOW) for _ in range(3)]
            answered = 0
            while not any(one.done() for one in long):
                assert client.post(TEXT, json=SHORT).status_code == 200
                answered += 1
            assert [one.result() for one in long] == [200] * 3
            if answered > 3:
                break
    assert answered > 3, "it does not wait for even one of them"
