"""A model with none, half and all of its layers on devices: agreement with the processor, speed and bits.

    python benchmarks/offload.py MODEL.gguf... [--library FILE] [--streams 1 8 32] [--tokens 16]

Agreement: greedy tokens before the first that differs from the processor's, and how far apart the processor's
two likeliest tokens were there, which says whether it was a near tie. Bits: whether a row's logits are equal
alone and beside seven others, of equal and of greater length, without flash attention, as exact mode would
need it. Prints nothing but a sentence where the library finds no device.
"""

import argparse
import asyncio
import os
import random
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from antiphon.domain.sampling import Sampling
from antiphon.engines.base import LoadSpec, Steps, TokenRequest, TokenSegment
from antiphon.engines.llama import LlamaTokenEngine
from antiphon.engines.llama.libllama.context import ContextSizes, DecodeStatus, NativeContext
from antiphon.engines.llama.libllama.devices import list_devices
from antiphon.engines.llama.libllama.library import Library, find_library
from antiphon.engines.llama.libllama.model import NativeModel
from antiphon.engines.llama.placement import LayerPlacement

CELLS = 128
BESIDE = 8


@dataclass
class Answer:
    """The tokens of one stream."""

    tokens: list[int] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    """How much likelier each token was than the next best, as a difference of log-probabilities."""


@dataclass
class Round:
    """The streams of one round."""

    answers: list[Answer]
    seconds: float
    first: float
    """Seconds to the first token, at most."""


async def answer(engine: LlamaTokenEngine, prompt: tuple[int, ...], tokens: int) -> tuple[Answer, float]:
    said, began, first = Answer(), time.perf_counter(), 0.0
    sampling = Sampling(temperature=0.0, ignore_eos=True)
    async for event in engine.generate(TokenRequest((TokenSegment(prompt),), tokens, sampling, logprobs=2)):
        if isinstance(event, Steps):
            first = first or time.perf_counter() - began
            said.tokens.extend(event.tokens)
            said.gaps.extend(best[1] - next_best[1] for best, next_best in event.alternatives)
    return said, first


async def measure(engine: LlamaTokenEngine, prompts: list[tuple[int, ...]], tokens: int) -> Round:
    began = time.perf_counter()
    done = await asyncio.gather(*(answer(engine, prompt, tokens) for prompt in prompts))
    return Round([each for each, _ in done], time.perf_counter() - began, max(first for _, first in done))


def compare(mine: list[Answer], reference: list[Answer]) -> str:
    same, gaps = 0, []
    for ours, theirs in zip(mine, reference, strict=True):
        pairs = zip(ours.tokens, theirs.tokens, strict=True)
        first = next((at for at, (one, other) in enumerate(pairs) if one != other), len(ours.tokens))
        same += first
        if first < len(ours.tokens):
            gaps.append(theirs.gaps[first])
    ties = f", {len(gaps)} differ; gap there at most {max(gaps):.3f}" if gaps else ""
    return f"{same} of {sum(len(each.tokens) for each in reference)} tokens before a difference{ties}"


async def run_model(path: Path, layers: int, args: argparse.Namespace) -> None:
    references: dict[int, Round] = {}
    for count in (0, layers // 2, layers):
        engine = LlamaTokenEngine()
        spec = LoadSpec(
            str(path),
            context_length=CELLS,
            sequences=max(args.streams),
            library=args.library,
            gpu_layers=count,
            keep_prefixes=False,
        )
        info = await engine.load(spec)
        dice = random.Random(7)
        prompts = [
            tuple(dice.randrange(300, info.vocabulary) for _ in range(args.prompt))
            for _ in range(max(args.streams))
        ]
        await measure(engine, prompts[:1], 2)  # drivers compile their kernels now
        for streams in args.streams:
            found = await measure(engine, prompts[:streams], args.tokens)
            reference = references.setdefault(streams, found)
            rate, other = (streams * args.tokens / each.seconds for each in (found, reference))
            agrees = "" if found is reference else compare(found.answers, reference.answers)
            print(
                f"{path.stem:8} {count:3} of {layers} layers  {streams:3} streams  {rate:8.2f} tok/s "
                f"(x {rate / other:.2f})  first {found.first:6.2f} s  {agrees}",
                flush=True,
            )
        await engine.aclose()


def compare_bits(library: Library, path: Path, layers: int, args: argparse.Namespace) -> None:
    devices = list_devices(library)[:1]
    model = NativeModel(library, path, placement=LayerPlacement(layers, devices, (layers,)))
    context = NativeContext(
        model, ContextSizes(512, BESIDE, 512, 512, 2, unified=False, flash=False, kv_type="f16")
    )
    dice = np.random.default_rng(5)
    texts = dice.integers(300, model.size, (BESIDE, args.prompt * 6), dtype=np.int32)
    short, long = args.prompt, args.prompt * 6
    alone = feed(context, texts, [short])
    again = feed(context, texts, [short])
    alike = feed(context, texts, [short] * BESIDE)
    longer = feed(context, texts, [short] + [long] * (BESIDE - 1))
    for what, row in (("again alone", again), (f"beside {BESIDE - 1} of the same length", alike),
                      (f"beside {BESIDE - 1} longer ones", longer)):  # fmt: skip
        difference = float(np.abs(row - alone).max())
        verdict = "equal" if (row == alone).all() else f"differ by up to {difference:.2e}"
        print(f"{path.stem:8} bits of a row {what}: {verdict}", flush=True)
    context.close()
    model.close()


def feed(context: NativeContext, texts: NDArray[np.int32], lengths: list[int]) -> NDArray[np.float32]:
    """Computes each text but its last token in a call of its own, then all last tokens together. Returns the
    logits of the first."""
    for slot, length in enumerate(lengths):
        context.set_rows(0, texts[slot, : length - 1].tolist(), 0, slot, False)
        if context.decode(length - 1) != DecodeStatus.DONE:
            raise RuntimeError("the library failed")
    last = [int(texts[slot, length - 1]) for slot, length in enumerate(lengths)]
    context.set_single_rows(last, [length - 1 for length in lengths], list(range(len(lengths))))
    if context.decode(len(lengths)) != DecodeStatus.DONE:
        raise RuntimeError("the library failed")
    row: NDArray[np.float32] = context.read_logits(len(lengths))[0].copy()
    for slot in range(len(lengths)):
        context.remove(slot)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path, help="GGUF files; cantor without any")
    parser.add_argument("--library", default=os.environ.get("ANTIPHON_ENGINE_LIBRARY"))
    parser.add_argument("--streams", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--prompt", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=16)
    args = parser.parse_args()
    library, file = find_library(args.library)
    devices = list_devices(library)
    print(f"{file.origin}, {library.describe_version()}; load average {os.getloadavg()[0]:.1f}")
    if not devices:
        print("this library finds no device, so there is nothing to compare")
        sys.exit()
    for device in devices:
        print(f"{device.name}: {device.description}, {device.total / 1e6:,.0f} MB")
    cantor = Path(__file__).parents[1] / "src" / "antiphon" / "bundled" / "cantor.gguf"
    for path in args.models or [cantor]:
        model = NativeModel(library, path)
        layers = int(model.get_metadata(f"{model.get_metadata('general.architecture')}.block_count") or 0) + 1
        model.close()
        compare_bits(library, path, layers, args)
        asyncio.run(run_model(path, layers, args))


main()
