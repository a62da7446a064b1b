"""What a request with a constraint saves where the same one was asked for before: the first answer of a guide
(compiled, forced tokens, mask) anew and from a copy. Run: python -m benchmarks.grammar_cache

Prints medians of milliseconds of one thread's CPU and their ratio, for a vocabulary of 131,072 made-up ids.
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


def vocabulary() -> CompilerVocabulary:
    """All bytes, and words of two to eight letters."""
    chosen = Random(0)
    words = (
        bytes(chosen.choices(b'abcdefghijklmnopqrstuvwxyz ,:"{}', k=2 + at % 7)) for at in range(IDS - 257)
    )
    return CompilerVocabulary(TokenTable((*(bytes([at]) for at in range(256)), *words, b""), (IDS - 1,)))


def timed(
    make: Callable[[Grammar, CompilerVocabulary], Matcher], grammar: Grammar, words: CompilerVocabulary
) -> float:
    """Milliseconds of CPU of a first answer."""
    took = []
    for _ in range(TURNS):
        began = time.thread_time()
        matcher = make(grammar, words)
        matcher.consume(matcher.find_forced())
        matcher.compute_mask()
        took.append(time.thread_time() - began)
    return 1000 * median(took)


def main() -> None:
    """Measures each schema and prints a line of it."""
    words = vocabulary()
    for name, schema in SCHEMAS.items():
        grammar = build_grammar(Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(schema)))
        anew, copied = timed(Matcher, grammar, words), timed(MatcherCache().get_matcher, grammar, words)
        print(f"{name}: anew {anew:.2f} ms, copied {copied:.3f} ms, ratio {copied / anew:.3f}")


if __name__ == "__main__":
    main()
