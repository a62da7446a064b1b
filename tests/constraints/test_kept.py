"""What is taken is kept: every text that ends by itself satisfies its constraint."""

import json
import re

import pytest

from antiphon.constraints.checking_process import check_constraint
from antiphon.constraints.grammar_builder import MAX_CHOICES
from antiphon.constraints.json_schema.lowering import relax_schema
from antiphon.constraints.matching import Matcher
from antiphon.domain.request import Constraint, ConstraintKind
from antiphon.errors import EngineError
from tests.constraints.collected import TAKEN
from tests.constraints.validation import accepts
from tests.support.constraint_texts import CHOICES, REGEXES, sampled, vocabulary

KIND = ConstraintKind


LARK = {
    'start: "a" B* "c"\nB: /b+/': "ab*c",
    '%llguidance {}\nstart: item ("," item)~1..3\nitem: /[0-9]+/': "[0-9]+(,[0-9]+){1,3}",
    'start: [NAME] END // a comment with <this> and %json\nNAME: /[a-z]{2}/\nEND: "!"': "([a-z]{2})?!",
    "%import common.INT\nstart: INT": "[0-9]+",
}

GBNF = {
    'root ::= "a" [b-d]+ ("x" | y)\ny ::= "\\u00e9" | [^"\\\\x]': 'a[b-d]+(x|é|[^"\\\\x])',
    'root ::= item (", " item){1,2} # a comment\nitem ::= [0-9]+': "[0-9]+(, [0-9]+){1,2}",
    'root ::= "\\"" [\\x41-\\x43]* "\\"\\n"': '"[A-C]*"\n',
}


def test_schemas_are_kept():
    words = vocabulary()
    for schema in TAKEN[:: max(1, len(TAKEN) // 60)]:
        for text in sampled(KIND.JSON_SCHEMA, json.dumps(schema), words, 2):
            assert accepts(schema, text), (schema, text)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_all_schemas_are_kept_a_thousand_times():
    words, count = vocabulary(), 0
    for schema in TAKEN:
        for text in sampled(KIND.JSON_SCHEMA, json.dumps(schema), words, 20):
            count += 1
            assert accepts(schema, text), (schema, text)
    assert count >= 1000


@pytest.mark.parametrize(
    ("pattern", "escaped"),
    [
        ('^[^"]*$', '\\"'),
        ("^[^\\\\]*$", "\\\\"),
        ('^x?[^"a]+$', '\\"'),
        ('^(?:[^"]|b)*$', '\\"'),
        ('^[^\\]"]*$', '\\"'),
    ],
)
def test_a_class_without_backslash_allows_no_escape(pattern: str, escaped: str):
    """The compiler takes a class that holds every control character to hold these two."""
    words = vocabulary()
    schema = json.dumps({"type": "string", "pattern": pattern})
    matcher = Matcher(check_constraint(Constraint(KIND.JSON_SCHEMA, schema), words), words)
    with pytest.raises(EngineError):
        matcher.consume(list(f'"{escaped}'.encode()))


def test_json_has_spaces_after_commas_and_colons_only():
    schema = {
        "type": "object",
        "properties": {"a": {"type": "array", "items": {"const": 1}, "minItems": 2}},
        "required": ["a"],
        "additionalProperties": False,
    }
    for text in sampled(KIND.JSON_SCHEMA, json.dumps(schema), vocabulary(), 5):
        assert text == json.dumps(json.loads(text))
    for text in sampled(KIND.JSON_OBJECT, "", vocabulary(), 5):
        assert isinstance(json.loads(text), dict)


def test_a_whitespace_pattern_says_what_stands_between():
    schema = {"type": "array", "items": {"const": 1}, "minItems": 3, "maxItems": 3}
    texts = sampled(KIND.JSON_SCHEMA, json.dumps(schema), vocabulary(), 20, "[ \\n]{0,2}")
    assert all(re.fullmatch(r"\[[ \n]{0,2}1([ \n]{0,2},[ \n]{0,2}1){2}[ \n]{0,2}\]", text) for text in texts)
    assert any("\n" in text for text in texts)


@pytest.mark.parametrize(("pattern", "spacing"), [("[\\t]{2}", "\t\t"), ("[ ]{2}", "  "), ("\\n", "\n")])
def test_a_whitespace_pattern_stands_whole_or_not_at_all(pattern: str, spacing: str):
    schema = json.dumps({"type": "array", "items": {"const": 1}, "minItems": 3, "maxItems": 3})
    texts = sampled(KIND.JSON_SCHEMA, schema, vocabulary(), 20, pattern)
    assert {each for text in texts for each in re.findall(r"\s+", text)} == {spacing}
    words = vocabulary()
    matcher = Matcher(check_constraint(Constraint(KIND.JSON_SCHEMA, schema, pattern), words), words)
    matcher.consume(list(b"[1,1,1]"))
    assert matcher.is_complete


@pytest.mark.parametrize("pattern", REGEXES)
def test_regexes_match_the_whole_text(pattern: str):
    texts = sampled(KIND.REGEX, pattern, vocabulary(), 5)
    assert texts and all(re.fullmatch(pattern, text, re.ASCII) for text in texts), texts


def test_a_choice_is_one_of_its_texts():
    choices = CHOICES[0]
    texts = sampled(KIND.CHOICE, json.dumps(choices), vocabulary(), 60)
    assert set(texts) == set(choices)
    many = [f"choice number {at}" for at in range(MAX_CHOICES)]
    assert set(sampled(KIND.CHOICE, json.dumps(many), vocabulary(), 3)) <= set(many)


@pytest.mark.parametrize("kind", [KIND.LARK, KIND.GBNF])
def test_grammars_are_kept(kind: ConstraintKind):
    for source, same in (LARK if kind is KIND.LARK else GBNF).items():
        texts = sampled(kind, source, vocabulary(), 8)
        assert texts and all(re.fullmatch(same, text) for text in texts), (source, texts)


def takes(schema: object, text: str) -> bool:
    words = vocabulary()
    matcher = Matcher(check_constraint(Constraint(KIND.JSON_SCHEMA, json.dumps(schema)), words), words)
    try:
        matcher.consume(list(text.encode()))
    except EngineError:
        return False
    return matcher.is_complete


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        (".", "a\x85\xa0\ufeff", "\r\n\u2028\u2029"),
        ("\\s", " \t\r\xa0\u1680\u2003\u2028\u202f\u3000\ufeff", "a\x85\u200b\u180e"),
        ("\\S", "a\x85\u200b😀", " \xa0\u2029\ufeff"),
        ("[\\s!]", "!\xa0\ufeff", "\x85a"),
        ("[^\\s!]", "a\x85", "!\xa0\ufeff"),
        ("[\\S ]", "a \x85😀", "\xa0\ufeff"),
        ("[^\\S ]", "\xa0\ufeff", "a "),
        ("[\\s\\S]", "a\x85\xa0\u2028\ufeff😀", ""),
        ("[.]", ".", "a"),
        ("\\.", ".", "a"),
    ],
)
def test_classes_are_those_of_ecma_262(pattern: str, matching: str, other: str):
    schema = {"type": "string", "pattern": f"^{pattern}$"}
    for char in matching:
        assert takes(schema, json.dumps(char, ensure_ascii=char < " ")), char
    for char in other:
        assert not takes(schema, json.dumps(char, ensure_ascii=char < " ")), char


