"""What is asked of both servers, and which figures come of it.

Every prompt is new to the server that gets it.
"""

import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from statistics import median, quantiles

from benchmarks.side_by_side.client import Exchange, Streamed, ask
from benchmarks.side_by_side.servers import HTTP, MODEL, Side

SAMPLING: dict[str, object] = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
"""llama-server's own defaults, said to both."""

SYSTEM, USERS, SUFFIXES = 1000, 16, (16, 32)
"""Tokens of the shared prompt, users, and the least and most tokens of what each adds."""

STREAMS, NEWCOMER, STREAM_PROMPT = 8, 4000, 32
"""Running streams, and the tokens of the prompt that comes in and of theirs."""


@dataclass(frozen=True)
class Load:
    """How a scenario is run."""

    vocabulary: int
    requests: int
    prompt: int
    tokens: int
    fields: dict[str, object]


Figures = dict[str, float]
"""By name with unit; of a name that ends in /s more is better, else less."""


@dataclass(frozen=True)
class Asker:
    """Asks one side, in one round."""

    side: Side
    load: Load
    round: str

    def prompt(self, length: int, *names: object) -> list[int]:
        """Distinct ids of ordinary tokens, the same for every side."""
        dice = random.Random(":".join(map(str, (self.round, *names))))
        return dice.sample(range(self.load.vocabulary // 8, self.load.vocabulary), length)

    async def ask(self, prompt: list[int], tokens: int, seed: int) -> Exchange:
        return await ask(self.side.port, MODEL, prompt, tokens, self.load.fields | {"seed": seed})

    async def whole(self, prompt: list[int], tokens: int, seed: int) -> Streamed:
        exchange = await self.ask(prompt, tokens, seed)
        await exchange.over
        return exchange.read()


async def throughput(asker: Asker) -> Figures:
    """So many requests at once, nothing shared: completion tokens over the time until the last one's end."""
    load = asker.load
    prompts = [asker.prompt(load.prompt, number) for number in range(load.requests)]
    before, began = asker.side.cpu(), time.perf_counter()
    found = await asyncio.gather(
        *(asker.whole(prompt, load.tokens, number) for number, prompt in enumerate(prompts))
    )
    after = asker.side.cpu()
    ended = max(one.times[-1] for one in found)
    started = min(one.times[0] for one in found)
    tokens = sum(one.tokens for one in found)
    return {
        "tokens/s": tokens / (ended - began),
        "after the first token, tokens/s": (tokens - len(found)) / (ended - started),
        "first token, ms": 1000 * median(one.first for one in found),
        "between tokens, ms": 1000 * median([gap for one in found for _, gap in one.gaps] or [0]),
        "tokens": tokens,
        "CPU a token, us": 1e6 * (sum(after.values()) - sum(before.values())) / tokens,
        "of it outside the engine, us": 1e6 * (after.get(HTTP, 0.0) - before.get(HTTP, 0.0)) / tokens,
    }


async def shared(asker: Asker) -> Figures:
    """Many users at once, cold, whose prompts begin alike."""
    system = asker.prompt(SYSTEM, "system")
    dice = random.Random(asker.round)
    suffixes = [asker.prompt(dice.randint(*SUFFIXES), "user", number) for number in range(USERS)]
    before = await asyncio.to_thread(asker.side.prefilled)
    found = await asyncio.gather(
        *(asker.whole(system + own, asker.load.tokens, number) for number, own in enumerate(suffixes))
    )
    computed = await asyncio.to_thread(asker.side.prefilled) - before
    return {
        "first token, ms": 1000 * median(one.first for one in found),
        "last first token, ms": 1000 * max(one.first for one in found),
        "prompt tokens computed": computed,
        "beyond system and suffixes, tokens": computed - SYSTEM - sum(map(len, suffixes)),
    }


async def newcomer(asker: Asker) -> Figures:
    """Streams that run, and a long prompt that comes in: their waits until it has its first token."""
    streams = [
        await asker.ask(asker.prompt(STREAM_PROMPT, number), NEWCOMER // 2, number)
        for number in range(STREAMS)
    ]
    await asyncio.gather(*(stream.speaking for stream in streams))
    await asyncio.sleep(1.0)
    came = time.perf_counter()
    late = await asker.whole(asker.prompt(NEWCOMER, "late"), 2, 99)
    for stream in streams:
        stream.leave()
    await asyncio.gather(*(stream.over for stream in streams))
    read = [stream.read(whole=False) for stream in streams]
    during = [gap for one in read for when, gap in one.gaps if came < when and when - gap < late.times[0]]
    calm = [gap for one in read for when, gap in one.gaps if when <= came]
    return {
        "between tokens, p99, ms": 1000 * quantiles(during, n=100)[98],
        "between tokens, worst, ms": 1000 * max(during),
        "between tokens, median, ms": 1000 * median(during),
        "between tokens before, median, ms": 1000 * median(calm),
        "newcomer's first token, ms": 1000 * late.first,
    }


async def alone(asker: Asker) -> Figures:
    """One stream: tokens a second after the first."""
    found = await asker.whole(asker.prompt(asker.load.prompt, 0), asker.load.tokens, 0)
    return {"tokens/s": (found.tokens - 1) / (found.times[-1] - found.times[0])}


SCENARIOS: dict[str, Callable[[Asker], Coroutine[None, None, Figures]]] = {
    "throughput": throughput,
    "shared": shared,
    "newcomer": newcomer,
    "alone": alone,
}
