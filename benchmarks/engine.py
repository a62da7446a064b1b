"""The embedded engine without a server: tokens a second, waits, what each KV layout costs, how fast one
leaves.

    python benchmarks/engine.py [--model PATH.gguf] [--streams 1 8 16] [--prompt 128] [--shared 0]

Each figure is the median and the worst of the rounds; the last column is the ratio to the pool beside it.
With `--shared` all prompts of a round begin with so many tokens, which no other round begins with. Processor
time a token says what a layout costs on a machine that others use too. Without a model, one of about half a
billion random weights is written to a temporary directory.
"""

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from antiphon.domain.sampling import Sampling
from antiphon.engines.base import (
    EngineInfo,
    KVLayout,
    LoadSpec,
    SequenceStarted,
    Steps,
    TokenRequest,
    TokenSegment,
)
from antiphon.engines.llama import LlamaTokenEngine

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.make_model import SIZES, write_model

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
    """Seconds of all threads."""
    tokens: int = 0
    prefill: int = 0
    """Prompt tokens that were computed."""
    first: list[float] = field(default_factory=list)
    """Seconds from the request to the first token, of each stream."""
    gaps: list[float] = field(default_factory=list)
    """Seconds between two tokens of one stream."""


def words(info: EngineInfo, length: int, seed: object) -> tuple[int, ...]:
    dice = random.Random(repr(seed))
    return tuple(dice.randrange(info.vocabulary // 2, info.vocabulary) for _ in range(length))


def request(prompt: tuple[int, ...], tokens: int, seed: int = 0) -> TokenRequest:
    sampling = Sampling(temperature=0.7, top_p=0.9, seed=seed, ignore_eos=True)
    return TokenRequest((TokenSegment(prompt),), tokens, sampling)


async def stream(engine: LlamaTokenEngine, wanted: TokenRequest, into: Round) -> None:
    last = time.perf_counter()
    began = last
    async for event in engine.generate(wanted):
        if isinstance(event, Steps):
            now = time.perf_counter()
            (into.gaps if last > began else into.first).append(now - last)
            into.tokens += len(event.tokens)
            last = now


async def one_round(engine: LlamaTokenEngine, streams: int, number: int, args: argparse.Namespace) -> Round:
    found = Round()
    info = await engine.info()
    shared = words(info, args.shared, number)
    prompts = [(*shared, *words(info, args.prompt, (number, one))) for one in range(streams)]
    wanted = [request(prompt, args.tokens, seed) for seed, prompt in enumerate(prompts)]
    began, processor = time.perf_counter(), time.process_time()
    await asyncio.gather(*(stream(engine, one, found) for one in wanted))
    found.seconds = time.perf_counter() - began
    found.processor = time.process_time() - processor
    found.prefill = (await engine.info()).load.prefill_tokens - info.load.prefill_tokens
    return found


async def departure(engine: LlamaTokenEngine, info: EngineInfo) -> float:
    """Seconds from closing a sequence in the middle of a long prefill to its being free."""
    length = info.context_length - 64
    async with aclosing(engine.generate(request(words(info, length, random.random()), 8))) as events:
        assert isinstance(await anext(events), SequenceStarted)
        await asyncio.sleep(0.1 + 0.05 * random.random())
        began = time.perf_counter()
    assert (await engine.info()).load.free_sequences == info.sequences
    return time.perf_counter() - began


@dataclass
class Report:
    """Prints each figure when it is known, beside the pool's."""

    medians: dict[str, float] = field(default_factory=dict)

    def say(self, figure: str, mode: str, values: list[float]) -> None:
        middle = median(values)
        worst = min(values) if figure.endswith("/s") else max(values)
        beside = self.medians.setdefault(figure, middle)
        ratio = f"x {middle / beside:.2f}"
        print(f"{figure:34} {mode:6} median {middle:9.2f}  worst {worst:9.2f}  {ratio}", flush=True)


async def measure(path: Path, mode: str, args: argparse.Namespace, report: Report) -> None:
    """Every figure of one mode, over the rounds."""
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
    report.say("load, ms", mode, [1000 * (time.perf_counter() - began)])
    print(f"{info.architecture} {info.quantization}, {info.parameters / 1e6:.0f} M; {info.library};", end=" ")
    print(f"{info.threads} threads of {os.cpu_count()}; load average {os.getloadavg()[0]:.1f}", flush=True)
    for streams in args.streams:
        await one_round(engine, streams, -streams, args)
        numbers = range(1000 * streams, 1000 * streams + args.rounds)
        rounds = [await one_round(engine, streams, number, args) for number in numbers]
        report.say(f"{streams} streams, tokens/s", mode, [one.tokens / one.seconds for one in rounds])
        processor = [1000 * one.processor / one.tokens for one in rounds]
        report.say(f"{streams} streams, processor ms a token", mode, processor)
        report.say(f"{streams} streams, prompt computed", mode, [float(one.prefill) for one in rounds])
        report.say(f"{streams} streams, first token, ms", mode, [1000 * median(one.first) for one in rounds])
        gaps = [1000 * median(one.gaps) for one in rounds if one.gaps]
        report.say(f"{streams} streams, between tokens, ms", mode, gaps)
    left = [1000 * await departure(engine, info) for _ in range(args.rounds)]
    report.say("departure in prefill, ms", mode, left)
    await engine.aclose()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 16])
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--shared", type=int, default=0)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = args.model or write_model(Path(folder) / "half.gguf", SIZES["half"])
        beginning = f"{args.shared} shared and " if args.shared else ""
        print(f"prompts of {beginning}{args.prompt} tokens, {args.tokens} generated, {args.rounds} rounds")
        report = Report()
        for mode in args.modes:
            asyncio.run(measure(path, mode, args, report))


if __name__ == "__main__":
    main()
