"""Schemas as people write them for answers and tools, by name: nested, recursive, with formats and patterns,
and some with keywords that cannot be kept while generating. Each is either kept or refused by such a keyword.
"""

from typing import Any

from tests.constraints.collected import Schema, record, text

DATE = {"type": "string", "format": "date"}
MOMENT = {"type": "string", "format": "date-time"}
COUNT = {"type": "integer", "minimum": 0, "maximum": 99}
PRICE = {"type": "number", "minimum": 0, "maximum": 9999}
WORD = text(pattern="^[a-z]+$", maxLength=8)


def listed(of: Any, most: int = 2, **more: Any) -> Schema:
    """A short list."""
    return {"type": "array", "items": of, "maxItems": most} | more


def optional(**properties: Any) -> Schema:
    """An object of which everything may be left out."""
    return {"type": "object", "properties": properties, "additionalProperties": False}


PEOPLE: dict[str, Any] = {
    "a person": record(name=text(minLength=1), age={"type": "integer", "minimum": 0, "maximum": 130}),
    "a person with a birthday": record(name=text(), born=DATE),
    "a contact": optional(email={"type": "string", "format": "email"}, phone=text(pattern="^\\+[0-9]{6,9}$")),
    "an address": record(street=text(), zip=text(pattern="^\\d{5}$"), country={"enum": ["DE", "FR", "IT"]}),
    "an account": record(id={"type": "string", "format": "uuid"}, active={"type": "boolean"}, since=MOMENT),
    "a team": record(
        lead=record(name=text()), members=listed(record(name=text(), role={"enum": ["dev", "ops"]}))
    ),
    "a family tree": {
        "$ref": "#/$defs/person",
        "$defs": {"person": record(name=WORD, children=listed({"$ref": "#/$defs/person"}, 1))},
    },
    "a profile": {
        "type": "object",
        "properties": {
            "handle": text(minLength=3, maxLength=9),
            "bio": {"type": ["string", "null"], "maxLength": 20},
        },
        "required": ["handle"],
        "additionalProperties": False,
    },
    "a name, in two ways": {"oneOf": [text(minLength=1), record(first=text(), last=text())]},
    "a user with a login or not": {
        "anyOf": [record(login={"const": True}, user=WORD), record(login={"const": False})]
    },
}
TRADE: dict[str, Any] = {
    "an invoice": record(
        number=text(pattern="^INV-[0-9]{4}$"),
        date=DATE,
        lines=listed(record(item=WORD, amount=COUNT, price=PRICE), 2, minItems=1),
        total=PRICE,
    ),
    "an order": record(
        order=COUNT, items=listed(record(sku=text(pattern="^[A-Z]{3}\\d{3}$"), quantity=COUNT))
    ),
    "a price in steps": {"type": "integer", "minimum": 0, "maximum": 500, "multipleOf": 5},
    "a price in cents": {"type": "number", "minimum": 0, "maximum": 10, "multipleOf": 0.25},
    "money": record(
        amount={"type": "number", "exclusiveMinimum": 0, "maximum": 1000}, currency={"enum": ["EUR", "USD"]}
    ),
    "a payment": {
        "oneOf": [
            record(by={"const": "card"}, last4=text(pattern="^\\d{4}$")),
            record(by={"const": "transfer"}, iban=text(pattern="^DE\\d{6}$")),
            record(by={"const": "cash"}),
        ]
    },
    "a stock": {"type": "object", "additionalProperties": COUNT, "maxProperties": 3},
    "a stock with a total": {
        "type": "object",
        "properties": {"total": COUNT},
        "required": ["total"],
        "additionalProperties": {"type": "integer", "maximum": 9, "minimum": 0},
        "maxProperties": 3,
    },
    "a shelf of unequal things": listed(record(label=WORD), 3, uniqueItems=True),
    "a discount if there is a code": {
        "type": "object",
        "properties": {"code": WORD, "discount": COUNT},
        "dependentRequired": {"code": ["discount"]},
    },
}
TIMES: dict[str, Any] = {
    "a meeting": record(title=text(), start=MOMENT, minutes={"enum": [15, 30, 60]}, guests=listed(WORD)),
    "opening hours": record(day={"enum": ["mon", "tue"]}, opens={"type": "string", "format": "time"}),
    "a span": record(begins=DATE, lasts={"type": "string", "format": "duration"}),
    "a day of this century": {"type": "string", "format": "date", "pattern": "^20"},
    "a reminder": optional(
        at=MOMENT, text=text(), repeat={"type": ["integer", "null"], "minimum": 1, "maximum": 7}
    ),
    "a week": record(**{day: listed(WORD, 1) for day in ("mo", "tu", "we", "th", "fr")}),
    "a timetable": listed(record(at=text(pattern="^([01]\\d|2[0-3]):[0-5]\\d$"), what=WORD)),
    "an end after a start": {"if": {"required": ["end"]}, "then": {"required": ["start"]}, "type": "object"},
}
MACHINES: dict[str, Any] = {
    "a host": record(
        host={"type": "string", "format": "hostname"},
        port={"type": "integer", "minimum": 1, "maximum": 65535},
    ),
    "an address of the net": {
        "anyOf": [{"type": "string", "format": "ipv4"}, {"type": "string", "format": "ipv6"}]
    },
    "a link": record(href={"type": "string", "format": "uri", "maxLength": 30}, title=text()),
    "a log line": record(level={"enum": ["debug", "info", "error"]}, at=MOMENT, message=text(maxLength=20)),
    "a version": {
        "type": "string",
        "pattern": "^\\d{1,2}\\.\\d{1,2}\\.\\d{1,2}(-[a-z]{1,5})?$",
        "maxLength": 14,
    },
    "a colour": {"type": "string", "pattern": "^#[0-9a-fA-F]{6}$"},
    "a hash": {"type": "string", "pattern": "^[0-9a-f]{32}$", "minLength": 32, "maxLength": 32},
    "a path": {"type": "string", "pattern": "^(/[a-z]{1,4}){1,3}$", "maxLength": 16},
    "settings": record(
        retries=COUNT,
        verbose={"type": "boolean", "default": False},
        proxy={"type": ["string", "null"], "maxLength": 9},
    ),
    "environment": {"type": "object", "additionalProperties": text(maxLength=6), "maxProperties": 2},
    "environment by pattern": {"type": "object", "patternProperties": {"^[A-Z]+$": {"type": "string"}}},
    "lower-case keys": {"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}},
    "no key that is not named": {"type": "object", "properties": {"a": True}, "unevaluatedProperties": False},
    "a matrix": listed(listed({"type": "number", "minimum": -1, "maximum": 1}, 2, minItems=2), 2, minItems=2),
    "a point": {
        "type": "array",
        "prefixItems": [{"type": "number"}, {"type": "number"}],
        "items": False,
        "minItems": 2,
    },
    "a point with a label": {
        "type": "array",
        "prefixItems": [COUNT, COUNT],
        "items": WORD,
        "minItems": 2,
        "maxItems": 3,
    },
    "a place on the map": record(
        type={"const": "Point"},
        coordinates=listed({"type": "number", "minimum": -180, "maximum": 180}, 2, minItems=2),
    ),
    "a reading of bytes": {
        "type": "string",
        "contentEncoding": "base64",
        "contentMediaType": "image/png",
        "pattern": "^[A-Za-z0-9+/]{4,8}$",
        "maxLength": 8,
    },
    "an embedded document": {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": {"type": "object"},
        "maxLength": 9,
    },
    "one even number at least": {
        "type": "array",
        "contains": {"multipleOf": 2},
        "minContains": 1,
        "maxContains": 3,
    },
}
TREES: dict[str, Any] = {
    "a file system": {
        "$ref": "#/$defs/entry",
        "$defs": {
            "entry": {"anyOf": [{"$ref": "#/$defs/file"}, {"$ref": "#/$defs/folder"}]},
            "file": record(file=WORD, size=COUNT),
            "folder": record(folder=WORD, entries=listed({"$ref": "#/$defs/entry"}, 1)),
        },
    },
    "a sum": {
        "$ref": "#/$defs/term",
        "$defs": {
            "term": {"anyOf": [COUNT, {"$ref": "#/$defs/sum"}]},
            "sum": record(op={"enum": ["+", "-"]}, left={"$ref": "#/$defs/term"}, right=COUNT),
        },
    },
    "a condition": {
        "anyOf": [
            {"type": "boolean"},
            record(all=listed({"$ref": "#"}, 1)),
            record(none={"$ref": "#"}),
        ]
    },
    "a linked list": record(value=COUNT, next={"anyOf": [{"$ref": "#"}, {"type": "null"}]}),
    "lists of lists": {"type": "array", "items": {"$ref": "#"}, "maxItems": 1},
    "even and odd": {
        "$ref": "#/$defs/even",
        "$defs": {
            "even": {"anyOf": [{"type": "null"}, record(odd={"$ref": "#/$defs/odd"})]},
            "odd": record(even={"$ref": "#/$defs/even"}),
        },
    },
    "comments": record(text=text(), replies=listed({"$ref": "#"}, 1)),
    "a tree by dynamic reference": {
        "$dynamicAnchor": "node",
        "properties": {"child": {"$dynamicRef": "#node"}},
    },
    "a tree by anchor": {"$anchor": "node", "properties": {"child": {"$ref": "#node"}}},
    "a menu": record(title=WORD, items=listed({"anyOf": [record(action=WORD), {"$ref": "#"}]}, 1)),
    "nine deep": record(a=record(b=record(c=record(d=record(e=record(f=record(g=record(h=COUNT)))))))),
}
ANSWERS: dict[str, Any] = {
    "a rating": record(stars={"type": "integer", "minimum": 1, "maximum": 5}, reason=text(maxLength=30)),
    "a label": {"enum": ["spam", "ham"]},
    "labels with scores": listed(
        record(label={"enum": ["a", "b"]}, score={"type": "number", "minimum": 0, "maximum": 1})
    ),
    "a yes or no": record(answer={"type": "boolean"}),
    "steps": record(steps=listed(record(explanation=text(), output=text())), final=text()),
    "a call of a tool": {
        "anyOf": [
            record(name={"const": "add"}, arguments=record(a=COUNT, b=COUNT)),
            record(name={"const": "weather"}, arguments=record(city=text(), unit={"enum": ["C", "F"]})),
        ]
    },
    "a summary with notes": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://example.com/summary",
        "$comment": "for the newsletter",
        "title": "Summary",
        "description": "What it says.",
        "type": "object",
        "properties": {
            "text": {"type": "string", "maxLength": 20, "examples": ["short"], "readOnly": True},
            "old": {"type": "boolean", "deprecated": True, "default": False, "writeOnly": False},
        },
        "required": ["text"],
        "additionalProperties": False,
    },
    "a quiz": listed(
        record(question=text(), options=listed(WORD, 3, minItems=2), right=COUNT), 1, minItems=1
    ),
    "an entity": listed(
        record(kind={"enum": ["person", "place"]}, text=text(), at=listed(COUNT, 2, minItems=2))
    ),
    "a thing but not nothing": {"not": {"type": "null"}},
    "a key at least": {
        "type": "object",
        "minProperties": 1,
        "maxProperties": 2,
        "additionalProperties": COUNT,
    },
    "a required key of no type": {
        "type": "object",
        "required": ["id"],
        "properties": {"id": COUNT},
        "maxProperties": 1,
    },
    "all of two": {"allOf": [optional(a=COUNT), {"required": ["a"]}]},
    "a name and what follows from it": {
        "type": "object",
        "properties": {"a": COUNT},
        "dependentSchemas": {"a": {"required": ["b"]}},
    },
    "an own vocabulary": {"$vocabulary": {"https://example.com/vocabulary": True}, "type": "object"},
    "nothing after the pair": {"prefixItems": [True, True], "unevaluatedItems": False},
    "else a text": {"if": {"type": "integer"}, "else": {"type": "string"}},
    "quotes and slashes": {"enum": ['"', "\\", "/", "\n", "\t", "é", "😀", "</script>"]},
    "keys with quotes": record(**{'"': COUNT, "\\": COUNT, "": COUNT}),
    "empty things": {"anyOf": [record(), {"type": "array", "maxItems": 0}, {"const": ""}]},
}
EVERYDAY: dict[str, Any] = PEOPLE | TRADE | TIMES | MACHINES | TREES | ANSWERS
