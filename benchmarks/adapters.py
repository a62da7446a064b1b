"""What adapters cost that take turns: several with two streams each, beside one with as many streams.

    python benchmarks/adapters.py [--model PATH.gguf] [--layouts pool streams] [--quanta 4 16] [--rounds 5]

llama.cpp computes a batch with one adapter, so the streams of several take turns, and no more than the
throughput of one adapter's streams can be reached. The script writes random adapters of rank 16. Per round,
alternating: two streams on one adapter (the bound), eight on one, eight without, and two on each of four, for
each number of steps that an adapter gets (`--quanta`). Figures are medians of the rounds, ratios medians of
each round's own. A stream waits while other adapters have their turn, which the gaps between its tokens show.
Processor time moves less than the clock where others use the machine. With `--changes` it only says what a
change of adapters costs below the scheduler: processor time of a step of two rows that follows one, and of a
step that follows none, medians.
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

from antiphon.domain.sampling import Sampling
from antiphon.engines.base import KVLayout, LoadSpec, Steps, TokenRequest, TokenSegment
from antiphon.engines.llama import LlamaTokenEngine
from antiphon.engines.llama.libllama.context import ContextSizes, DecodeStatus, NativeContext
from antiphon.engines.llama.libllama.library import find_library
from antiphon.engines.llama.libllama.model import NativeModel
from antiphon.engines.llama.machine import choose_thread_count

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.engine import words
from benchmarks.make_adapter import write_adapter
from benchmarks.make_model import SIZES, write_model

LAYOUTS: dict[str, dict[str, Any]] = {
    "pool": {"layout": KVLayout.POOL},
    "streams": {"layout": KVLayout.STREAMS},
    "exact": {"exact": True},
}
RANK, ADAPTERS, EACH = 16, 4, 2


@dataclass
class Case:
    """One way to spread streams over adapters, round by round."""

    adapters: Sequence[str | None]
    """Of each stream."""
    rates: list[float] = field(default_factory=list)
    """Completion tokens a second, of each round."""
    costs: list[float] = field(default_factory=list)
    """Seconds of processor time for a token, all threads together, of each round."""
    gaps: list[float] = field(default_factory=list)
    """Seconds between two tokens of a stream, of all rounds."""


async def stream(engine: LlamaTokenEngine, wanted: TokenRequest, case: Case) -> int:
    last, tokens = 0.0, 0
    async for event in engine.generate(wanted):
        if isinstance(event, Steps):
            now = time.perf_counter()
            if last:
                case.gaps.append(now - last)
            last, tokens = now, tokens + len(event.tokens)
    return tokens


async def one_round(engine: LlamaTokenEngine, case: Case, number: int, args: argparse.Namespace) -> None:
    info = await engine.info()
    wanted = [
        TokenRequest(
            (TokenSegment(words(info, args.prompt, (number, place))),),
            args.tokens,
            Sampling(0.7, seed=place, ignore_eos=True),
            adapter=adapter,
        )
        for place, adapter in enumerate(case.adapters)
    ]
    began, processor = time.perf_counter(), time.process_time()
    tokens = sum(await asyncio.gather(*(stream(engine, one, case) for one in wanted)))
    case.rates.append(tokens / (time.perf_counter() - began))
    case.costs.append((time.process_time() - processor) / tokens)


async def loaded(
    path: Path, adapters: dict[str, Path], layout: str, quantum: int | None, args: argparse.Namespace
) -> LlamaTokenEngine:
    """An engine that knows the adapters."""
    engine = LlamaTokenEngine()
    more: dict[str, Any] = {} if quantum is None else {"quantum": quantum}
    spec = LoadSpec(
        str(path),
        context_length=args.prompt + args.tokens + 8,
        sequences=ADAPTERS * EACH,
        threads=args.threads,
        **LAYOUTS[layout],
        **more,
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
    """Every case of one layout, in turn."""
    engines = [await loaded(path, adapters, layout, quantum, args) for quantum in args.quanta or [None]]
    first, *_ = adapters
    cases = {
        f"{EACH} streams on one adapter": (engines[0], Case([first] * EACH)),
        f"{ADAPTERS * EACH} streams on one adapter": (engines[0], Case([first] * (ADAPTERS * EACH))),
        f"{ADAPTERS * EACH} streams without": (engines[0], Case([None] * (ADAPTERS * EACH))),
    }
    for engine, quantum in zip(engines, args.quanta or ["its own"], strict=True):
        name = f"{EACH} on each of {ADAPTERS}, quantum {quantum}"
        cases[name] = (engine, Case([*adapters] * EACH))
    for number in range(-1, args.rounds):
        for engine, case in cases.values():
            await one_round(engine, case, number, args)
    (_, bound), (_, whole), *_ = cases.values()
    for name, (_, case) in cases.items():
        gaps = sorted(case.gaps)
        costs = [1000 * cost for cost in case.costs[1:]]
        rate = median(case.rates[1:])
        print(
            f"  {name:26} {rate:7.1f} tokens/s, x {beside(case.rates, bound.rates)} of two, "
            f"x {beside(case.rates, whole.rates)} of eight; processor {median(costs):.2f} ms a token, x "
            f"{beside(case.costs, bound.costs)} of two's; gaps median {1000 * median(gaps):.1f}, p99 "
            f"{1000 * gaps[int(0.99 * len(gaps))]:.1f} ms",
            flush=True,
        )
    for engine in engines:
        await engine.aclose()


def changes(path: Path, files: Sequence[Path], layout: str, args: argparse.Namespace) -> None:
    """What a change of adapters costs."""
    library, _ = find_library(None)
    model = NativeModel(library, path)
    unified, exact = layout == "pool", layout == "exact"
    threads = args.threads or choose_thread_count()
    steps = 4 * args.steps + 16
    cells = steps * EACH if unified else steps
    shape = ContextSizes(cells, EACH, 64, 64, threads, unified, flash=not exact, kv_type="f16")
    context = NativeContext(model, shape)
    for number, file in enumerate(files[:2]):
        context.adapters.add(str(number), file)
    costs: dict[bool, list[float]] = {True: [], False: []}
    context.adapters.use("0")
    for step in range(3 * args.steps):
        is_change = step % 3 == 2
        context.set_single_rows([300] * EACH, [step] * EACH, list(range(EACH)))
        began = time.process_time()
        if is_change:
            context.adapters.use(str(step // 3 % 2))
        if context.decode(EACH) != DecodeStatus.DONE:
            raise SystemExit("the library could not compute a step")
        if step > 8:
            costs[is_change].append(1000 * (time.process_time() - began))
    after, plain = median(costs[True]), median(costs[False])
    print(
        f"{path.name}, {layout}: a step of {EACH} rows takes {plain:.2f} ms of processor time, after a "
        f"change of adapters {after:.2f}: {after - plain:.2f} more",
        flush=True,
    )
    context.close()
    model.close()


def beside(mine: list[float], theirs: list[float]) -> str:
    """The median of the ratios by round, less the first, and their range."""
    ratios = sorted(one / other for one, other in zip(mine[1:], theirs[1:], strict=True))
    return f"{median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path)
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=["pool", "streams"])
    parser.add_argument("--quanta", type=int, nargs="+", help="instead of the engine's own")
    parser.add_argument("--prompt", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--changes", action="store_true", help="only what a change of adapters costs")
    parser.add_argument("--steps", type=int, default=40, help="changes with --changes")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = args.model or write_model(Path(folder) / "middle.gguf", SIZES["middle"])
        adapters = {}
        for seed in range(ADAPTERS):
            file = Path(folder) / f"{seed}.gguf"
            adapters[write_adapter(file, path, RANK, seed)] = file
        if not args.changes:
            print(
                f"prompts of {args.prompt} tokens, {args.tokens} generated, {args.rounds} rounds", flush=True
            )
        for layout in args.layouts:
            if args.changes:
                changes(path, list(adapters.values()), layout, args)
            else:
                asyncio.run(measure(path, adapters, layout, args))


if __name__ == "__main__":
    main()
