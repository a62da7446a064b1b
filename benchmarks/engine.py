"""Measures the embedded engine without a server: tokens per second, waits, the cost of each KV layout, and
the time to end a sequence.

python benchmarks/engine.py [--model smollm2] [--streams 1 8 16] [--prompt 128] [--shared 0]

Prints the median and the worst of the rounds, and the ratio to the pool's median. With `--shared`, all
prompts of a round have a common prefix of this length, which differs between rounds. CPU time for a token
shows the cost of a layout on a shared machine. Without `--model` all of benchmarks/model_files.py are
measured, smollm2 first.
"""

import argparse
import asyncio
import os
import random
import sys
import time
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from antiphon.domain.request import Sampling
from antiphon.engines.base import (
    EngineInfo,
    KVLayout,
    LoadSpec,
    PromptTokens,
    SequenceStarted,
    Steps,
    TokenRequest,
)
from antiphon.engines.llama import LlamaTokenEngine

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.model_files import add_models, find_model

MODES: dict[str, dict[str, Any]] = {
    "pool": {"layout": KVLayout.POOL},
    "streams": {"layout": KVLayout.STREAMS},
    "exact": {"exact": True},
}


@dataclass
class Round:
    """One round of several streams."""

    seconds: float = 0.0
    processor: float = 0.0
    """CPU seconds of all threads."""
    tokens: int = 0
    prefill: int = 0
    """Prompt tokens that were computed."""
    first: list[float] = field(default_factory=list)
    """Seconds from the request to the first token, of each stream."""
    gaps: list[float] = field(default_factory=list)
    """Seconds between two tokens of one stream."""


def draw_prompt(info: EngineInfo, length: int, seed: object) -> tuple[int, ...]:
    randomizer = random.Random(repr(seed))
    return tuple(randomizer.randrange(info.vocabulary // 2, info.vocabulary) for _ in range(length))


def build_request(prompt: tuple[int, ...], tokens: int, seed: int = 0) -> TokenRequest:
    sampling = Sampling(temperature=0.7, top_p=0.9, seed=seed, ignore_eos=True)
    return TokenRequest(PromptTokens(prompt), tokens, sampling)


async def read_stream(engine: LlamaTokenEngine, token_request: TokenRequest, result: Round) -> None:
    last_at = time.perf_counter()
    began = last_at
    async for event in engine.generate(token_request):
        if isinstance(event, Steps):
            now = time.perf_counter()
            (result.gaps if last_at > began else result.first).append(now - last_at)
            result.tokens += len(event.tokens)
            last_at = now


async def run_round(engine: LlamaTokenEngine, streams: int, number: int, args: argparse.Namespace) -> Round:
    result = Round()
    info = await engine.info()
    shared = draw_prompt(info, args.shared, number)
    prompts = [(*shared, *draw_prompt(info, args.prompt, (number, index))) for index in range(streams)]
    requests = [build_request(prompt, args.tokens, seed) for seed, prompt in enumerate(prompts)]
    began, processor = time.perf_counter(), time.process_time()
    await asyncio.gather(*(read_stream(engine, index, result) for index in requests))
    result.seconds = time.perf_counter() - began
    result.processor = time.process_time() - processor
    result.prefill = (await engine.info()).load.prefill_tokens - info.load.prefill_tokens
    return result


async def time_close(engine: LlamaTokenEngine, info: EngineInfo) -> float:
    """Closes a sequence in the middle of a long prefill. Returns the seconds until its place is free."""
    length = info.context_length - 64
    async with aclosing(
        engine.generate(build_request(draw_prompt(info, length, random.random()), 8))
    ) as events:
        assert isinstance(await anext(events), SequenceStarted)
        await asyncio.sleep(0.1 + 0.05 * random.random())
        began = time.perf_counter()
    assert (await engine.info()).load.free_sequences == info.sequences
    return time.perf_counter() - began


@dataclass
class Report:
    """Prints each figure and its ratio to the pool's."""

    medians: dict[str, float] = field(default_factory=dict)

    def print_figure(self, figure: str, mode: str, values: list[float]) -> None:
        median_value = median(values)
        worst = min(values) if figure.endswith("/s") else max(values)
        pool_median = self.medians.setdefault(figure, median_value)
        ratio = f"x {median_value / pool_median:.2f}"
        print(f"{figure:34} {mode:6} median {median_value:9.2f}  worst {worst:9.2f}  {ratio}", flush=True)


async def measure(path: Path, mode: str, args: argparse.Namespace, report: Report) -> None:
    """Measures all figures of one mode."""
    engine = LlamaTokenEngine()
    began = time.perf_counter()
    spec = LoadSpec(
        str(path),
        context_length=max(args.context, args.shared + args.prompt + args.tokens + 1),
        sequences=max(args.streams),
        threads=args.threads,
        **MODES[mode],
    )
    info = await engine.load(spec)
    report.print_figure("load, ms", mode, [1000 * (time.perf_counter() - began)])
    print(f"{info.architecture} {info.quantization}, {info.parameters / 1e6:.0f} M; {info.library};", end=" ")
    print(f"{info.threads} threads of {os.cpu_count()}; load average {os.getloadavg()[0]:.1f}", flush=True)
    for streams in args.streams:
        await run_round(engine, streams, -streams, args)
        numbers = range(1000 * streams, 1000 * streams + args.rounds)
        rounds = [await run_round(engine, streams, number, args) for number in numbers]
        report.print_figure(
            f"{streams} streams, tokens/s", mode, [result.tokens / result.seconds for result in rounds]
        )
        processor = [1000 * result.processor / result.tokens for result in rounds]
        report.print_figure(f"{streams} streams, processor ms a token", mode, processor)
        report.print_figure(
            f"{streams} streams, prompt computed", mode, [float(result.prefill) for result in rounds]
        )
        report.print_figure(
            f"{streams} streams, first token, ms", mode, [1000 * median(result.first) for result in rounds]
        )
        gaps = [1000 * median(result.gaps) for result in rounds if result.gaps]
        report.print_figure(f"{streams} streams, between tokens, ms", mode, gaps)
    close_seconds = [1000 * await time_close(engine, info) for _ in range(args.rounds)]
    report.print_figure("departure in prefill, ms", mode, close_seconds)
    await engine.aclose()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_models(parser)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 16])
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--shared", type=int, default=0)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    args = parser.parse_args()
    beginning = f"{args.shared} shared and " if args.shared else ""
    print(f"prompts of {beginning}{args.prompt} tokens, {args.tokens} generated, {args.rounds} rounds")
    for name in args.model:
        report = Report()
        for mode in args.modes:
            asyncio.run(measure(find_model(name), mode, args, report))


if __name__ == "__main__":
    main()
