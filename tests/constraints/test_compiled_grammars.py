"""Compiled grammars that are kept: a copy says what a new one says, whoever else goes his way meanwhile."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from antiphon.constraints.checking_process import check_constraint, pick_allowed
from antiphon.constraints.grammar_types import Grammar
from antiphon.constraints.mask_workers import MIN_BYTES, PER_CHARACTER, MatcherCache
from antiphon.constraints.matching import CompilerVocabulary, Matcher
from antiphon.domain.request import Constraint, ConstraintKind
from antiphon.errors import EngineError
from tests.support.constraint_texts import END, TOKENS

WORDS = CompilerVocabulary(TOKENS)
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 30}, "age": {"type": "integer", "maximum": 120}},
    "required": ["name", "age"],
}
Make = Callable[[Grammar, CompilerVocabulary], Matcher]


def schema(**more: object) -> Grammar:
    source = json.dumps(SCHEMA | {"properties": SCHEMA["properties"] | more})  # type: ignore[operator]
    return check_constraint(Constraint(ConstraintKind.JSON_SCHEMA, source), WORDS)


def lark(source: str) -> Grammar:
    return Grammar(json.dumps({"grammars": [{"lark_grammar": source}]}))


def text(make: Make, grammar: Grammar, seed: int) -> bytes:
    """A text, or the beginning of one, of tokens that are drawn by chance from masks alone."""
    matcher, chosen, made = make(grammar, WORDS), Random(seed), bytearray()
    for _ in range(80):
        token = pick_allowed(matcher.compute_mask(), chosen, WORDS.size)
        assert token is not None
        if token == END:
            break
        made += TOKENS.pieces[token]
        matcher.consume([token])
    return bytes(made)


def test_copies_answer_as_new_ones_in_any_order():
    compiled, grammars = MatcherCache(), [schema(), schema(city={"enum": ["Paris", "London"]})]
    asked = [(grammar, seed) for seed in range(40) for grammar in grammars]
    wanted = [text(Matcher, *each) for each in asked]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda each: text(compiled.get_matcher, *each), asked)) == wanted
    assert len({*wanted}) > 20


class Counted(MatcherCache):
    """Counts what is compiled: it looks at its clock before and after."""

    def __init__(self, most: int, seconds: float = 0.0) -> None:
        self.looks = 0
        self._seconds = seconds
        super().__init__(most, self._look)

    def _look(self) -> float:
        self.looks += 1
        return self.looks * self._seconds

    @property
    def compiled(self) -> int:
        return self.looks // 2


def test_what_is_asked_for_again_is_not_compiled_again():
    compiled, grammar = Counted(10**9), schema()
    for _ in range(5):
        compiled.get_matcher(grammar, WORDS).compute_mask()
    assert compiled.compiled == 1
    compiled.get_matcher(schema(x={"type": "null"}), WORDS)
    assert compiled.compiled == 2


def test_it_stays_within_its_bytes_and_slow_grammars_count_more():
    compiled = Counted(10 * MIN_BYTES)
    for at in range(50):
        compiled.get_matcher(lark(f"start: /a{{{at + 1}}}/"), WORDS)
        assert MIN_BYTES <= compiled.held_bytes <= 10 * MIN_BYTES
    slow = Counted(10**9, seconds=0.5)
    slow.get_matcher(schema(), WORDS)
    assert slow.held_bytes == 200_000_000
    long = Counted(10**9)
    long.get_matcher(grammar := schema(**{f"p{at}": {"type": "null"} for at in range(50)}), WORDS)
    assert long.held_bytes == PER_CHARACTER * len(grammar.text)


def test_what_does_not_compile_is_not_kept():
    compiled = Counted(10**9)
    for _ in range(2):
        with pytest.raises(EngineError):
            compiled.get_matcher(lark("start: /(/"), WORDS)
    assert compiled.held_bytes == 0
