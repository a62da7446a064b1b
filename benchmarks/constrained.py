"""Tokens a second under a schema of ten required fields beside the same engine unconstrained, at 1 and 8
streams, by wall clock and by processor time; and what share of a step the masks take.

Usage: python benchmarks/constrained.py [MODEL.gguf] [--rounds N] [--tokens N] [--streams N ...]; without a
model it measures cantor. Both sides take turns in every round, on the same engine, with the same prompt.
"""

import argparse
import asyncio
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median, quantiles

import antiphon
from antiphon.constraints.checking_process import check_constraint
from antiphon.constraints.guide import Clock, Guide, MatcherFactory, read_zero
from antiphon.constraints.mask_workers import MaskWorkers, build_token_table
from antiphon.constraints.matching import CompilerVocabulary, Matcher
from antiphon.domain.request import Constraint, ConstraintKind
from antiphon.domain.sampling import Sampling
from antiphon.engines.base import LoadSpec, Steps, TextPiece, TokenRequest, TokenSegment
from antiphon.engines.llama import LlamaTokenEngine
from antiphon.engines.llama.guided_decoding import GuidedSequences

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
MOST = 400
"""Completion tokens of a constrained sequence, which ends by itself before."""


@dataclass
class Clocks:
    """Where the time of constraints goes."""

    working: float = 0.0
    """Seconds of processor time in answers, on the threads beside the decode."""
    awaiting: float = 0.0
    """Seconds that the decode thread waits for answers."""


CLOCKS = Clocks()


class TimedGuide(Guide):
    """Counts the time of its answers."""

    def work(
        self, vocabulary: CompilerVocabulary, spent: Clock = read_zero, make: MatcherFactory = Matcher
    ) -> None:
        began = time.thread_time()
        super().work(vocabulary, spent, make)
        CLOCKS.working += time.thread_time() - began


def time_waits() -> None:
    """Counts the decode thread's waits."""
    plain = GuidedSequences.await_answers

    def timed(self: GuidedSequences, running: object) -> None:
        began = time.perf_counter()
        plain(self, running)  # type: ignore[arg-type]
        CLOCKS.awaiting += time.perf_counter() - began

    GuidedSequences.await_answers = timed  # type: ignore[method-assign]
    MaskWorkers.create_guide = lambda self, grammar, clock=time.monotonic: TimedGuide(grammar, self, clock)  # type: ignore[method-assign]


@dataclass(frozen=True)
class Measured:
    """One run of so many streams."""

    tokens: int
    seconds: float
    processor: float
    """Seconds of processor time of all threads."""
    working: float
    awaiting: float

    @property
    def pace(self) -> float:
        return self.tokens / self.seconds

    @property
    def cost(self) -> float:
        """Milliseconds of processor time for a token."""
        return 1000 * self.processor / self.tokens


async def made(engine: LlamaTokenEngine, prompt: tuple[int, ...], seed: int, tokens: int | None) -> int:
    """Completion tokens of one sequence; unconstrained, `tokens` of them."""
    asked = TokenRequest(
        (TokenSegment(prompt),),
        tokens or MOST,
        Sampling(seed=seed, ignore_eos=tokens is not None),
        constraint=None if tokens else CONSTRAINT,
    )
    return sum([len(event.tokens) async for event in engine.generate(asked) if isinstance(event, Steps)])


async def run(
    engine: LlamaTokenEngine, prompt: tuple[int, ...], streams: int, tokens: int | None
) -> Measured:
    """So many streams at once."""
    CLOCKS.working = CLOCKS.awaiting = 0.0
    began, processor = time.monotonic(), time.process_time()
    counts = await asyncio.gather(*(made(engine, prompt, seed, tokens) for seed in range(streams)))
    seconds, processor = time.monotonic() - began, time.process_time() - processor
    return Measured(sum(counts), seconds, processor, CLOCKS.working, CLOCKS.awaiting)


async def main(model: str, rounds: int, tokens: int, widths: list[int], most: float) -> None:
    time_waits()
    engine = LlamaTokenEngine()
    await engine.load(LoadSpec(model, sequences=8, context_length=1024))
    table = await engine.vocabulary()
    prompt = await engine.tokenize([TextPiece("Describe one item of the stock as JSON:")], True)
    await made(engine, prompt, 0, None)
    print(
        f"{Path(model).name}, vocabulary {len(table.pieces)}, schema of {len(FIELDS.split())} fields, "
        f"load average {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    for streams in widths:
        pairs: list[tuple[Measured, Measured]] = []
        began = time.monotonic()
        while len(pairs) < rounds and (
            not pairs or time.monotonic() - began < most * len(pairs) / (len(pairs) + 1)
        ):
            free = await run(engine, prompt, streams, tokens)
            pairs.append((free, await run(engine, prompt, streams, None)))
        report(streams, pairs)
    await engine.aclose()
    times = answers(CompilerVocabulary(build_token_table(table)))
    slowest = quantiles(times, n=100)[98]
    print(f"answers (forced tokens and mask): mean {mean(times):.0f} us, p99 {slowest:.0f} us")


def report(streams: int, pairs: list[tuple[Measured, Measured]]) -> None:
    """Says medians, and ratios by round."""
    free, bound = [one for one, _ in pairs], [one for _, one in pairs]
    ratios = sorted(b.pace / a.pace for a, b in pairs)
    costs = sorted(a.cost / b.cost for a, b in pairs)
    said = f"{streams} streams, {len(pairs)} rounds: "
    said += f"constrained {median(one.pace for one in bound):.1f} tokens/s, "
    said += f"unconstrained {median(one.pace for one in free):.1f}, "
    said += f"ratio {median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}); processor time for a token "
    said += f"{median(one.cost for one in bound):.2f} and {median(one.cost for one in free):.2f} ms, "
    said += f"ratio {median(costs):.2f} ({costs[0]:.2f} to {costs[-1]:.2f}); "
    said += f"masks take {median(one.working / one.seconds for one in bound):.1%} of the time "
    said += f"({median(one.working / one.processor for one in bound):.1%} of the processor time), "
    said += f"the decode waits for them {median(one.awaiting / one.seconds for one in bound):.1%}; "
    print(said + f"{bound[0].tokens / streams:.0f} tokens each", flush=True)


class Aside:
    """A desk where nobody works: the guide is worked by hand."""

    def __init__(self, size: int) -> None:
        import threading

        self.answer_ready = threading.Event()
        self.size = size

    def put(self, guide: Guide) -> None:
        """Left alone."""

    abandon = put


def answers(vocabulary: CompilerVocabulary) -> list[float]:
    """Microseconds of each answer along texts of the schema, without a model or other threads."""
    grammar = check_constraint(CONSTRAINT, vocabulary)
    times = []
    for seed in range(20):
        guide = Guide(grammar, Aside(vocabulary.size))
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
    bundled = Path(antiphon.__file__).parent / "bundled" / "cantor.gguf"
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("model", nargs="?", default=str(bundled))
    asked.add_argument("--rounds", type=int, default=5)
    asked.add_argument("--tokens", type=int, default=100, help="of an unconstrained sequence")
    asked.add_argument("--seconds", type=float, default=75, help="for each number of streams, about")
    asked.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    given = asked.parse_args()
    asyncio.run(main(given.model, given.rounds, given.tokens, given.streams, given.seconds))