@pytest.mark.parametrize(
    ("schema", "inside", "bound"),
    [
        ({"exclusiveMaximum": 1}, "0.9", "0.99999999999999999"),
        ({"minimum": 0.5, "exclusiveMaximum": 1}, "0.9999999999", "0.99999999999999999999999"),
        ({"exclusiveMaximum": 2.5}, "2.49999999", "2.49999999999999999999"),
        ({"exclusiveMinimum": 2.5}, "2.500001", "2.50000000000000000001"),
        ({"exclusiveMinimum": -1}, "-0.999999", "-0.99999999999999999999"),
        ({"exclusiveMaximum": -1}, "-1.000001", "-1.00000000000000000001"),
        ({"exclusiveMaximum": 1000000}, "999999.9999", "999999.99999999999999999"),
        ({"not": {"type": "number", "minimum": 3}}, "2.9999", "2.99999999999999999999"),
    ],
)
def test_no_number_is_an_exclusive_bound_once_it_is_parsed(
    schema: dict[str, object], inside: str, bound: str
):
    number = {"type": "number"} | schema
    assert takes(number, inside) and accepts(number, inside)
    assert not takes(number, bound) and not accepts(number, bound)


PRICE = {"type": "number", "multipleOf": 0.01}


@pytest.mark.parametrize(
    ("schema", "names", "inside", "outside"),
    [
        ({"exclusiveMinimum": 0, "exclusiveMaximum": 1e-11}, ("exclusiveMaximum",), "0.000000000001", "0.1"),
        ({"exclusiveMinimum": 0.3, "exclusiveMaximum": 0.30000000001}, ("exclusiveMaximum",), None, "0.3"),
        ({"exclusiveMinimum": -1e-11, "maximum": -1e-12}, ("exclusiveMinimum",), None, "-0.1"),
        ({"exclusiveMinimum": 0, "exclusiveMaximum": 3e-10}, (), "0.0000000002", "0.0000000003"),
        ({"multipleOf": 0.5, "exclusiveMaximum": 3}, (), "2.5", "2.99999999999999999999"),
        ({"multipleOf": 2, "exclusiveMaximum": 3}, (), "2", "1"),
        ({"anyOf": [PRICE, {}], "exclusiveMaximum": 3}, ("exclusiveMaximum",), "2.5", "3"),
    ],
)
def test_an_exclusive_bound_that_a_text_can_reach_is_named(
    schema: dict[str, object], names: tuple[str, ...], inside: str | None, outside: str
):
    number = {"type": "number"} | schema
    made, found = relax_schema(number, "f")
    assert found == names
    assert inside is None or takes(made, inside)
    assert not takes(made, outside)


def test_a_bound_beside_another_fields_multiples_is_not_reached():
    share = {"type": "number", "exclusiveMaximum": 1}
    schema = {"type": "object", "properties": {"price": PRICE, "share": share}}
    assert relax_schema(schema, "f")[1] == ()
    assert takes(schema, '{"share": 0.9999999999}')
    assert not takes(schema, '{"share": 0.99999999999999999999}')
