"""Measures whether the memory of an engine host stays constant over requests that are all different.

python benchmarks/host_memory.py [--model smollm2 cantor] [--requests 20000]

Prompts, lengths, options and users of the requests differ. Sixteen callers send them to `antiphon serve`
without keys. A tenth of the requests warms the host up. It counts the host's memory that no file backs, and
what of it was swapped out (RssAnon, RssShmem, VmSwap). Printed are the megabytes on the way, and the growth
in bytes a request. benchmarks/memory.py measures all processes over ten times as many requests of all kinds.
"""

import argparse
import asyncio
import os
import random
import sys
from pathlib import Path

import httpx2

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.memory import compute_growth, read_memory
from benchmarks.model_files import add_models, find_model
from tests.support.server import serving

SAMPLE_EVERY, CALLERS = 250, 16

WORDS = "the old fox saw a hen near mill and river while rain fell on green fields of late summer".split()


def build_request(number: int) -> tuple[str, dict[str, object]]:
    """Builds the path and body of a request that differs from all others."""
    randomizer = random.Random(number)
    text = f"{number}: " + " ".join(randomizer.choices(WORDS, k=randomizer.randint(1, 8)))
    body: dict[str, object] = {"model": "measured", "max_tokens": randomizer.randint(1, 2), "seed": number}
    body |= {
        "temperature": randomizer.choice([0, 0.7, 1]),
        "stream": number % 3 == 0,
        "user": f"user-{number}",
    }
    if number % 2:
        return "/v1/completions", body | {"prompt": text, "logprobs": number % 5}
    return "/v1/chat/completions", body | {"messages": [{"role": "user", "content": text}]}


async def measure(model: Path, requests: int) -> list[tuple[int, int]]:
    """Sends the requests. Returns the number of requests and the host's bytes of each sample after the
    warm-up."""
    with serving("--model", f"measured={model}") as server:
        host, samples = server.host().pid, list[tuple[int, int]]()
        async with httpx2.AsyncClient(base_url=server.url, timeout=120) as client:

            async def send(numbers: range) -> None:
                for number in numbers:
                    path, body = build_request(number)
                    answer = await client.post(path, json=body)
                    if answer.status_code != 200:
                        raise RuntimeError(answer.text)

            for done in range(0, requests, SAMPLE_EVERY):
                async with asyncio.TaskGroup() as group:
                    for caller in range(CALLERS):
                        group.create_task(send(range(done + caller, done + SAMPLE_EVERY, CALLERS)))
                if done >= requests // 10:
                    samples.append((done + SAMPLE_EVERY, read_memory(host)[0]))
        return samples


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_models(parser, "cantor")
    parser.add_argument("--requests", type=int, default=20_000)
    args = parser.parse_args()
    for path in map(find_model, args.model):
        samples = asyncio.run(measure(path, args.requests))
        growth = compute_growth(samples)
        print(f"{path.name}, load average {os.getloadavg()[0]:.1f}")
        for count, size in samples[:: max(1, len(samples) // 9)]:
            print(f"  {count:7,} requests {size / 1e6:8.1f} MB")
        print(f"  by fifths {growth.between:.0f}, late {growth.late:.0f} bytes a request", flush=True)


if __name__ == "__main__":
    main()
