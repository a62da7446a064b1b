"""Tokens a second under a schema of ten required fields beside the same engine unconstrained, at 1 and 8
streams; and how long masks take.

Usage: python benchmarks/constrained.py [MODEL.gguf]; without one it measures cantor.
"""

import asyncio
import json
import sys
import time
from pathlib import Path
from statistics import mean, quantiles

import antiphon
from antiphon.constraints.checking import checked
from antiphon.domain.constraint import Constraint, ConstraintKind
from antiphon.domain.sampling import Sampling
from antiphon.engines.base import LoadSpec, Steps, TextPiece, TokenRequest, TokenSegment
from antiphon.engines.llama import LlamaTokenEngine
from antiphon.engines.llama.masks import Masks, tokens_of

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
ROUNDS = 3


async def made(engine: LlamaTokenEngine, prompt: tuple[int, ...], seed: int, tokens: int | None) -> int:
    """Completion tokens of one sequence; unconstrained, `tokens` of them."""
    asked = TokenRequest(
        (TokenSegment(prompt),),
        tokens or 400,
        Sampling(seed=seed, ignore_eos=tokens is not None),
        constraint=None if tokens else CONSTRAINT,
    )
    return sum([len(event.tokens) async for event in engine.generate(asked) if isinstance(event, Steps)])


async def pace(engine: LlamaTokenEngine, prompt: tuple[int, ...], streams: int, tokens: int | None) -> float:
    """Tokens a second of so many streams at once."""
    began = time.monotonic()
    counts = await asyncio.gather(*(made(engine, prompt, seed, tokens) for seed in range(streams)))
    return sum(counts) / (time.monotonic() - began)


async def main(model: str) -> None:
    engine = LlamaTokenEngine()
    await engine.load(LoadSpec(model, sequences=8, context_length=1024))
    table = await engine.vocabulary()
    prompt = await engine.tokenize([TextPiece("Describe one item of the stock as JSON:")], True)
    await made(engine, prompt, 0, None)
    print(f"{Path(model).name}, vocabulary {len(table.pieces)}, schema of {len(FIELDS.split())} fields")
    for streams in (1, 8):
        free, bound = [], []
        for _ in range(ROUNDS):
            bound.append(await pace(engine, prompt, streams, None))
            free.append(await pace(engine, prompt, streams, 100))
        print(
            f"{streams} streams: constrained {max(bound):.0f} tokens/s, unconstrained {max(free):.0f}, "
            f"ratio {max(bound) / max(free):.2f}"
        )
    await engine.aclose()
    times = answers(Masks(tokens_of(table)))
    slowest = quantiles(times, n=100)[98]
    print(f"answers (forced tokens and mask): mean {mean(times):.0f} us, p99 {slowest:.0f} us")


def answers(masks: Masks) -> list[float]:
    """Microseconds of each answer along texts of the schema, without a model or other threads."""
    vocabulary = masks._vocabulary  # noqa: SLF001 - timed by itself
    grammar = checked(CONSTRAINT, vocabulary)
    masks.close()
    times = []
    for seed in range(20):
        guide = masks.guide(grammar)
        while True:
            began = time.perf_counter()
            guide.work(vocabulary)
            times.append((time.perf_counter() - began) * 1e6)
            forced = guide.take_forced()
            if forced and forced[-1] in vocabulary.tokens.ends:
                break
            allowed = guide.allowed().nonzero()[0]
            token = int(allowed[seed % len(allowed)])
            if token in vocabulary.tokens.ends:
                break
            guide.advance(token)
    return times


if __name__ == "__main__":
    bundled = Path(antiphon.__file__).parent / "bundled" / "cantor.gguf"
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else str(bundled)))
