"""The embedded engine without a server: tokens a second, waits, what exact mode costs, how fast one leaves.

    python benchmarks/engine.py [--model PATH.gguf] [--streams 1 8 16] [--prompt 128] [--rounds 5]

Each figure is the median and the worst of the rounds; the last column is the ratio to the pool beside it.
Without a model, one of about half a billion random weights is written to a temporary directory.
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

from antiphon.domain.sampling import Sampling
from antiphon.engines.base import EngineInfo, LoadSpec, SequenceStarted, Steps, TokenRequest, TokenSegment
from antiphon.engines.llama import LlamaTokenEngine

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.make_model import SIZES, write_model

MODES = {"pool": False, "exact": True}


@dataclass
class Round:
    """One round of several streams."""

    seconds: float = 0.0
    tokens: int = 0
    first: list[float] = field(default_factory=list)
    """Seconds from the request to the first token, of each stream."""
    gaps: list[float] = field(default_factory=list)
    """Seconds between two tokens of one stream."""


def request(info: EngineInfo, length: int, tokens: int, seed: int) -> TokenRequest:
    dice = random.Random(seed)
    prompt = tuple(dice.randrange(info.vocabulary // 2, info.vocabulary) for _ in range(length))
    return TokenRequest((TokenSegment(prompt),), tokens, Sampling(temperature=0.7, top_p=0.9, seed=seed))


async def stream(engine: LlamaTokenEngine, wanted: TokenRequest, into: Round) -> None:
    last = time.perf_counter()
    began = last
    async for event in engine.generate(wanted):
        if isinstance(event, Steps):
            now = time.perf_counter()
            (into.gaps if last > began else into.first).append(now - last)
            into.tokens += len(event.tokens)
            last = now


async def one_round(
    engine: LlamaTokenEngine, info: EngineInfo, streams: int, args: argparse.Namespace
) -> Round:
    found = Round()
    began = time.perf_counter()
    wanted = [request(info, args.prompt, args.tokens, seed) for seed in range(streams)]
    await asyncio.gather(*(stream(engine, one, found) for one in wanted))
    found.seconds = time.perf_counter() - began
    return found


async def departure(engine: LlamaTokenEngine, info: EngineInfo) -> float:
    """Seconds from closing a sequence in the middle of a long prefill to its being free."""
    length = info.context_length - 64
    async with aclosing(engine.generate(request(info, length, 8, 1))) as events:
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
        context_length=2048,
        sequences=max(args.streams),
        exact=MODES[mode],
        threads=args.threads,
    )
    info = await engine.load(spec)
    report.say("load, ms", mode, [1000 * (time.perf_counter() - began)])
    print(f"{info.architecture} {info.quantization}, {info.parameters / 1e6:.0f} M; {info.library};", end=" ")
    print(f"{info.threads} threads of {os.cpu_count()}; load average {os.getloadavg()[0]:.1f}", flush=True)
    for streams in args.streams:
        await one_round(engine, info, streams, args)
        rounds = [await one_round(engine, info, streams, args) for _ in range(args.rounds)]
        report.say(f"{streams} streams, tokens/s", mode, [one.tokens / one.seconds for one in rounds])
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
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = args.model or write_model(Path(folder) / "half.gguf", SIZES["half"])
        print(f"prompts of {args.prompt} tokens, {args.tokens} generated, {args.rounds} rounds")
        report = Report()
        for mode in args.modes:
            asyncio.run(measure(path, mode, args, report))


if __name__ == "__main__":
    main()
