"""Measures the cost of adapters that take turns: several with two streams each, and one with as many streams.

python benchmarks/adapters.py [--model smollm2] [--layouts pool streams] [--quanta 4 16] [--rounds 5]

llama.cpp computes a batch with one adapter only, so the streams of several adapters take turns. Their
throughput cannot exceed that of one adapter's streams. The script writes random adapters of rank 16. Each
round measures, in turn: two streams on one adapter (the bound), eight on one, eight without an adapter, and
two on each of four, for each number of steps that an adapter gets (`--quanta`). Figures are medians over the
rounds; ratios are medians of the rounds' ratios. The gaps between tokens show how long a stream waits for
other adapters. CPU time varies less than wall time on a shared machine. With `--changes` the script measures
only the change of adapters, below the scheduler: the median CPU time of a step of two rows after a change,
and of a step without a change.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from antiphon.domain.request import Sampling
from antiphon.engines.base import KVLayout, LoadSpec, PromptTokens, Steps, TokenRequest
from antiphon.engines.llama import LlamaTokenEngine
from antiphon.engines.llama.libllama.context import ContextSizes, DecodeStatus, NativeContext
from antiphon.engines.llama.libllama.library import find_library
from antiphon.engines.llama.libllama.model import NativeModel
from antiphon.engines.llama.machine import choose_thread_count

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.engine import draw_prompt
from benchmarks.make_adapter import write_adapter
from benchmarks.model_files import add_models, find_model

LAYOUTS: dict[str, dict[str, Any]] = {
    "pool": {"layout": KVLayout.POOL},
    "streams": {"layout": KVLayout.STREAMS},
    "exact": {"exact": True},
}
RANK, ADAPTERS, STREAMS_PER_ADAPTER = 16, 4, 2


@dataclass
class Case:
    """One distribution of streams over adapters, and its results."""

    adapters: Sequence[str | None]
    """The adapter of each stream."""
    rates: list[float] = field(default_factory=list)
    """Completion tokens per second in each round."""
    costs: list[float] = field(default_factory=list)
    """CPU seconds of all threads for a token, in each round."""
    gaps: list[float] = field(default_factory=list)
    """Seconds between two tokens of a stream, in all rounds."""


async def count_tokens(engine: LlamaTokenEngine, request: TokenRequest, case: Case) -> int:
    last_at, tokens = 0.0, 0
    async for event in engine.generate(request):
        if isinstance(event, Steps):
            now = time.perf_counter()
            if last_at:
                case.gaps.append(now - last_at)
            last_at, tokens = now, tokens + len(event.tokens)
    return tokens


async def run_round(
    engine: LlamaTokenEngine, case: Case, round_number: int, args: argparse.Namespace
) -> None:
    info = await engine.info()
    requests = [
        TokenRequest(
            PromptTokens(draw_prompt(info, args.prompt, (round_number, stream_number))),
            args.tokens,
            Sampling(0.7, seed=stream_number, ignore_eos=True),
            adapter=adapter,
        )
        for stream_number, adapter in enumerate(case.adapters)
    ]
    began, processor = time.perf_counter(), time.process_time()
    tokens = sum(await asyncio.gather(*(count_tokens(engine, request, case) for request in requests)))
    case.rates.append(tokens / (time.perf_counter() - began))
    case.costs.append((time.process_time() - processor) / tokens)


async def load_engine(
    path: Path, adapters: dict[str, Path], layout: str, quantum: int | None, args: argparse.Namespace
) -> LlamaTokenEngine:
    """Loads an engine with the adapters."""
    engine = LlamaTokenEngine()
    quantum_option: dict[str, Any] = {} if quantum is None else {"quantum": quantum}
    spec = LoadSpec(
        str(path),
        context_length=args.prompt + args.tokens + 8,
        sequences=ADAPTERS * STREAMS_PER_ADAPTER,
        threads=args.threads,
        **LAYOUTS[layout],
        **quantum_option,
    )
    info = await engine.load(spec)
    for digest, file in adapters.items():
        await engine.add_adapter(digest, str(file))
    print(
        f"{path.name}: {info.parameters / 1e6:.0f} M {info.quantization}, {layout}, quantum {spec.quantum}, "
        f"{info.threads} threads, load average {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    return engine


async def measure(path: Path, adapters: dict[str, Path], layout: str, args: argparse.Namespace) -> None:
    """Measures every case of one layout in turn."""
    engines = [await load_engine(path, adapters, layout, quantum, args) for quantum in args.quanta or [None]]
    first_digest, *_ = adapters
    cases = {
        f"{STREAMS_PER_ADAPTER} streams on one adapter": (
            engines[0],
            Case([first_digest] * STREAMS_PER_ADAPTER),
        ),
        f"{ADAPTERS * STREAMS_PER_ADAPTER} streams on one adapter": (
            engines[0],
            Case([first_digest] * (ADAPTERS * STREAMS_PER_ADAPTER)),
        ),
        f"{ADAPTERS * STREAMS_PER_ADAPTER} streams without": (
            engines[0],
            Case([None] * (ADAPTERS * STREAMS_PER_ADAPTER)),
        ),
    }
    for engine, quantum in zip(engines, args.quanta or ["its own"], strict=True):
        name = f"{STREAMS_PER_ADAPTER} on each of {ADAPTERS}, quantum {quantum}"
        cases[name] = (engine, Case([*adapters] * STREAMS_PER_ADAPTER))
    for number in range(-1, args.rounds):
        for engine, case in cases.values():
            await run_round(engine, case, number, args)
    (_, two_streams), (_, eight_streams), *_ = cases.values()
    for name, (_, case) in cases.items():
        gaps = sorted(case.gaps)
        costs = [1000 * cost for cost in case.costs[1:]]
        rate = median(case.rates[1:])
        print(
            f"  {name:26} {rate:7.1f} tokens/s, x {format_ratios(case.rates, two_streams.rates)} of two, "
            f"x {format_ratios(case.rates, eight_streams.rates)} of eight; processor {median(costs):.2f} "
            "ms a token, x "
            f"{format_ratios(case.costs, two_streams.costs)} of two's; gaps median "
            f"{1000 * median(gaps):.1f}, p99 "
            f"{1000 * gaps[int(0.99 * len(gaps))]:.1f} ms",
            flush=True,
        )
    for engine in engines:
        await engine.aclose()


def measure_changes(path: Path, files: Sequence[Path], layout: str, args: argparse.Namespace) -> None:
    """Measures the cost of a change of adapters."""
    library, _ = find_library(None)
    model = NativeModel(library, path)
    unified, exact = layout == "pool", layout == "exact"
    threads = args.threads or choose_thread_count()
    steps = 4 * args.steps + 16
    cells = steps * STREAMS_PER_ADAPTER if unified else steps
    shape = ContextSizes(cells, STREAMS_PER_ADAPTER, 64, 64, threads, unified, flash=not exact, kv_type="f16")
    context = NativeContext(model, shape)
    for number, file in enumerate(files[:2]):
        context.adapters.add(str(number), file)
    costs: dict[bool, list[float]] = {True: [], False: []}
    context.adapters.use("0")
    for step in range(3 * args.steps):
        is_change = step % 3 == 2
        context.set_one_row_each(
            [300] * STREAMS_PER_ADAPTER, [step] * STREAMS_PER_ADAPTER, list(range(STREAMS_PER_ADAPTER))
        )
        began = time.process_time()
        if is_change:
            context.adapters.use(str(step // 3 % 2))
        if context.decode(STREAMS_PER_ADAPTER) != DecodeStatus.DONE:
            raise SystemExit("the library could not compute a step")
        if step > 8:
            costs[is_change].append(1000 * (time.process_time() - began))
    after_change, without_change = median(costs[True]), median(costs[False])
    print(
        f"{path.name}, {layout}: a step of {STREAMS_PER_ADAPTER} rows takes {without_change:.2f} ms of "
        "processor time, after a "
        f"change of adapters {after_change:.2f}: {after_change - without_change:.2f} more",
        flush=True,
    )
    context.close()
    model.close()


def format_ratios(values: list[float], baselines: list[float]) -> str:
    """Formats the median and the range of the rounds' ratios, without the first round."""
    ratios = sorted(value / baseline for value, baseline in zip(values[1:], baselines[1:], strict=True))
    return f"{median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_models(parser)
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=["pool", "streams"])
    parser.add_argument("--quanta", type=int, nargs="+", help="instead of the engine's own")
    parser.add_argument("--prompt", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--changes", action="store_true", help="only what a change of adapters costs")
    parser.add_argument("--steps", type=int, default=40, help="changes with --changes")
    args = parser.parse_args()
    if not args.changes:
        print(f"prompts of {args.prompt} tokens, {args.tokens} generated, {args.rounds} rounds", flush=True)
    for path in map(find_model, args.model):
        print(path.name, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            adapters = {}
            for seed in range(ADAPTERS):
                file = Path(folder) / f"{seed}.gguf"
                adapters[write_adapter(file, path, RANK, seed)] = file
            for layout in args.layouts:
                if args.changes:
                    measure_changes(path, list(adapters.values()), layout, args)
                else:
                    asyncio.run(measure(path, adapters, layout, args))


if __name__ == "__main__":
    main()
