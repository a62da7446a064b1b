"""The scenarios: the requests to both servers, and the figures that are computed from the answers.

No server gets the same prompt twice.
"""

import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from statistics import median, quantiles

from benchmarks.side_by_side.client import StreamRequest, StreamResult, send_request
from benchmarks.side_by_side.servers import HTTP, MODEL, Side

SAMPLING: dict[str, object] = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
"""llama-server's defaults, sent to both servers."""

SYSTEM, USERS, SUFFIXES = 1000, 16, (16, 32)
"""Tokens of the shared prompt, the number of users, and the range of tokens that each user adds."""

STREAMS, NEWCOMER, STREAM_PROMPT = 8, 4000, 32
"""The number of running streams, the tokens of the new prompt, and the tokens of the streams' prompts."""


@dataclass(frozen=True)
class Load:
    """The sizes and options of a scenario."""

    vocabulary: int
    requests: int
    prompt: int
    tokens: int
    fields: dict[str, object]


Figures = dict[str, float]
"""Values by name with unit. Larger is better for names that end in /s, otherwise smaller."""


@dataclass(frozen=True)
class SideClient:
    """Sends the requests of one round to one side."""

    side: Side
    load: Load
    round: str

    def build_prompt(self, length: int, *names: object) -> list[int]:
        """Builds a prompt of distinct ids of ordinary tokens. It is the same for every side."""
        randomizer = random.Random(":".join(map(str, (self.round, *names))))
        return randomizer.sample(range(self.load.vocabulary // 8, self.load.vocabulary), length)

    async def send(self, prompt: list[int], tokens: int, seed: int) -> StreamRequest:
        return await send_request(self.side.port, MODEL, prompt, tokens, self.load.fields | {"seed": seed})

    async def run(self, prompt: list[int], tokens: int, seed: int) -> StreamResult:
        stream_request = await self.send(prompt, tokens, seed)
        await stream_request.closed
        return stream_request.read()


async def measure_throughput(client: SideClient) -> Figures:
    """Sends many requests with different prompts at once. Measures completion tokens per second until the
    last one ends."""
    load = client.load
    prompts = [client.build_prompt(load.prompt, number) for number in range(load.requests)]
    before, began = client.side.read_cpu(), time.perf_counter()
    results = await asyncio.gather(
        *(client.run(prompt, load.tokens, number) for number, prompt in enumerate(prompts))
    )
    after = client.side.read_cpu()
    ended = max(result.times[-1] for result in results)
    # One server computes all prompts first, and another decodes the first streams meanwhile. So the rate of
    # decoding counts from the last stream's first token.
    all_started = max(result.times[0] for result in results)
    later = sum(time > all_started for result in results for time in result.times)
    tokens = sum(result.tokens for result in results)
    return {
        "tokens/s": tokens / (ended - began),
        "after all first tokens, tokens/s": later / (ended - all_started) if later else 0.0,
        "first token, ms": 1000 * median(result.first for result in results),
        "between tokens, ms": 1000 * median([gap for result in results for _, gap in result.gaps] or [0]),
        "tokens": tokens,
        "CPU a token, us": 1e6 * (sum(after.values()) - sum(before.values())) / tokens,
        "of it outside the engine, us": 1e6 * (after.get(HTTP, 0.0) - before.get(HTTP, 0.0)) / tokens,
    }


async def measure_shared_prompt(client: SideClient) -> Figures:
    """Sends requests of many users at once. Their prompts have a common prefix, which is not cached."""
    system = client.build_prompt(SYSTEM, "system")
    randomizer = random.Random(client.round)
    suffixes = [client.build_prompt(randomizer.randint(*SUFFIXES), "user", number) for number in range(USERS)]
    before = await asyncio.to_thread(client.side.read_prefill_tokens)
    results = await asyncio.gather(
        *(client.run(system + suffix, client.load.tokens, number) for number, suffix in enumerate(suffixes))
    )
    computed = await asyncio.to_thread(client.side.read_prefill_tokens) - before
    return {
        "first token, ms": 1000 * median(result.first for result in results),
        "last first token, ms": 1000 * max(result.first for result in results),
        "prompt tokens computed": computed,
        "beyond system and suffixes, tokens": computed - SYSTEM - sum(map(len, suffixes)),
    }


async def measure_newcomer(client: SideClient) -> Figures:
    """Sends a long prompt while streams run. Measures the streams' waits until the prompt's first token."""
    streams = [
        await client.send(client.build_prompt(STREAM_PROMPT, number), NEWCOMER // 2, number)
        for number in range(STREAMS)
    ]
    await asyncio.gather(*(stream.first_text for stream in streams))
    await asyncio.sleep(1.0)
    arrived_at = time.perf_counter()
    newcomer_result = await client.run(client.build_prompt(NEWCOMER, "late"), 2, 99)
    for stream in streams:
        stream.close()
    await asyncio.gather(*(stream.closed for stream in streams))
    results = [stream.read(must_be_complete=False) for stream in streams]
    gaps_during = [
        gap
        for result in results
        for ended_at, gap in result.gaps
        if arrived_at < ended_at and ended_at - gap < newcomer_result.times[0]
    ]
    gaps_before = [gap for result in results for ended_at, gap in result.gaps if ended_at <= arrived_at]
    return {
        "between tokens, p99, ms": 1000 * quantiles(gaps_during, n=100)[98],
        "between tokens, worst, ms": 1000 * max(gaps_during),
        "between tokens, median, ms": 1000 * median(gaps_during),
        "between tokens before, median, ms": 1000 * median(gaps_before),
        "newcomer's first token, ms": 1000 * newcomer_result.first,
    }


async def measure_single_stream(client: SideClient) -> Figures:
    """Measures one stream: tokens per second after the first token."""
    result = await client.run(client.build_prompt(client.load.prompt, 0), client.load.tokens, 0)
    return {"tokens/s": (result.tokens - 1) / (result.times[-1] - result.times[0])}


SCENARIOS: dict[str, Callable[[SideClient], Coroutine[None, None, Figures]]] = {
    "throughput": measure_throughput,
    "shared": measure_shared_prompt,
    "newcomer": measure_newcomer,
    "alone": measure_single_stream,
}
