"""Schemas of our own collecting: what is taken, and what is refused with the keyword's name."""

import json
from itertools import product
from typing import Any

Schema = dict[str, Any]


def record(**properties: Any) -> Schema:
    """An object of exactly these."""
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


def text(**more: Any) -> Schema:
    return {"type": "string"} | ({} if "format" in more else {"maxLength": 12}) | more


PLAIN: list[Any] = [
    True,
    {},
    {"type": "null"},
    {"type": "boolean"},
    {"type": "integer", "title": "A count", "description": "How many.", "default": 3, "examples": [1]},
    {"type": "number"},
    {"type": ["string", "null"], "maxLength": 5},
    {"type": ["integer", "boolean", "null"]},
    {"const": {"a": [1, 2.5, None, True, 'a "quoted" \\ text\n']}},
    {"const": ""},
    {"enum": ["red", "green", "rot/grün", 3, 2.25, None, False, {"x": []}]},
    {"enum": ["one"]},
    {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 4},
    {"type": "array", "prefixItems": [text(), {"type": "integer"}], "items": False, "minItems": 2},
    {"type": "array", "prefixItems": [{"const": 1}, {"const": 2}], "maxItems": 3, "items": {"type": "null"}},
    {"type": "array", "uniqueItems": False, "items": {"enum": ["a", "b"]}, "maxItems": 3},
    {"type": "array", "maxItems": 0},
    {"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 3},
    {"type": "object", "minProperties": 1, "additionalProperties": {"type": "boolean"}},
    {"type": "object", "properties": {"a": True}, "required": ["a", "b"], "maxProperties": 2},
    {"type": "object", "properties": {}, "additionalProperties": False},
    {"type": "object", "required": ["only"]},
    {"properties": {"a": {"type": "integer"}}, "required": ["a"]},
    {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://example.com/s",
        "type": "integer",
    },
    {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "definitions": {},
        "maxProperties": 1,
    },
    {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 9}, {"multipleOf": 2}]},
    {
        "allOf": [
            {"type": "object", "properties": {"a": text()}, "required": ["a"]},
            {"properties": {"b": {"type": "integer"}}, "required": ["b"]},
        ]
    },
    {"anyOf": [text(), {"type": "integer"}, {"type": "array", "items": {"type": "null"}, "maxItems": 2}]},
    {"anyOf": [record(kind={"const": "a"}, x=text()), record(kind={"const": "b"}, y={"type": "number"})]},
    {"oneOf": [{"type": "string", "maxLength": 3}, {"type": "integer"}]},
    {
        "oneOf": [
            record(kind={"const": "circle"}, r={"type": "number", "minimum": 0}),
            record(kind={"const": "square"}, side={"type": "number", "minimum": 0}),
        ]
    },
    {
        "type": "object",
        "properties": {"n": {"$ref": "#/$defs/name"}, "m": {"$ref": "#/$defs/name"}},
        "required": ["n"],
        "additionalProperties": False,
        "$defs": {"name": text(minLength=1)},
    },
    {
        "$ref": "#/$defs/tree",
        "$defs": {
            "tree": {
                "type": "object",
                "properties": {
                    "value": {"type": "integer"},
                    "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2},
                },
                "required": ["value"],
                "additionalProperties": False,
            }
        },
    },
    {
        "type": "object",
        "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
        "required": ["next"],
        "additionalProperties": False,
    },
    {
        "type": "object",
        "properties": {"a": {"$ref": "#/properties/b"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
    record(
        id={"type": "integer", "minimum": 1, "maximum": 999},
        name=text(minLength=1),
        tags={"type": "array", "items": text(pattern="^[a-z]+$"), "maxItems": 3},
    ),
    record(**{f"field_{at}": {"type": "integer", "minimum": at, "maximum": at * 10} for at in range(10)}),
    record(**{"a key with spaces": text(), 'quote"d': {"type": "null"}, "ключ": {"type": "boolean"}}),
    record(
        x={"type": "number", "minimum": -1.5, "maximum": 1.5}, y={"type": "number", "exclusiveMinimum": 0}
    ),
    record(deep=record(deeper=record(deepest=record(at_last={"const": 42})))),
    {"type": "string", "pattern": "^(foo|bar)[0-9]{1,3}$", "maxLength": 5},
    {"type": "string", "pattern": "a.b", "maxLength": 8},
    {"type": "string", "pattern": "^\\w+@\\w+\\.com$", "maxLength": 20},
    {"type": "string", "format": "date", "pattern": "^20"},
    {"type": "string", "format": "ipv4", "maxLength": 9},
]
BOUNDS = [None, -17, 0, 3, 250]
RANGES = [
    {"type": kind} | ({} if low is None else {lower: low}) | ({} if high is None else {upper: high})
    for kind, (lower, upper), low, high in product(
        ("integer", "number"),
        (("minimum", "maximum"), ("exclusiveMinimum", "exclusiveMaximum"), ("minimum", "exclusiveMaximum")),
        BOUNDS,
        BOUNDS,
    )
    if low is None or high is None or low + 1 < high
]
LENGTHS = [
    {"type": "string", "minLength": low, "maxLength": low + more}
    for low, more in product((0, 1, 3, 7), (0, 1, 5))
]
ITEMS = [
    {"type": "array", "items": item, "minItems": low, "maxItems": low + 2}
    for item, low in product(({"type": "boolean"}, text(), record(a={"type": "null"})), (0, 1, 3))
]
FORMATS = [
    {"type": "string", "format": name}
    for name in ("date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
]
PATTERNS = [
    {"type": "string", "pattern": pattern, "maxLength": 24}
    for pattern in (
        "^[A-Z]{2}-\\d{4}$",
        '^[^"\\\\]*$',
        "^(?:a|b){2,5}$",
        "\\.",
        "^\\S+$",
        "^[\\w.-]+$",
        "^a|b$",
        "^$",
        "x{3}",
        "^[\\u0041-\\u0046]+$",
        "^é+$",
        "^/[a-z]+/$",
        "^\\s?z",
        "^\\D\\W$",
    )
]
DRAFT_4, DRAFT_7 = "http://json-schema.org/draft-04/schema#", "http://json-schema.org/draft-07/schema#"
REWRITTEN: list[Any] = [
    {"not": {"type": "string"}},
    {"type": "string", "maxLength": 4, "not": {"enum": ["a", "ab", "b"]}},
    {"type": "integer", "minimum": 0, "maximum": 9, "not": {"const": 5}},
    {"type": "object", "properties": {"a": text(), "b": text()}, "not": {"required": ["a", "b"]}},
    {"if": {"type": "string"}, "then": {"maxLength": 2}},
    {"then": {"minLength": 2}},
    {"else": {"minLength": 2}},
    {"type": "array", "minContains": 1, "maxContains": 1, "maxItems": 2},
    {"type": "array", "contains": {"type": "integer"}, "maxItems": 3, "items": {"type": ["integer", "null"]}},
    {"type": "object", "patternProperties": {"^a": {"type": "integer"}}, "additionalProperties": False},
    {"type": "object", "propertyNames": {"maxLength": 3}, "maxProperties": 2},
    {"type": "object", "propertyNames": {"enum": ["a", "b"]}},
    {
        "type": "object",
        "properties": {"a": text(), "b": text()},
        "dependentRequired": {"a": ["b"]},
        "additionalProperties": False,
    },
    {
        "type": "object",
        "properties": {"a": text(), "b": text()},
        "dependentSchemas": {"a": {"required": ["b"]}},
        "additionalProperties": False,
    },
    {"$schema": DRAFT_7, "type": "object", "properties": {"a": {}, "b": {}}, "dependencies": {"a": ["b"]}},
    {"type": "object", "properties": {"a": {"type": "null"}}, "unevaluatedProperties": False},
    {"type": "array", "prefixItems": [text()], "unevaluatedItems": False},
    {"$schema": DRAFT_7, "type": "array", "items": [text(), {"type": "null"}], "additionalItems": False},
    {"$schema": DRAFT_4, "type": "number", "minimum": 0, "exclusiveMinimum": True, "maximum": 2},
    {"$schema": DRAFT_4, "id": "http://x/y", "type": "array", "items": [text()], "maxItems": 2},
    {"type": "string", "$anchor": "here", "$dynamicAnchor": "there", "$vocabulary": {}, "maxLength": 3},
    {
        "type": "object",
        "properties": {"a": {"$id": "b", "type": "null"}, "c": {"$ref": "b"}},
        "additionalProperties": False,
    },
    {
        "$schema": "https://json-schema.org/draft/2019-09/schema",
        "type": "object",
        "properties": {"next": {"$recursiveRef": "#"}},
        "additionalProperties": False,
    },
    {"type": "array", "maxItems": 10**9, "items": {"type": "null"}, "minItems": 1},
    {"type": "integer", "minimum": 2**53 + 1, "maximum": 2**63 - 1},
    {"oneOf": [{"type": "object"}, {"type": "object", "required": ["a"]}], "maxProperties": 1},
    {"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object", "properties": {"a": {}, "b": {}}},
]
"""Written for the compiler in other keywords than they have."""

TAKEN: list[Any] = [*PLAIN, *RANGES, *LENGTHS, *ITEMS, *FORMATS, *PATTERNS, *REWRITTEN]

REFUSED: dict[str, Any] = {
    "contains": {"type": "array", "contains": {"type": "integer"}},
    "uniqueItems": {"type": "array", "uniqueItems": True},
    "$dynamicRef": {"$dynamicRef": "#here"},
    "x-guidance": {"x-guidance": {"lenient": True}, "type": "string"},
    "x-guidance ": {"type": "array", "items": {"x-guidance": {"lenient": True}, "type": "string"}},
    "nullable": {"type": "string", "nullable": True},
    "maximun": {"type": "integer", "maximun": 3},
    "$ref": {"$ref": "https://example.com/schema"},
    "$ref ": {"$ref": "#/$defs/none"},
    "format": {"type": "string", "format": "regex"},
    "format ": {"type": "string", "format": "unknown"},
    "minProperties": {"type": "object", "minProperties": 2},
    "type": {"type": "text"},
    "type ": {"type": []},
    "minLength": {"minLength": -1},
    "maxLength": {"maxLength": 1.5},
    "multipleOf": {"multipleOf": 0},
    "const": {"const": 2**60},
    "enum": {"enum": []},
    "enum ": {"enum": [*range(5000)]},
    "required": {"required": "a"},
    "properties": {"properties": ["a"]},
    "properties ": {"properties": {f"p{at}": True for at in range(300)}},
    "anyOf": {"anyOf": []},
    "prefixItems": {"$schema": "http://json-schema.org/draft-07/schema#", "prefixItems": [True]},
    "pattern": {"pattern": "(?=a)b"},
    "pattern ": {"pattern": "^[\\x00-!#-~]*$"},
    "accepts nothing": False,
    "schemas": json.loads('{"items":' * 200 + "true" + "}" * 200),
}
"""Schemas by what the refusal names; blanks only tell cases of one name apart."""
