"""Measures the time that the cache of compiled grammars saves: the first answer of a guide (forced tokens and
mask) with a newly compiled grammar, and with a copy. Run: python -m benchmarks.grammar_cache

Prints the medians in milliseconds of CPU time and their ratio, for a vocabulary of 131,072 random tokens.
"""

import json
import time
from collections.abc import Callable
from random import Random
from statistics import median

from antiphon.constraints.grammar_builder import build_grammar
from antiphon.constraints.grammar_types import Grammar
from antiphon.constraints.mask_workers import MatcherCache
from antiphon.constraints.matching import CompilerVocabulary, Matcher, TokenTable
from antiphon.domain.request import Constraint, ConstraintKind

IDS = 131_072
TURNS = 51

PROPERTIES = {
    "name": {"type": "string", "maxLength": 10},
    "age": {"type": "integer", "minimum": 0, "maximum": 99},
    "city": {"enum": ["Paris", "London"]},
}
PERSON = {
    "type": "object",
    "properties": PROPERTIES,
    "required": list(PROPERTIES),
    "additionalProperties": False,
}
SCHEMAS = {
    "an object of 3 properties": PERSON,
    "60 such objects in one": {
        "type": "object",
        "properties": {f"key{at}": PERSON for at in range(60)},
        "required": [f"key{at}" for at in range(60)],
        "additionalProperties": False,
    },
    "an enum of 2,000 values": {"enum": [f"value {at}" for at in range(2000)]},
}


def build_vocabulary() -> CompilerVocabulary:
    """Builds a vocabulary of all bytes, and words of two to eight letters."""
    randomizer = Random(0)
    words = (
        bytes(randomizer.choices(b'abcdefghijklmnopqrstuvwxyz ,:"{}', k=2 + number % 7))
        for number in range(IDS - 257)
    )
    return CompilerVocabulary(
        TokenTable((*(bytes([number]) for number in range(256)), *words, b""), (IDS - 1,))
    )


def time_first_answer(
    make: Callable[[Grammar, CompilerVocabulary], Matcher], grammar: Grammar, words: CompilerVocabulary
) -> float:
    """Returns the median CPU milliseconds of a first answer."""
    times = []
    for _ in range(TURNS):
        began = time.thread_time()
        matcher = make(grammar, words)
        matcher.consume(matcher.find_forced())
        matcher.compute_mask()
        times.append(time.thread_time() - began)
    return 1000 * median(times)


def main() -> None:
    """Measures each schema and prints one line for each."""
    words = build_vocabulary()
    for name, schema in SCHEMAS.items():
        grammar = build_grammar(Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(schema)))
        compiled_ms, copied_ms = (
            time_first_answer(Matcher, grammar, words),
            time_first_answer(MatcherCache().get_matcher, grammar, words),
        )
        print(
            f"{name}: anew {compiled_ms:.2f} ms, copied {copied_ms:.3f} ms, ratio "
            f"{copied_ms / compiled_ms:.3f}"
        )


if __name__ == "__main__":
    main()
