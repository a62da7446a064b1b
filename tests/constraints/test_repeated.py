"""A schema's use does not depend on who used it before: each text has its own automaton and limits."""

import json
from collections.abc import Iterator, Sequence
from random import Random

import pytest
from llguidance import LLParserLimits

from antiphon.constraints.checking_process import check_constraint
from antiphon.constraints.grammar_types import Grammar
from antiphon.constraints.guide import Guide
from antiphon.constraints.mask_workers import MaskWorkers
from antiphon.constraints.matching import CompilerVocabulary
from antiphon.domain.request import Constraint, ConstraintKind
from antiphon.errors import EngineError
from tests.constraints.collected import TAKEN
from tests.support.constraint_texts import END, TOKENS

WORDS = CompilerVocabulary(TOKENS)
SHORT, LONG = 8, 20
"""Tokens after which a text is left."""


@pytest.fixture
def masks() -> Iterator[MaskWorkers]:
    made = MaskWorkers(TOKENS)
    yield made
    made.close()


def wait_for_result(masks: MaskWorkers, guide: Guide) -> None:
    while True:
        masks.result_ready.clear()
        if guide.is_ready:
            return
        assert masks.result_ready.wait(60)


def compile_schema(schema: object) -> Grammar:
    return check_constraint(Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(schema)), WORDS)


def follow(masks: MaskWorkers, grammar: Grammar, text: bytes) -> Guide:
    """Follows a text as the decode thread does, byte by byte. Raises the guide's error."""
    guide = masks.create_guide(grammar)
    for byte in text:
        wait_for_result(masks, guide)
        if not guide.get_forced():
            assert guide.get_allowed()[byte]
        guide.advance(byte)
    wait_for_result(masks, guide)
    return guide


def draw(masks: MaskWorkers, grammar: Grammar, seed: int, most: int) -> list[int]:
    """A text of tokens that are drawn by chance, or its first `most` tokens."""
    guide, randomizer, tokens = masks.create_guide(grammar), Random(seed), list[int]()
    while len(tokens) < most:
        wait_for_result(masks, guide)
        forced = guide.take_forced()
        tokens += forced
        if forced and forced[-1] == END:
            break
        token = randomizer.choice(guide.get_allowed().nonzero()[0].tolist())
        tokens.append(token)
        if token == END:
            break
        guide.advance(token)
    return tokens


def test_long_answers_in_each_field_do_not_add_up(masks: MaskWorkers):
    fields = {f"t{number}": {"type": "string", "maxLength": 1700 + number} for number in range(3)}
    grammar = compile_schema({"type": "object", "properties": fields, "additionalProperties": False})
    for field in (*fields, "t0"):
        answer = json.dumps({field: "x" * 1500}).encode()
        assert follow(masks, grammar, answer).get_allowed()[END]


def test_a_text_that_passed_a_limit_fails_alone(masks: MaskWorkers):
    """While another text of the same grammar is under way, and before a third one begins."""
    masks._vocabulary.limits = LLParserLimits(max_lexer_states=500)
    grammar = Grammar(json.dumps({"grammars": [{"lark_grammar": "start: /(a|b)*a(a|b){16}/"}]}))
    under_way = follow(masks, grammar, b"ab")
    randomizer = Random(0)
    with pytest.raises(EngineError, match="too many"):
        follow(masks, grammar, bytes(randomizer.choices(b"ab", k=2_000)))
    under_way.advance(ord("b"))
    wait_for_result(masks, under_way)
    assert under_way.get_allowed().nonzero()[0].tolist() == [ord("a"), ord("b")]
    assert follow(masks, grammar, b"a").get_allowed().any()


def require_equal_uses(masks: MaskWorkers, schemas: Sequence[object], times: int) -> None:
    for schema in schemas:
        grammar = compile_schema(schema)
        wanted = [draw(masks, grammar, 0, SHORT), draw(masks, grammar, 1, LONG)]
        for number in range(times - 2):
            assert draw(masks, grammar, number % 2, (SHORT, LONG)[number % 2]) == wanted[number % 2], schema


def test_schemas_allow_the_same_four_times(masks: MaskWorkers):
    require_equal_uses(masks, TAKEN[::2], 4)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_each_schema_allows_the_same_two_hundred_times(masks: MaskWorkers):
    require_equal_uses(masks, TAKEN, 200)
