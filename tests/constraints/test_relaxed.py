"""Schemas that are not strict: what cannot be kept is left out and named, what is left is taken."""

import json
import time
from contextlib import suppress
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from antiphon.constraints.json_schema.lowering import make_compilable, relax_schema
from antiphon.constraints.shared_schemas import LONGEST_SCHEMA
from antiphon.domain.request import ConstraintKind
from antiphon.errors import InvalidValue, UnsupportedParameter
from tests.constraints.collected import REFUSED, TAKEN
from tests.support.constraint_texts import sampled, vocabulary


def refused(schema):
    try:
        make_compilable(json.dumps(schema), "f")
    except (UnsupportedParameter, InvalidValue) as error:
        return error
    return None


def test_what_is_taken_loses_nothing():
    for schema in TAKEN:
        made, names = relax_schema(schema, "f")
        assert (names, made) == ((), make_compilable(json.dumps(schema), "f"))


def test_what_was_written_for_the_compiler_stays_as_it_is():
    for schema in TAKEN:
        made, _ = relax_schema(schema, "f")
        assert make_compilable(json.dumps(made), "f") == made


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_taken_without_what_could_not_be_kept(name):
    schema = REFUSED[name]
    if not isinstance(schema, dict) or isinstance(refused(schema), InvalidValue):
        return
    made, names = relax_schema(schema, "f", without_references=True)
    assert refused(made) is None
    assert names or refused(schema) is None


def test_relaxed_keywords_are_named_and_the_rest_holds():
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "maximum": 5, "multipleOf": 1, "maximun": 3},
            "b": {"$ref": "http://x"},
        },
        "required": ["a"],
        "additionalProperties": False,
        "uniqueItems": True,
    }
    made, names = relax_schema(schema, "f", without_references=True)
    assert names == ("maximun", "$ref", "uniqueItems")
    loose = Draft202012Validator(made)
    assert loose.is_valid({"a": 5, "b": "anything"}) and not loose.is_valid({"a": 6})
    assert not loose.is_valid({"a": 1, "c": 1})


def test_a_call_is_made_of_what_is_left():
    made, _ = relax_schema(
        {
            "type": "object",
            "properties": {"a": {"const": 1, "maximun": 3}},
            "required": ["a"],
            "additionalProperties": False,
        },
        "f",
    )
    texts = sampled(ConstraintKind.JSON_SCHEMA, json.dumps(made), vocabulary(), 3)
    assert {json.dumps(json.loads(text)) for text in texts} == {'{"a": 1}'}


@pytest.mark.parametrize("schema", [{"properties": []}, {"type": "strin"}, {"required": "a"}, {"items": 3}])
def test_what_is_no_schema_is_refused_all_the_same(schema):
    with pytest.raises(InvalidValue):
        relax_schema(schema, "f")


@pytest.mark.parametrize("target", ["https://example.com/s", "other.json#/a", "#/$defs/none", "#none"])
def test_a_reference_to_nothing_inside_is_refused_by_name(target: str):
    with pytest.raises(UnsupportedParameter, match=r"\$ref at #/items of f"):
        relax_schema({"type": "array", "items": {"$ref": target}}, "f")


def _nested(depth: int, around: str, **more: Any) -> Any:
    made: Any = {"type": "string"}
    for _ in range(depth):
        made = {around: [made, {"required": ["a"]}] if around == "oneOf" else made, **more}
    return made


LONG = "k" * 100_000
COSTLY = {
    "names that are long": {"properties": {LONG: {"properties": {f"a{at}": {"x": 1} for at in range(200)}}}},
    "many that exclude each other": {
        "oneOf": [{"required": [f"p{at}" for at in range(200)]} for _ in range(100)]
    },
    "deep ones that exclude each other": _nested(40, "oneOf"),
    "deep conditions": _nested(40, "if", then={"required": ["a"]}),
    "deep items that must be there": _nested(40, "contains", maxItems=8),
    "many conditions": {
        "allOf": [
            {"if": {"properties": {"k": {"const": at}}}, "then": {"required": ["b"]}} for at in range(2000)
        ]
    },
    "many that a large one must not be": {
        "allOf": [{"not": {"$ref": "#/$defs/a"}} for _ in range(2000)],
        "$defs": {"a": {"properties": {f"p{at}": {"type": "string"} for at in range(3000)}}},
    },
    "identifiers in identifiers": _nested(40, "items", **{"$id": "http://x/" + "y/" * 3000}),
    "a long pointer": {"$ref": "#" + "/a" * 100_000},
    "a long chain": {
        "$ref": "#/$defs/d0",
        "$defs": {f"d{at}": {"not": {"$ref": f"#/$defs/d{at + 1}"}} for at in range(3000)} | {"d3000": {}},
    },
    "many patterns": {"patternProperties": {f"^a{at}": {} for at in range(8000)}},
    "many unknown keywords": {f"z{at}": 1 for at in range(10_000)},
}
CPU = 5.0
"""Seconds of CPU that reading one may take on the slowest machine; each takes less than half a second."""


@pytest.mark.parametrize("name", COSTLY)
def test_a_costly_schema_is_read_within_bounds(name: str):
    began = time.thread_time()
    with suppress(InvalidValue, UnsupportedParameter):
        relax_schema(COSTLY[name], "f")
    assert time.thread_time() - began < CPU


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}]}, "b": {"$ref": "#/$defs/a"}}},
    ],
)
def test_a_reference_that_leads_to_itself_alone_is_refused(schema: Any):
    with pytest.raises(InvalidValue, match="leads to itself"):
        relax_schema(schema, "f")


