"""What is taken can be followed to its end: counted texts, repeated patterns, wide rows."""

import json
from typing import Any

import pytest
from llguidance import LLParserLimits

from antiphon.constraints.checking_process import check_constraint
from antiphon.constraints.grammar_builder import build_grammar
from antiphon.constraints.json_schema.lowering import relax_schema
from antiphon.constraints.matching import (
    DEAD_END,
    CompilerVocabulary,
    Matcher,
    TokenTable,
    is_caused_by_constraint,
)
from antiphon.domain.request import Constraint, ConstraintKind
from antiphon.errors import EngineError, InvalidValue
from tests.support.constraint_texts import TOKENS

WORDS = CompilerVocabulary(TOKENS)
UNLIKE = {f"t{number}": {"type": "string", "maxLength": 3000 + number} for number in range(4)}
WORD_PATTERN = "^(?:\\S+\\s+){0,%d}\\S+$"


def follow(schema: Any, text: str) -> Matcher:
    """Follows a text byte by byte, which needs the most states."""
    taken, _ = relax_schema(schema, "f")
    grammar = check_constraint(Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(taken)), WORDS)
    matcher = Matcher(grammar, WORDS)
    for byte in text.encode():
        mask = matcher.compute_mask()
        assert mask[byte // 8] >> byte % 8 & 1, chr(byte)
        matcher.consume([byte])
    assert matcher.is_complete
    return matcher


@pytest.mark.parametrize("char", [pytest.param("x", marks=pytest.mark.soak), "é"])
def test_a_counted_text_reaches_its_bound(char: str):
    follow({"type": "string", "maxLength": 4000}, json.dumps(char * 4000, ensure_ascii=False))
    with pytest.raises(AssertionError):
        follow({"type": "string", "maxLength": 40}, json.dumps(char * 41, ensure_ascii=False))


@pytest.mark.soak
def test_all_texts_of_one_schema_reach_their_bounds():
    fields = {f"t{number}": {"type": "string", "maxLength": 1900 + number} for number in range(4)}
    text = json.dumps({f"t{number}": "日" * (1900 + number) for number in range(4)}, ensure_ascii=False)
    schema = {"type": "object", "properties": fields, "additionalProperties": False}
    assert relax_schema(schema, "f")[1] == ()
    follow(schema, text)


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"type": "string", "maxLength": 100_000}, "maxLength"),
        ({"type": "string", "maxLength": 2**53}, "maxLength"),
        ({"type": "string", "minLength": 9_000}, "minLength"),
        ({"type": "string", "pattern": "^.{1,60000}$"}, "pattern"),
        ({"type": "object", "properties": UNLIKE}, "maxLength"),
        ({"type": "object", "propertyNames": {"maxLength": 10_000}}, "maxLength"),
    ],
)
def test_a_count_that_does_not_fit_is_named(schema: Any, keyword: str):
    taken, names = relax_schema(schema, "f")
    assert names == (keyword,)
    check_constraint(Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(taken)), WORDS)


def test_the_shorter_texts_stay_counted_and_equal_ones_count_once():
    taken, _ = relax_schema({"type": "object", "properties": UNLIKE}, "f")
    assert isinstance(taken, dict) and isinstance(taken["properties"], dict)
    assert ["maxLength" in each for each in taken["properties"].values()] == [True, True, False, False]
    alike = {f"t{number}": {"type": "string", "maxLength": 4000} for number in range(9)}
    assert relax_schema({"type": "object", "properties": alike}, "f")[1] == ()


def test_what_only_looks_like_a_count_is_none():
    schema = {"const": {"maxLength": 10**6}, "properties": {"maxLength": {"enum": [{"pattern": "a{9000}"}]}}}
    assert relax_schema(schema, "f")[1] == ()
    assert relax_schema({"pattern": "^[{9000}]\\{9000}$"}, "f")[1] == ()


def test_a_pattern_of_many_words_is_followed_to_its_end_or_refused_at_once():
    schema = {"type": "string", "pattern": WORD_PATTERN % 49, "maxLength": 500}
    follow(schema, json.dumps(" ".join(["abcdefghi"] * 50)))
    long = schema | {"pattern": WORD_PATTERN % 499, "maxLength": 5000}
    with pytest.raises(InvalidValue, match="too many expressions"):
        check_constraint(Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(long)), WORDS)


def build_alternatives(names: str) -> Any:
    """Objects of 200 optional properties each, one for each first letter of their names."""
    several = [{f"{name}{number}": True for number in range(200)} for name in names]
    return {
        "anyOf": [{"type": "object", "properties": each, "additionalProperties": False} for each in several]
    }


def test_many_optional_properties_of_two_alternatives_are_followed():
    follow(build_alternatives("ab"), '{"a0": 1, "a7": [true]}')
    with pytest.raises(InvalidValue, match="960 optional"):
        relax_schema({"type": "object", "properties": {"deep": build_alternatives("abcde")}}, "f")


def build_union(count: int, optional: int, kind: Any = None) -> Any:
    """Objects that begin with a required property, and have optional ones after it. `kind`: the schema of
    the required property; None for one value for each object."""
    return {
        "anyOf": [
            {
                "type": "object",
                "properties": {"kind": kind or {"const": f"k{number}"}}
                | {f"p{number}_{index}": {"type": "integer"} for index in range(optional)},
                "required": ["kind"],
                "additionalProperties": False,
            }
            for number in range(count)
        ]
    }


def test_optional_properties_count_only_where_objects_share_a_place():
    """Each of the first objects has its own places after the property that names it."""
    for schema, text in (
        (build_union(100, 20), '{"kind": "k7", "p7_0": 1, "p7_19": 2}'),
        (build_union(100, 15, {"type": "string"}), '{"kind": "k7", "p7_0": 1}'),
    ):
        taken, _ = relax_schema(schema, "f")
        grammar = check_constraint(Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(taken)), WORDS)
        matcher = Matcher(grammar, WORDS)
        for byte in text.encode():
            matcher.compute_mask()
            matcher.consume([byte])
        assert matcher.is_complete
    with pytest.raises(InvalidValue, match="960 optional"):
        relax_schema(build_union(100, 20, {"type": "string"}), "f")


@pytest.mark.parametrize("limit", range(70, 80))
def test_a_limit_that_is_passed_inside_a_token_is_the_constraints_fault(limit: int):
    """The matcher then says that the grammar does not allow the token."""
    words = CompilerVocabulary(TOKENS)
    words.limits = LLParserLimits(max_lexer_states=limit)
    source = '{"type": "string", "maxLength": 400}'
    matcher = Matcher(build_grammar(Constraint(ConstraintKind.JSON_SCHEMA, source)), words)
    matcher.compute_mask()
    with pytest.raises(EngineError, match="too many states") as raised:
        matcher.consume(words.spell('"' + "hello" * 80))
    assert is_caused_by_constraint(raised.value)


def test_a_constraint_without_tokens_is_a_dead_end():
    words = CompilerVocabulary(TokenTable((b"a", b"b", b""), (2,)))
    matcher = Matcher(build_grammar(Constraint(ConstraintKind.REGEX, "a|bc")), words)
    matcher.consume([1])
    with pytest.raises(EngineError) as raised:
        matcher.compute_mask()
    assert raised.value.cause == DEAD_END and is_caused_by_constraint(raised.value)
