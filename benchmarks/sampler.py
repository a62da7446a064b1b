"""The sampler by itself: milliseconds of CPU for one step of 32 rows, beside two slower ways to the tokens.

    python benchmarks/sampler.py [--rows 32] [--rounds 20]

Beside it run the same sampler one row at a time, and the float64 reference of the tests, which sorts
everything. Time is the thread's own CPU time, so that other load matters little; waiting for memory counts.
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

from antiphon.domain.sampling import Mirostat, Sampling
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
"""Of random weights' logits, of which most of the vocabulary is in the nucleus: the worst case."""

PROMPT = 500
"""Tokens of a prompt, which the repetition penalty looks at."""


def rows_of(count: int, vocabulary: int) -> np.ndarray:
    """Logits as peaked as a language model's: an entropy of about 4 bits."""
    dice = np.random.default_rng(1)
    ranks = dice.permuted(np.tile(np.arange(1, vocabulary + 1), (count, 1)), axis=1)
    falls = -1.6 * np.log(ranks) + dice.standard_normal((count, vocabulary)) * 0.5
    logits: np.ndarray = falls.astype(np.float32)
    return logits


def flat_rows(count: int, vocabulary: int) -> np.ndarray:
    """Logits as random weights give them, with a spread of 3."""
    logits: np.ndarray = 3 * np.random.default_rng(1).standard_normal((count, vocabulary), dtype=np.float32)
    return logits


def drawings(count: int, vocabulary: int, asked: dict[str, Any], logprobs: int | None) -> list[SamplingState]:
    dice = random.Random(2)
    prompt = [dice.randrange(vocabulary) for _ in range(PROMPT)]
    return [
        SamplingState(Sampling(seed=row, **asked), 0, logprobs, prompt, (2,), (), vocabulary)
        for row in range(count)
    ]


def cost(work: Callable[[], object], rounds: int) -> float:
    """Median milliseconds of CPU."""
    work()
    taken = []
    for _ in range(rounds):
        began = time.thread_time()
        work()
        taken.append(1000 * (time.thread_time() - began))
    return median(taken)


def slow(logits: np.ndarray, asked: Sampling) -> None:
    """What the reference does for one row."""
    changed = reference.changed(logits, asked)
    if asked.temperature > 0:
        reference.distribution(changed, asked)


def one_by_one(sampler: Sampler, logits: np.ndarray, many: list[SamplingState]) -> None:
    """As many calls as rows."""
    for row, one in enumerate(many):
        sampler.draw(logits[row : row + 1], [one])


def measure(vocabulary: int, args: argparse.Namespace) -> None:
    sampler = Sampler(vocabulary)
    peaked, flat = rows_of(args.rows, vocabulary), flat_rows(args.rows, vocabulary)
    for name, (asked, logprobs) in (CASES | FLAT).items():
        logits = flat if name in FLAT else peaked
        many = drawings(args.rows, vocabulary, asked, logprobs)

        ours = cost(partial(sampler.draw, logits, many), args.rounds)
        single = cost(partial(one_by_one, sampler, logits, many), max(3, args.rounds // 4))
        said = f"{vocabulary:7}  {name:32} {ours:8.2f} ms   one row at a time x {single / ours:5.1f}"
        if vocabulary < 10_000 and "mirostat" not in asked:
            textbook = args.rows * cost(partial(slow, logits[0], many[0].sampling), 1)
            said += f"   float64 reference x {textbook / ours:6.0f}"
        print(said, flush=True)


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
