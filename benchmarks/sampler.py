"""Measures the sampler alone: CPU milliseconds for one step of 32 rows, compared with two slower methods.

python benchmarks/sampler.py [--rows 32] [--rounds 20]

The two methods are the same sampler with one row at a time, and the float64 reference of the tests, which
sorts all logits. Time is the thread's CPU time, so other load on the machine has little effect.
"""

import argparse
import os
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from antiphon.domain.request import Mirostat, Sampling
from antiphon.engines.sampling import Sampler, SamplingState

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.engines.sampling import reference

CHAT: dict[str, Any] = {"temperature": 0.7, "top_p": 0.9, "top_k": 40}
CASES: dict[str, tuple[dict[str, Any], int | None]] = {
    "greedy": ({"temperature": 0.0}, None),
    "greedy, 5 log-probabilities": ({"temperature": 0.0}, 5),
    "temperature 1": ({}, None),
    "temperature 0.7, top-p 0.9": ({"temperature": 0.7, "top_p": 0.9}, None),
    "the same, top-k 40": (CHAT, None),
    "the same, three penalties": (
        CHAT | {"repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": 0.2},
        None,
    ),
    "the same, 20 log-probabilities": (CHAT | {"repetition_penalty": 1.1}, 20),
    "min-p 0.05": ({"min_p": 0.05}, None),
    "typical-p 0.9": ({"typical_p": 0.9}, None),
    "Mirostat 2": ({"mirostat": Mirostat(3.0)}, None),
}
FLAT: dict[str, tuple[dict[str, Any], int | None]] = {
    "flat logits, top-p 0.95": ({"top_p": 0.95}, None),
    "flat logits, typical-p 0.9": ({"typical_p": 0.9}, None),
    "flat logits, both": ({"top_p": 0.95, "typical_p": 0.9}, None),
}
"""Cases with the logits of random weights. Most of the vocabulary is in the nucleus, which is the worst
case."""

PROMPT = 500
"""Tokens of a prompt, for the repetition penalty."""


def build_peaked_rows(count: int, vocabulary: int) -> np.ndarray:
    """Builds logits with the entropy of a language model's, about 4 bits."""
    randomizer = np.random.default_rng(1)
    ranks = randomizer.permuted(np.tile(np.arange(1, vocabulary + 1), (count, 1)), axis=1)
    values = -1.6 * np.log(ranks) + randomizer.standard_normal((count, vocabulary)) * 0.5
    logits: np.ndarray = values.astype(np.float32)
    return logits


def build_flat_rows(count: int, vocabulary: int) -> np.ndarray:
    """Builds logits like those of random weights, with a standard deviation of 3."""
    logits: np.ndarray = 3 * np.random.default_rng(1).standard_normal((count, vocabulary), dtype=np.float32)
    return logits


def build_states(
    count: int, vocabulary: int, options: dict[str, Any], logprobs: int | None
) -> list[SamplingState]:
    randomizer = random.Random(2)
    prompt = [randomizer.randrange(vocabulary) for _ in range(PROMPT)]
    return [
        SamplingState(Sampling(seed=row, **options), 0, logprobs, prompt, (2,), (), vocabulary)
        for row in range(count)
    ]


def measure_cpu(work: Callable[[], object], rounds: int) -> float:
    """Returns the median CPU milliseconds of a function."""
    work()
    times = []
    for _ in range(rounds):
        began = time.thread_time()
        work()
        times.append(1000 * (time.thread_time() - began))
    return median(times)


def run_reference(logits: np.ndarray, sampling: Sampling) -> None:
    """Runs the reference for one row."""
    changed = reference.changed(logits, sampling)
    if sampling.temperature > 0:
        reference.distribution(changed, sampling)


def draw_row_by_row(sampler: Sampler, logits: np.ndarray, states: list[SamplingState]) -> None:
    """Draws each row with a call of its own."""
    for row, state in enumerate(states):
        sampler.draw(logits[row : row + 1], [state])


def measure(vocabulary: int, args: argparse.Namespace) -> None:
    sampler = Sampler(vocabulary)
    peaked, flat = build_peaked_rows(args.rows, vocabulary), build_flat_rows(args.rows, vocabulary)
    for name, (options, logprobs) in (CASES | FLAT).items():
        logits = flat if name in FLAT else peaked
        states = build_states(args.rows, vocabulary, options, logprobs)

        batch_ms = measure_cpu(partial(sampler.draw, logits, states), args.rounds)
        single_ms = measure_cpu(partial(draw_row_by_row, sampler, logits, states), max(3, args.rounds // 4))
        line = (
            f"{vocabulary:7}  {name:32} {batch_ms:8.2f} ms   one row at a time x {single_ms / batch_ms:5.1f}"
        )
        if vocabulary < 10_000 and "mirostat" not in options:
            reference_ms = args.rows * measure_cpu(partial(run_reference, logits[0], states[0].sampling), 1)
            line += f"   float64 reference x {reference_ms / batch_ms:6.0f}"
        print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--vocabularies", type=int, nargs="+", default=[2048, 32_768, 131_072])
    args = parser.parse_args()
    print(f"{args.rows} rows; numpy {np.__version__}; load average {os.getloadavg()[0]:.1f}")
    for vocabulary in args.vocabularies:
        measure(vocabulary, args)


if __name__ == "__main__":
    main()
