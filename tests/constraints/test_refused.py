"""What cannot be kept is refused, with the name of what is at fault."""

import json

import pytest

from antiphon.constraints.checking_process import check_constraint
from antiphon.domain.request import Constraint, ConstraintKind
from antiphon.errors import InvalidValue, RequestError, UnsupportedParameter
from tests.constraints.collected import REFUSED
from tests.support.constraint_texts import vocabulary

KIND = ConstraintKind

REGEXES = {
    "(?=a)b": "lookaround",
    "(?!a)b": "lookaround",
    "(?i)a": "flags",
    "(a)\\1": "\\1",
    "\\bfoo": "\\b",
    "a++": "++",
    "a**": "**",
    "[a&&b]": "&&",
    "[a--b]": "--",
    "[[a]]": "\\[",
    "[]a]": "\\]",
    "a{,3}": "{,n}",
    "\\p{L}": "\\p",
    "\\A": "\\A",
    "(": "",
    "a\\": "\\",
    "x^y": "",
    "\\<a": "\\<",
    "": "empty",
    "[b-a]": "",
    "*a": "",
}

LARK = {
    'start: %json {"x-guidance": {"lenient": true}}': "%json",
    '%llguidance {"no_forcing": true}\nstart: "a"': "%llguidance",
    "start: <|end|>": "<",
    "start: <[10-20]>": "<",
    'start[temperature=2]: "a"': "attributes",
    "start: a\na[capture, lazy]: /x*/": "attributes",
    "start: @other": "@",
    'start: "a"i': "case-insensitive",
    "start: /a/i": "flags",
    "start: A\nA: ~/a/": "negation",
    'start: %regex { "substring_words": "a b" }': "%regex",
    "%import python.NAME\nstart: NAME": "common",
    "start: a\na: a": "",
    'other: "a"': "",
    "": "",
    "start: /(?=a)/": "lookaround",
}

GBNF = {
    "root ::= other": "other",
    "root ::= <think>": "GBNF",
    'root ::= ("a"': "GBNF",
    "root ::= root": "",
    "root ::= " + "(" * 3000 + '"a"' + ")" * 3000: "deep",
    'root ::= "\\uD800"': "character",
}


@pytest.mark.parametrize("named", REFUSED)
def test_a_schema_is_refused_by_the_name_of_its_keyword(named: str):
    constraint = Constraint(KIND.JSON_SCHEMA, json.dumps(REFUSED[named]), field="guided_json")
    with pytest.raises((InvalidValue, UnsupportedParameter)) as refusal:
        check_constraint(constraint, vocabulary())
    assert named.strip() in refusal.value.message
    assert refusal.value.param == "guided_json"


@pytest.mark.parametrize(
    "source", ["", "{", "[]", '"a"', "3", "NaN", '{"type": "string", "type": "integer"}', "{" * 100_000]
)
def test_what_is_no_schema_is_refused(source: str):
    with pytest.raises(InvalidValue):
        check_constraint(Constraint(KIND.JSON_SCHEMA, source), vocabulary())


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        (KIND.JSON_SCHEMA, '{"const": "\\ud800"}'),
        (KIND.JSON_SCHEMA, '{"enum": ["\\uDFFF\\uD83D"]}'),
        (KIND.JSON_SCHEMA, '{"properties": {"\\ud83d": {}}}'),
        (KIND.JSON_SCHEMA, '{"description": "\ud800"}'),
        (KIND.CHOICE, '["\\ud800"]'),
    ],
)
def test_half_of_a_surrogate_pair_is_refused_by_what_it_is(kind: ConstraintKind, source: str):
    """JSON inside a text can say one, whatever the request's own JSON is held to."""
    with pytest.raises(InvalidValue, match="guided_it holds half of a surrogate pair"):
        check_constraint(Constraint(kind, source, field="guided_it"), vocabulary())
    check_constraint(Constraint(KIND.JSON_SCHEMA, '{"const": "\\ud83d\\ude00"}'), vocabulary())


@pytest.mark.parametrize(
    ("kind", "source", "named"),
    [
        (kind, source, named)
        for kind, sources in ((KIND.REGEX, REGEXES), (KIND.LARK, LARK), (KIND.GBNF, GBNF))
        for source, named in sources.items()
    ],
)
def test_regexes_and_grammars_are_refused_by_what_is_not_kept(kind: ConstraintKind, source: str, named: str):
    with pytest.raises((InvalidValue, UnsupportedParameter)) as refusal:
        check_constraint(Constraint(kind, source, field="guided_it"), vocabulary())
    assert named in refusal.value.message


@pytest.mark.parametrize("source", ['["a", ""]', "[]", '"a"', '["a", 3]', json.dumps(["x"] * 5000)])
def test_choices_are_texts(source: str):
    with pytest.raises(InvalidValue):
        check_constraint(Constraint(KIND.CHOICE, source), vocabulary())


@pytest.mark.parametrize("pattern", ["x", ".*", "[ a]", "", "[ \\n", "\\S"])
def test_whitespace_is_what_json_takes_as_whitespace(pattern: str):
    with pytest.raises(RequestError, match="whitespace"):
        check_constraint(Constraint(KIND.JSON_OBJECT, "", pattern), vocabulary())
