"""Compares a model with none, half and all of its layers on devices: tokens, speed, and bit-equality.

python benchmarks/offload.py [--model smollm2 half] [--library FILE] [--streams 1 8 32] [--tokens 16]

Tokens: the number of greedy tokens before the first one that differs from the processor's. The difference
between the processor's two likeliest tokens there shows whether it was a near tie. Bits: whether a row's
logits are equal alone and together with seven other rows, of equal and of greater length, without flash
attention, as exact mode would need. If the library finds no device, the script only prints a sentence.
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

from antiphon.domain.request import Sampling
from antiphon.engines.base import LoadSpec, PromptTokens, Steps, TokenRequest
from antiphon.engines.llama import LlamaTokenEngine
from antiphon.engines.llama.libllama.context import ContextSizes, DecodeStatus, NativeContext
from antiphon.engines.llama.libllama.library import Library, find_library
from antiphon.engines.llama.libllama.model import NativeModel
from antiphon.engines.llama.libllama.placement import LayerPlacement, list_devices

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.model_files import add_models, find_model

CELLS = 128
ROWS = 8


@dataclass
class Answer:
    """The tokens of one stream."""

    tokens: list[int] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    """For each token, the difference of log-probabilities between the two likeliest tokens."""


@dataclass
class Round:
    """The streams of one round."""

    answers: list[Answer]
    seconds: float
    first: float
    """The most seconds to a first token."""


async def generate_answer(
    engine: LlamaTokenEngine, prompt: tuple[int, ...], tokens: int
) -> tuple[Answer, float]:
    result, began, first_seconds = Answer(), time.perf_counter(), 0.0
    sampling = Sampling(temperature=0.0, ignore_eos=True)
    async for event in engine.generate(TokenRequest(PromptTokens(prompt), tokens, sampling, logprobs=2)):
        if isinstance(event, Steps):
            first_seconds = first_seconds or time.perf_counter() - began
            result.tokens.extend(event.tokens)
            result.gaps.extend(best[1] - next_best[1] for best, next_best in event.alternatives)
    return result, first_seconds


async def measure(engine: LlamaTokenEngine, prompts: list[tuple[int, ...]], tokens: int) -> Round:
    began = time.perf_counter()
    results = await asyncio.gather(*(generate_answer(engine, prompt, tokens) for prompt in prompts))
    return Round(
        [answer_result for answer_result, _ in results],
        time.perf_counter() - began,
        max(first for _, first in results),
    )


def compare(answers: list[Answer], expected_answers: list[Answer]) -> str:
    matching_tokens, gaps = 0, []
    for generated, expected in zip(answers, expected_answers, strict=True):
        pairs = zip(generated.tokens, expected.tokens, strict=True)
        first_difference = next(
            (index for index, (token, expected_token) in enumerate(pairs) if token != expected_token),
            len(generated.tokens),
        )
        matching_tokens += first_difference
        if first_difference < len(generated.tokens):
            gaps.append(expected.gaps[first_difference])
    ties = f", {len(gaps)} differ; gap there at most {max(gaps):.3f}" if gaps else ""
    total = sum(len(expected.tokens) for expected in expected_answers)
    return f"{matching_tokens} of {total} tokens before a difference{ties}"


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
        randomizer = random.Random(7)
        prompts = [
            tuple(randomizer.randrange(300, info.vocabulary) for _ in range(args.prompt))
            for _ in range(max(args.streams))
        ]
        await measure(engine, prompts[:1], 2)  # drivers compile their kernels now
        for streams in args.streams:
            measured_round = await measure(engine, prompts[:streams], args.tokens)
            reference = references.setdefault(streams, measured_round)
            rate, reference_rate = (
                streams * args.tokens / some_round.seconds for some_round in (measured_round, reference)
            )
            agreement = (
                "" if measured_round is reference else compare(measured_round.answers, reference.answers)
            )
            print(
                f"{path.stem:8} {count:3} of {layers} layers  {streams:3} streams  {rate:8.2f} tok/s "
                f"(x {rate / reference_rate:.2f})  first {measured_round.first:6.2f} s  {agreement}",
                flush=True,
            )
        await engine.aclose()


def compare_bits(library: Library, path: Path, layers: int, args: argparse.Namespace) -> None:
    devices = list_devices(library)[:1]
    model = NativeModel(library, path, placement=LayerPlacement(layers, devices, (layers,)))
    context = NativeContext(
        model, ContextSizes(512, ROWS, 512, 512, 2, unified=False, flash=False, kv_type="f16")
    )
    randomizer = np.random.default_rng(5)
    texts = randomizer.integers(300, model.size, (ROWS, args.prompt * 6), dtype=np.int32)
    short, long = args.prompt, args.prompt * 6
    alone = compute_first_row(context, texts, [short])
    again = compute_first_row(context, texts, [short])
    equal_lengths = compute_first_row(context, texts, [short] * ROWS)
    longer_lengths = compute_first_row(context, texts, [short] + [long] * (ROWS - 1))
    for label, row in (("again alone", again), (f"beside {ROWS - 1} of the same length", equal_lengths),
                      (f"beside {ROWS - 1} longer ones", longer_lengths)):  # fmt: skip
        difference = float(np.abs(row - alone).max())
        verdict = "equal" if (row == alone).all() else f"differ by up to {difference:.2e}"
        print(f"{path.stem:8} bits of a row {label}: {verdict}", flush=True)
    context.close()
    model.close()


def compute_first_row(
    context: NativeContext, texts: NDArray[np.int32], lengths: list[int]
) -> NDArray[np.float32]:
    """Computes each text without its last token in a separate call, then all last tokens together. Returns
    the logits of the first text."""
    for slot, length in enumerate(lengths):
        context.set_rows(0, texts[slot, : length - 1].tolist(), 0, slot, False)
        if context.decode(length - 1) != DecodeStatus.DONE:
            raise RuntimeError("the library failed")
    last = [int(texts[slot, length - 1]) for slot, length in enumerate(lengths)]
    context.set_one_row_each(last, [length - 1 for length in lengths], list(range(len(lengths))))
    if context.decode(len(lengths)) != DecodeStatus.DONE:
        raise RuntimeError("the library failed")
    row: NDArray[np.float32] = context.read_logits(len(lengths))[0].copy()
    for slot in range(len(lengths)):
        context.remove(slot)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add_models(parser)
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
    for path in map(find_model, args.model):
        model = NativeModel(library, path)
        layers = int(model.get_metadata(f"{model.get_metadata('general.architecture')}.block_count") or 0) + 1
        model.close()
        compare_bits(library, path, layers, args)
        asyncio.run(run_model(path, layers, args))


if __name__ == "__main__":
    main()
