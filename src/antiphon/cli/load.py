"""Load for a measurement: prompts of a wanted length, sent by so many clients at once, each answer timed.

It measures what a caller sees, its own connection included, and computes no figures.
"""

import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field

from antiphon.cli.client import Client, Usage
from antiphon.cli.errors import CallFailed

WORDS = (
    "air all and arm art ask bad bag bed big bird blue boat book box boy bread call car cat city cold day "
    "dog door dry ear east egg eye face far fire fish fly food foot four free game girl give glass gold good "
    "grass green hand hard head help hill home horse hot house ice iron job king lake land late leaf left "
    "light line long man milk moon more name near new night north one open page paper park part plan play "
    "rain read red rice river road rock room run salt sand sea seed ship shoe sing sky sleep small snow sun "
    "table ten time top tree two wall warm water way west white wind wood word year"
).split()
"""Short words, one token each in most vocabularies."""

PROBE_WORDS = 64
"""Of the request that shows how many tokens a word takes."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to send."""

    concurrency: int
    requests: int
    max_tokens: int
    prompt_tokens: int
    """About so many: the server's own count of two probes leads there."""


@dataclass(slots=True)
class Timed:
    """One request: when it began and when each piece of text came, in seconds of the monotonic clock."""

    began: float
    arrivals: list[float] = field(default_factory=list)
    ended: float = 0.0
    usage: Usage | None = None
    problem: str = ""


def generate_load(client: Client, model: str, plan: Plan, done: Callable[[Timed], None]) -> list[Timed]:
    """Sends the plan's requests and tells each that is done. Raises CallFailed when the probes fail."""
    words = words_for(plan.prompt_tokens, lambda count: _prompt_tokens(client, model, count))
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for _ in range(plan.requests):
        waiting.put(prompt_of(words))
    finished: queue.SimpleQueue[Timed] = queue.SimpleQueue()
    for _ in range(min(plan.concurrency, plan.requests)):
        # A daemon: Ctrl-C ends the process, and with it the connections.
        threading.Thread(
            target=_work, args=(client, model, plan.max_tokens, waiting, finished), daemon=True
        ).start()
    results = []
    for _ in range(plan.requests):
        results.append(finished.get())
        done(results[-1])
    return results


def words_for(tokens: int, prompt_tokens: Callable[[int], int | None]) -> int:
    """How many words make a prompt of so many tokens, from what two prompts really took: a template takes
    some, and each word some. Servers that do not count are believed to take one token a word."""
    few, many = prompt_tokens(1), prompt_tokens(PROBE_WORDS)
    if few is None or many is None or many <= few:
        return tokens
    per_word = (many - few) / (PROBE_WORDS - 1)
    return max(1, 1 + round((tokens - few) / per_word))


def prompt_of(words: int) -> str:
    """Random words, so that no prompt begins like an earlier one and none is found in a prefix cache."""
    return " ".join(random.choices(WORDS, k=words))  # noqa: S311 - nothing secret


def _prompt_tokens(client: Client, model: str, words: int) -> int | None:
    usages = [piece.usage for piece in client.chat(_body(model, prompt_of(words), 1)) if piece.usage]
    return usages[-1].prompt_tokens if usages else None


def _work(
    client: Client,
    model: str,
    max_tokens: int,
    waiting: "queue.SimpleQueue[str]",
    finished: "queue.SimpleQueue[Timed]",
) -> None:
    """One client: request after request until none is left."""
    for prompt in _until_empty(waiting):
        timed = Timed(began=time.monotonic())
        try:
            _receive(client, _body(model, prompt, max_tokens), timed)
        except CallFailed as problem:
            timed.problem = problem.message
        timed.ended = time.monotonic()
        finished.put(timed)


def _until_empty(waiting: "queue.SimpleQueue[str]") -> Iterator[str]:
    while True:
        try:
            yield waiting.get_nowait()
        except queue.Empty:
            return


def _receive(client: Client, body: dict[str, object], timed: Timed) -> None:
    with closing(client.chat(body)) as pieces:
        for piece in pieces:
            if piece.text or piece.reasoning:
                timed.arrivals.append(time.monotonic())
            timed.usage = piece.usage or timed.usage


def _body(model: str, prompt: str, max_tokens: int) -> dict[str, object]:
    return {"model": model, "messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens}
