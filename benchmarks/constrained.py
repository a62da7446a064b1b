"""Measures the speed of generation with a schema of ten required fields and without a constraint, at 1 and 8
streams, by wall clock and by CPU time. It also measures the share of a step that the masks take.

Usage: python benchmarks/constrained.py [--model NAME ...] [--rounds N] [--tokens N] [--streams N ...].
Without `--model` all of benchmarks/model_files.py are measured, smollm2 first. Each round measures both on
the same engine, with the same prompt.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median, quantiles

from antiphon.constraints.checking_process import check_constraint
from antiphon.constraints.guide import Clock, Guide, read_zero
from antiphon.constraints.mask_workers import MaskWorkers, build_token_table
from antiphon.constraints.matching import CompilerVocabulary
from antiphon.domain.request import Constraint, ConstraintKind, Sampling
from antiphon.engines.base import LoadSpec, PromptTokens, Steps, TextPiece, TokenRequest
from antiphon.engines.llama import LlamaTokenEngine
from antiphon.engines.llama.guided_decoding import GuidedSequences

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.model_files import add_models, find_model

FIELDS = (
    "identifier quantity unit_price category_code warehouse_row shelf_number priority weight_grams "
    "colour status"
)
SCHEMA = {
    "type": "object",
    "properties": {name: {"type": "integer", "minimum": 0, "maximum": 999} for name in FIELDS.split()[:8]}
    | {"colour": {"enum": ["red", "green", "blue"]}, "status": {"enum": ["open", "closed", "pending"]}},
    "required": FIELDS.split(),
    "additionalProperties": False,
}
CONSTRAINT = Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(SCHEMA))
MAX_TOKENS = 400
"""The most completion tokens of a constrained sequence. It always ends earlier."""


@dataclass
class ConstraintTimes:
    """The time that constraints take."""

    answer_cpu: float = 0.0
    """CPU seconds for answers, on the worker threads."""
    wait_seconds: float = 0.0
    """Seconds that the decode thread waited for answers."""


TIMES = ConstraintTimes()


class TimedGuide(Guide):
    """A guide that measures the time of its answers."""

    def work(self, vocabulary: CompilerVocabulary, cpu_clock: Clock = read_zero) -> None:
        began = time.thread_time()
        super().work(vocabulary, cpu_clock)
        TIMES.answer_cpu += time.thread_time() - began


def time_waits() -> None:
    """Makes the decode thread measure its waits for answers."""
    original = GuidedSequences.wait_for_masks

    def timed(self: GuidedSequences, running: object) -> None:
        began = time.perf_counter()
        original(self, running)  # type: ignore[arg-type]
        TIMES.wait_seconds += time.perf_counter() - began

    GuidedSequences.wait_for_masks = timed  # type: ignore[method-assign]
    MaskWorkers.create_guide = lambda self, grammar, clock=time.monotonic: TimedGuide(grammar, self, clock)  # type: ignore[method-assign]


@dataclass(frozen=True)
class RunResult:
    """The result of one run of several streams."""

    tokens: int
    seconds: float
    processor: float
    """CPU seconds of all threads."""
    answer_cpu: float
    wait_seconds: float

    @property
    def pace(self) -> float:
        return self.tokens / self.seconds

    @property
    def cost(self) -> float:
        """CPU milliseconds for a token."""
        return 1000 * self.processor / self.tokens


async def count_generated(
    engine: LlamaTokenEngine, prompt: tuple[int, ...], seed: int, tokens: int | None
) -> int:
    """Runs one sequence, and returns the number of completion tokens. With `tokens`, it is not
    constrained."""
    request = TokenRequest(
        PromptTokens(prompt),
        tokens or MAX_TOKENS,
        Sampling(seed=seed, ignore_eos=tokens is not None),
        constraint=None if tokens else CONSTRAINT,
    )
    return sum([len(event.tokens) async for event in engine.generate(request) if isinstance(event, Steps)])


async def run(
    engine: LlamaTokenEngine, prompt: tuple[int, ...], streams: int, tokens: int | None
) -> RunResult:
    """Runs several streams at once."""
    TIMES.answer_cpu = TIMES.wait_seconds = 0.0
    began, processor = time.monotonic(), time.process_time()
    counts = await asyncio.gather(*(count_generated(engine, prompt, seed, tokens) for seed in range(streams)))
    seconds, processor = time.monotonic() - began, time.process_time() - processor
    return RunResult(sum(counts), seconds, processor, TIMES.answer_cpu, TIMES.wait_seconds)


async def main(model: str, rounds: int, tokens: int, widths: list[int], max_seconds: float) -> None:
    time_waits()
    engine = LlamaTokenEngine()
    await engine.load(LoadSpec(model, sequences=8, context_length=1024))
    table = await engine.vocabulary()
    prompt = await engine.tokenize([TextPiece("Describe one item of the stock as JSON:")], True)
    await count_generated(engine, prompt, 0, None)
    print(
        f"{Path(model).name}, vocabulary {len(table.pieces)}, schema of {len(FIELDS.split())} fields, "
        f"load average {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    for streams in widths:
        pairs: list[tuple[RunResult, RunResult]] = []
        began = time.monotonic()
        while len(pairs) < rounds and (
            not pairs or time.monotonic() - began < max_seconds * len(pairs) / (len(pairs) + 1)
        ):
            unconstrained = await run(engine, prompt, streams, tokens)
            pairs.append((unconstrained, await run(engine, prompt, streams, None)))
        report(streams, pairs)
    await engine.aclose()
    times = time_answers(CompilerVocabulary(build_token_table(table)))
    slowest = quantiles(times, n=100)[98]
    print(f"answers (forced tokens and mask): mean {mean(times):.0f} us, p99 {slowest:.0f} us")


def report(streams: int, pairs: list[tuple[RunResult, RunResult]]) -> None:
    """Prints the medians, and the ratios of the rounds. Each pair is an unconstrained and a constrained
    run."""
    unconstrained, constrained = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    pace_ratios = sorted(guided.pace / free.pace for free, guided in pairs)
    cost_ratios = sorted(free.cost / guided.cost for free, guided in pairs)
    paces = [median(run.pace for run in runs) for runs in (constrained, unconstrained)]
    costs = [median(run.cost for run in runs) for runs in (constrained, unconstrained)]
    mask_share = median(run.answer_cpu / run.seconds for run in constrained)
    mask_cpu_share = median(run.answer_cpu / run.processor for run in constrained)
    wait_share = median(run.wait_seconds / run.seconds for run in constrained)
    print(
        f"{streams} streams, {len(pairs)} rounds: constrained {paces[0]:.1f} tokens/s, "
        f"unconstrained {paces[1]:.1f}, ratio {median(pace_ratios):.2f} "
        f"({pace_ratios[0]:.2f} to {pace_ratios[-1]:.2f}); CPU time for a token "
        f"{costs[0]:.2f} and {costs[1]:.2f} ms, ratio {median(cost_ratios):.2f} "
        f"({cost_ratios[0]:.2f} to {cost_ratios[-1]:.2f}); masks take {mask_share:.1%} of the time "
        f"({mask_cpu_share:.1%} of the CPU time), the decode waits for them {wait_share:.1%}; "
        f"{constrained[0].tokens / streams:.0f} tokens each",
        flush=True,
    )


class NoWorkers:
    """Mask workers that do nothing. The benchmark calls the guide's work itself."""

    def __init__(self, size: int) -> None:
        import threading

        self.result_ready = threading.Event()
        self.size = size

    def put(self, guide: Guide) -> None:
        """Does nothing."""

    abandon = put


def time_answers(vocabulary: CompilerVocabulary) -> list[float]:
    """Returns the microseconds of each answer for texts of the schema, without a model or other threads."""
    grammar = check_constraint(CONSTRAINT, vocabulary)
    times = []
    for seed in range(20):
        guide = Guide(grammar, NoWorkers(vocabulary.size))
        while True:
            began = time.perf_counter()
            guide.work(vocabulary)
            times.append((time.perf_counter() - began) * 1e6)
            forced = guide.take_forced()
            if forced and forced[-1] in vocabulary.tokens.ends:
                break
            allowed = guide.get_allowed().nonzero()[0]
            token = int(allowed[seed % len(allowed)])
            if token in vocabulary.tokens.ends:
                break
            guide.advance(token)
    return times


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    add_models(parser)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=100, help="of an unconstrained sequence")
    parser.add_argument("--seconds", type=float, default=75, help="for each number of streams, about")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    given = parser.parse_args()
    for name in given.model:
        asyncio.run(main(str(find_model(name)), given.rounds, given.tokens, given.streams, given.seconds))
