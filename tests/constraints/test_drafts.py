"""Schemas of each draft by its own rules: which instances a grammar takes and which it refuses."""

from typing import Any

import pytest

from antiphon.constraints.json_schema.lowering import relax_schema
from scripts.check_schema_suite import DRAFTS, check
from tests.support.constraint_texts import vocabulary

OLD, NEW = ("draft3", "draft4", "draft6", "draft7"), ("draft2019-09", "draft2020-12")
SINCE_4 = (*OLD[1:], *NEW)
SINCE_6 = (*OLD[2:], *NEW)
UNNAMED = ""
"""A schema that names no draft."""

CASES: list[tuple[tuple[str, ...], Any, list[Any], list[Any]]] = [
    (("draft3", "draft4"), {"minimum": 1, "exclusiveMinimum": True, "type": "integer"}, [2], [1]),
    ((UNNAMED,), {"maximum": 1, "exclusiveMaximum": True, "type": "integer"}, [0], [1]),
    (SINCE_6, {"exclusiveMaximum": 3, "type": "integer"}, [2], [3]),
    (SINCE_6, {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, [0.01, 0.5], [0, -0.1]),
    (SINCE_6, {"type": "number", "exclusiveMinimum": 1, "exclusiveMaximum": 1.5}, [1.25], [1, 1.5]),
    (SINCE_6, {"type": "number", "minimum": -1.5, "exclusiveMaximum": -1}, [-1.5, -1.25], [-1]),
    (SINCE_6, {"exclusiveMinimum": 10, "minimum": 10.5, "maximum": 10.9}, [10.5, "a"], [10, 10.25]),
    (SINCE_6, {"allOf": [{"exclusiveMinimum": 2}, {"type": "number", "maximum": 2.5}]}, [2.5], [2]),
    (SINCE_6, {"type": "number", "not": {"enum": [1, 1.5]}, "minimum": 0.5}, [0.5, 1.25], [1, 1.5]),
    (SINCE_6, {"type": "number", "not": {"maximum": 1}, "maximum": 1.5}, [1.25], [0, 1]),
    (SINCE_6, {"type": ["integer", "null"], "exclusiveMinimum": 0, "maximum": 2}, [1, None], [0, 3]),
    (("draft3", UNNAMED), {"properties": {"a": {"required": True}, "b": {}}}, [{"a": 1}], [{"b": 1}]),
    (("draft3", UNNAMED), {"type": "integer", "divisibleBy": 3}, [6], [7]),
    (("draft3", UNNAMED), {"extends": {"type": "integer"}, "disallow": {"enum": [3]}}, [2], [3, "a"]),
    (("draft3", UNNAMED), {"type": "any"}, [1, "a", None], []),
    (("draft3",), {"dependencies": {"a": "b"}, "additionalProperties": False}, [{}], [{"a": 1}]),
    (
        (*OLD, UNNAMED, "draft2019-09"),
        {"type": "array", "items": [{"type": "null"}, {"type": "integer"}], "additionalItems": False},
        [[], [None], [None, 1]],
        [[1], [None, 1, 2]],
    ),
    (("draft2020-12", UNNAMED), {"prefixItems": [{"const": 1}], "items": False}, [[1], []], [[2], [1, 1]]),
    (
        (*OLD, UNNAMED),
        {"properties": {"a": {}, "b": {}}, "dependencies": {"a": ["b"]}},
        [{"b": 1}, {"a": 1, "b": 1}],
        [{"a": 1}],
    ),
    (
        OLD,
        {
            "properties": {"a": {"$ref": "#/definitions/x", "type": "null"}},
            "definitions": {"x": {"enum": [1]}},
        },
        [{"a": 1}],
        [{"a": None}],
    ),
    (
        (*NEW, UNNAMED),
        {
            "properties": {"a": {"$ref": "#/definitions/x", "maximum": 1}},
            "definitions": {"x": {"enum": [1, 2]}},
        },
        [{"a": 1}],
        [{"a": 2}],
    ),
    (
        ("draft4", UNNAMED),
        {
            "id": "http://x/y",
            "items": {"$ref": "http://x/y#/definitions/a"},
            "definitions": {"a": {"enum": [1]}},
        },
        [[1]],
        [[2]],
    ),
    (
        SINCE_6,
        {
            "$id": "http://x/y",
            "items": {"$ref": "inner#/definitions/a~1b%25"},
            "definitions": {"i": {"$id": "inner", "definitions": {"a/b%": {"enum": [1]}}}},
        },
        [[1]],
        [[2]],
    ),
    (
        ("draft6", "draft7"),
        {"items": {"$ref": "#a"}, "definitions": {"x": {"$id": "#a", "enum": [1]}}},
        [[1]],
        [[2]],
    ),
    ((*NEW, UNNAMED), {"items": {"$ref": "#a"}, "$defs": {"x": {"$anchor": "a", "enum": [1]}}}, [[1]], [[2]]),
    (
        ("draft2019-09", UNNAMED),
        {"properties": {"n": {"$recursiveRef": "#"}}, "additionalProperties": False},
        [{"n": {"n": {}}}],
        [{"m": 1}, {"n": {"m": 1}}],
    ),
    (
        ("draft2020-12", UNNAMED),
        {
            "$dynamicAnchor": "node",
            "properties": {"n": {"$dynamicRef": "#node"}},
            "additionalProperties": False,
        },
        [{"n": {"n": {}}}],
        [{"n": {"m": 1}}],
    ),
    (
        (*SINCE_4, UNNAMED),
        {"type": ["integer", "string"], "not": {"enum": [3, "ab", "b"]}},
        [2, "a", "abc"],
        [3, "b"],
    ),
    (
        (*SINCE_4, UNNAMED),
        {"not": {"required": ["a", "b"]}, "type": "object"},
        [{"a": 1}],
        [{"a": 1, "b": 1}],
    ),
    ((*SINCE_4, UNNAMED), {"not": {"anyOf": [{"type": "string"}, {"type": "null"}]}}, [1, []], ["", None]),
    (
        (*SINCE_4, UNNAMED),
        {"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object"},
        [{"a": 1}, {"b": 1}],
        [{"a": 1, "b": 1}, {}],
    ),
    (
        (*SINCE_4, UNNAMED),
        {"type": "object", "minProperties": 1, "properties": {"a": {}}},
        [{"a": 1}, {"z": 1}],
        [{}],
    ),
    (
        (*OLD, *NEW, UNNAMED),
        {
            "properties": {"ab": {"type": "integer"}},
            "patternProperties": {"^a": {"minimum": 3}, "^(b|c)$": {"type": "null"}},
            "additionalProperties": False,
        },
        [{"ab": 3}, {"ax": 4, "b": None}],
        [{"ab": 2}, {"ab": "x"}, {"ax": 1}, {"b": 1}, {"d": 1}],
    ),
    (
        (*SINCE_6, UNNAMED),
        {"propertyNames": {"pattern": "^a"}, "properties": {"b": {}}},
        [{"ab": 1}],
        [{"b": 1}],
    ),
    ((*SINCE_6, UNNAMED), {"propertyNames": {"enum": ["a", "b"]}}, [{"a": 1}, {}], [{"c": 1}]),
    ((*SINCE_6, UNNAMED), {"contains": {"const": 1}, "maxItems": 2}, [[1], [0, 1]], [[], [0], [0, 0]]),
    (
        ("draft7", *NEW, UNNAMED),
        {
            "properties": {"k": {"enum": ["x", "y"]}, "z": {}},
            "if": {"properties": {"k": {"const": "x"}}, "required": ["k"]},
            "then": {"required": ["z"]},
            "else": {"properties": {"z": False}},
        },
        [{"k": "x", "z": 1}, {"k": "y"}, {}],
        [{"k": "x"}, {"k": "y", "z": 1}, {"z": 1}],
    ),
    (
        (*NEW, UNNAMED),
        {
            "$defs": {"base": {"properties": {"a": {}}}},
            "allOf": [{"$ref": "#/$defs/base"}],
            "properties": {"b": {}},
            "unevaluatedProperties": False,
        },
        [{"a": 1, "b": 1}, {}],
        [{"c": 1}],
    ),
    ((*OLD, *NEW, UNNAMED), {"type": "integer", "maximum": 2**63 - 1}, [2**62], [2**63]),
]


@pytest.mark.parametrize(("drafts", "schema", "valid", "invalid"), CASES)
def test_a_schema_means_what_its_draft_says(
    drafts: tuple[str, ...], schema: Any, valid: list[Any], invalid: list[Any]
):
    tests = [
        {"description": "", "data": each, "valid": is_valid}
        for is_valid, values in ((True, valid), (False, invalid))
        for each in values
    ]
    words = vocabulary()
    for draft in drafts:
        uri = DRAFTS[draft] if draft else None
        counts, wrong = check([("", {"description": draft, "schema": schema, "tests": tests})], uri, words)
        assert not wrong and counts["exact"] == 1, (draft, counts, wrong)


@pytest.mark.parametrize(
    ("draft", "keyword"),
    [
        ("draft3", "allOf"),
        ("draft4", "const"),
        ("draft4", "$comments"),
        ("draft6", "if"),
        ("draft7", "prefixItems"),
        ("draft7", "dependentRequired"),
        ("draft2019-09", "prefixItems"),
        ("draft2020-12", "dependencies"),
        ("draft2020-12", "nullable"),
        ("draft7", "id"),
    ],
)
def test_a_keyword_unknown_to_the_draft_is_ignored_and_named(draft: str, keyword: str):
    assert relax_schema({"$schema": DRAFTS[draft], keyword: 3}, "f") == ({}, (keyword,))


def test_annotations_mean_nothing_and_are_not_named():
    words = (
        "title description default examples $comment deprecated readOnly writeOnly contentEncoding x-order"
    )
    assert relax_schema(dict.fromkeys(words.split(), 1), "f") == ({}, ())
    assert relax_schema({"x-guidance": {"lenient": True}}, "f") == ({}, ("x-guidance",))


@pytest.mark.parametrize("name", ["http://json-schema.org/schema#", "https://example.com/meta", 3])
def test_an_unknown_meta_schema_is_read_as_the_newest_draft(name: Any):
    made, names = relax_schema({"$schema": name, "prefixItems": [True], "items": [{"type": "null"}]}, "f")
    assert names == ("$schema",) and isinstance(made, dict) and "prefixItems" in made
