"""A small vocabulary, and texts that a constraint allows: random walks over its masks, with no model."""

from collections.abc import Iterator
from functools import lru_cache
from random import Random
from typing import Any

from antiphon.constraints.checking_process import check_constraint, pick_allowed
from antiphon.constraints.grammar_types import Grammar
from antiphon.constraints.matching import CompilerVocabulary, Matcher, TokenTable
from antiphon.domain.request import Constraint, ConstraintKind

MORE = [
    "he",
    '", "',
    '": "',
    '": ',
    ", ",
    "hello",
    "0.",
    "12",
    "é",
    "\\u00",
    "true",
    '{"',
    '"}',
    "-0",
    "e+",
    "😀",
    "  ",
]
END = 256
TOKENS = TokenTable((*(bytes([byte]) for byte in range(256)), b"", *(text.encode() for text in MORE)), (END,))

CLOSING = 60
"""Tokens after which a walk prefers those that end soonest."""


def vocabulary() -> CompilerVocabulary:
    return CompilerVocabulary(TOKENS)


@lru_cache(maxsize=8)
def compile_grammar(grammar: Grammar, words: CompilerVocabulary) -> Matcher:
    """Compiles a grammar once, which takes ten times as long as most texts."""
    return Matcher(grammar, words)


def walked(grammar: Grammar, words: CompilerVocabulary, seed: int, most: int = 2000) -> str | None:
    """A text of the grammar's, ended by itself; None when `most` tokens did not end it."""
    chosen = Random(seed)
    matcher = compile_grammar(grammar, words).copy()
    made: list[int] = []
    ends = frozenset(words.tokens.ends)
    closing = [ord(sign) for sign in '"]}']
    while len(made) < most:
        forced = matcher.find_forced()
        if ends & set(forced):
            break
        matcher.consume(forced)
        made += forced
        mask = matcher.compute_mask()
        if matcher.is_complete and chosen.random() < (0.2 if len(made) < CLOSING else 0.9):
            assert mask[END // 8] >> END % 8 & 1, "complete, and the end is not allowed"
            break
        assert matcher.is_complete == bool(mask[END // 8] >> END % 8 & 1), (
            "the end is allowed and it is not complete"
        )
        soon = [token for token in closing if mask[token // 8] >> token % 8 & 1]
        if len(made) > CLOSING and soon and chosen.random() < 0.5:
            token = soon[0]
        else:
            found = pick_allowed(mask, chosen, words.size, ends)
            if found is None:
                break
            token = found
        matcher.consume([token])
        made.append(token)
    else:
        return None
    return b"".join(words.tokens.pieces[token] for token in made).decode()


def sampled(
    kind: ConstraintKind, source: str, words: CompilerVocabulary, count: int, whitespace: str | None = None
) -> list[str]:
    """Texts of a constraint that is taken."""
    grammar = check_constraint(Constraint(kind, source, whitespace), words)
    texts = (walked(grammar, words, seed) for seed in range(count))
    return [text for text in texts if text is not None]


def used(schema: Any) -> Iterator[str]:
    """Every key anywhere in a schema."""
    if isinstance(schema, dict):
        yield from schema
    for each in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from used(each)


REGEXES = [
    "a",
    "a|b|",
    "[a-f0-9]{8}",
    "(?:ab)+c?",
    "\\d{3}-\\d{4}",
    "\\w+\\s\\w+",
    "[^x]{1,4}",
    "é{2,3}",
    "yes|no|maybe",
    "^abc$",
    "a*?b",
    "(?P<year>\\d{4})",
    "[\\]\\[-]+",
    "\\.\\*\\/",
    "a/b",
    '"quoted"',
    "\\x41\\u0042",
    ".{3}",
    "[ -~]{5}",
    "\\S\\D\\W",
    "-?(?:0|[1-9]\\d*)(?:\\.\\d+)?",
    "😀+",
    "line\\nend",
    "a{0}",
    "(a|b)*c{2,}",
    "(19|20)\\d{2}-(0[1-9]|1[0-2])-(0[1-9]|[12]\\d|3[01])",
    "[A-Z][a-z]+( [A-Z][a-z]+){0,2}",
    "#[0-9a-fA-F]{6}",
    "(https?)://[a-z]+\\.(com|org)(/[a-z]*)?",
    "[^@ ]{1,5}@[a-z]{1,5}\\.de",
    "(\\+49|0)[1-9]\\d{2,4}",
    "(?:[01]\\d|2[0-3]):[0-5]\\d",
    "0x[0-9A-F]{1,4}",
    "(A|B|C|D)\\)",
    "\\((-?\\d+), (-?\\d+)\\)",
    "[\\u4e00-\\u4eff]{1,3}",
    "(?:[a-z]+\\n){1,2}end",
    "v\\d{1,2}(?:\\.\\d{1,2}){0,2}",
    "(ha){1,3}!?",
    "[^\\d\\s]{3}",
]
CHOICES = [
    ["yes", "no", 'a "b" \\ c', "línea\n😀", "[x](y)*", "yes"],
    ["only"],
    ["a", "ab", "abc", "b"],
    [" ", "  ", "\n", "\t"],
    ["</s>", "<|end|>", "<eos>", "%json", "{}"],
    ["positive", "negative", "neutral"],
    [str(number) for number in range(200)],
    ["é", "è", "ê", "日本", "日", "本", "🙂", "👩‍🚀"],
    ["x" * 60, "x" * 61],
    ["'", '"', "\\", "/", "|", "(", ")", "[", "]", "{", "}", ".", "*", "+", "?", "^", "$"],
    ["New York", "New Delhi", "Newark", "new york"],
    [f"option {letter}" for letter in "abcdefgh"],
]