def test_a_class_that_is_none_is_left_out_by_name():
    assert relax_schema({"type": "string", "pattern": "^[\\w-_]+$"}, "f") == (
        {"type": "string"},
        ("pattern",),
    )


@pytest.mark.parametrize("keyword", ["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"])
def test_a_bound_that_the_compiler_cannot_count_is_named(keyword):
    far = 1e19 if keyword.lower().endswith("minimum") else -1e19
    assert relax_schema({"type": "number", keyword: far}, "f") == ({"type": "number"}, (keyword,))
    assert relax_schema({"type": "number", "not": {keyword: far}}, "f")[1] == (keyword, "not")
    made, names = relax_schema({"type": "integer", keyword: -far}, "f")
    assert isinstance(made, dict) and len(made) == 2 and names == ()
    with pytest.raises(UnsupportedParameter, match=keyword):
        make_compilable(json.dumps({"type": "number", keyword: far}), "f")


CLOSED = {"type": "object", "additionalProperties": False}
NODE = {
    "type": "object",
    "properties": {"next": {"$ref": "#/$defs/node", "required": ["next"], "type": "object"}},
}
TAGGED = [
    CLOSED | {"patternProperties": {"^x-": {"type": "string"}}},
    CLOSED | {"patternProperties": {"^[a-z]+-": {"type": "integer"}}},
]
"""Objects whose names overlap, as alternatives."""
UNION = {
    "type": "object",
    "properties": {"next": {"type": "object", "anyOf": [{"$ref": "#"}, {"maxProperties": 0}]}},
}


@pytest.mark.parametrize(
    ("schema", "names"),
    [
        (CLOSED | {"patternProperties": {"(?=a)": True}}, {"patternProperties", "additionalProperties"}),
        (
            CLOSED | {"patternProperties": {"a": True, "b": True}},
            {"patternProperties", "additionalProperties"},
        ),
        ({"patternProperties": {"(?=a)": True}, "unevaluatedProperties": False}, None),
        ({"allOf": [{"patternProperties": {"(?=a)": True}}], "unevaluatedProperties": False}, None),
        ({"patternProperties": {"(?=a)": True}}, {"patternProperties"}),
        ({"$ref": "#/$defs/node", "$defs": {"node": NODE}}, {"required", "type"}),
        (UNION, {"type"}),
        (
            {
                "allOf": [
                    {"patternProperties": {"^.{1,2}$": {"type": "integer"}}},
                    {"patternProperties": {"a": True}},
                ]
            },
            {"patternProperties"},
        ),
        (
            {"allOf": [CLOSED | {"patternProperties": {"a$": True}}, {"patternProperties": {"a": True}}]},
            {"patternProperties", "additionalProperties"},
        ),
        ({"anyOf": TAGGED}, set()),
        ({"oneOf": [{"type": "null"}, {"anyOf": [*TAGGED, {"$ref": "#"}]}]}, {"oneOf"}),
        (
            {"allOf": [{"anyOf": [{"type": "null"}, TAGGED[0]]}, {"anyOf": [{"type": "null"}, TAGGED[1]]}]},
            {"patternProperties", "additionalProperties"},
        ),
        (
            {"patternProperties": {"^x": True}, "anyOf": TAGGED},
            {"patternProperties", "additionalProperties"},
        ),
        ({"type": "string", "pattern": "a^b"}, {"pattern"}),
        ({"type": "string", "pattern": "^(?:(?:a|b)($|/))*$"}, {"pattern"}),
        ({"type": "string", "pattern": "^(?:a|b)(/|$)"}, set()),
        ({"type": "string", "pattern": "(^a$)|(^b$)|^[$^]"}, set()),
    ],
)
def test_what_the_compiler_cannot_combine_is_named(schema, names):
    made, found = relax_schema(schema, "f")
    assert {*found} == ({"patternProperties", "unevaluatedProperties"} if names is None else names)
    assert relax_schema(made, "f") == (made, ())
    assert sampled(ConstraintKind.JSON_SCHEMA, json.dumps(made), vocabulary(), 1)


def test_a_long_chain_of_references_is_taken():
    links = {
        f"d{number}": {"properties": {"next": {"$ref": f"#/$defs/d{number + 1}"}}} for number in range(400)
    }
    schema = {"$ref": "#/$defs/d0", "$defs": links | {"d400": {"type": "null"}}}
    assert relax_schema(schema, "f")[1] == ()


def test_a_schema_that_was_relaxed_before_is_relaxed_alike():
    def build(pattern):
        return {"type": "object", "properties": {"a": {"type": "string", "format": pattern, "minimum": 1.5}}}

    first = relax_schema(build("idn-email"), "f")
    assert relax_schema(build("idn-email"), "tools[3].input_schema") is first, "tools can move"
    assert relax_schema(build("date"), "f") != first
    for _ in range(2):  # a refusal is not remembered as a result
        with pytest.raises(UnsupportedParameter, match="no target"):
            relax_schema({"$ref": "#/nowhere"}, "f")
    for size, is_kept in ((LONGEST_SCHEMA // 2, True), (LONGEST_SCHEMA, False)):
        first, second = (relax_schema({"const": "x" * size}, "f") for _ in range(2))
        assert (first is second) == is_kept and first == second
