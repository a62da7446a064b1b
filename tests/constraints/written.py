"""Schemas as people write them, in the drafts and with the keywords that they use: parts of OpenAPI
documents, settings of editors and tools, manifests, arguments of agents' functions. All are our own."""

from collections.abc import Iterator
from itertools import product
from typing import Any

Schema = dict[str, Any]

DRAFT_4 = "http://json-schema.org/draft-04/schema#"
DRAFT_6 = "http://json-schema.org/draft-06/schema#"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
DRAFT_2019 = "https://json-schema.org/draft/2019-09/schema"
DRAFT_2020 = "https://json-schema.org/draft/2020-12/schema"

WORDS = "invoice tenant region shipment reading playlist ticket sensor recipe booking".split()


def components() -> Iterator[Schema]:
    """Parts of OpenAPI documents: formats, examples, `nullable`, discriminators, extensions."""
    for word in WORDS:
        yield {
            "type": "object",
            "title": word.title(),
            "required": ["id", "kind"],
            "properties": {
                "id": {"type": "integer", "format": "int64", "example": 42, "minimum": 1},
                "kind": {"type": "string", "enum": [word, f"old-{word}"], "default": word},
                "note": {"type": "string", "nullable": True, "maxLength": 40, "x-order": 3},
                "created": {"type": "string", "format": "date-time", "readOnly": True},
            },
            "xml": {"name": word},
            "x-internal": False,
        }
        yield {
            "oneOf": [{"$ref": f"#/components/schemas/{word}"}, {"$ref": "#/components/schemas/Error"}],
            "discriminator": {"propertyName": "kind"},
            "components": {
                "schemas": {
                    word: {
                        "type": "object",
                        "properties": {
                            "kind": {"type": "string", "enum": [word]},
                            "size": {"type": "integer"},
                        },
                        "required": ["kind"],
                    },
                    "Error": {
                        "type": "object",
                        "properties": {
                            "kind": {"const": "error"},
                            "code": {"type": "integer", "format": "int32"},
                        },
                        "required": ["kind", "code"],
                    },
                }
            },
        }


def settings() -> Iterator[Schema]:
    """Settings of editors and tools, in draft 7, with what editors show."""
    for word, strict in product(WORDS, (True, False)):
        yield {
            "$schema": DRAFT_7,
            "$id": f"https://example.com/{word}.schema.json",
            "type": "object",
            "definitions": {
                "level": {
                    "enum": ["off", "warn", "error", 0, 1, 2],
                    "markdownDescription": "How *loud* it is.",
                    "enumDescriptions": ["never", "softly", "loudly", "", "", ""],
                },
                "rule": {
                    "oneOf": [
                        {"$ref": "#/definitions/level"},
                        {
                            "type": "array",
                            "items": [{"$ref": "#/definitions/level"}, {"type": "object"}],
                            "minItems": 1,
                            "additionalItems": False,
                        },
                    ]
                },
            },
            "properties": {
                "$schema": {"type": "string"},
                f"{word}.enable": {"type": "boolean", "default": True, "description": f"Enables {word}."},
                "extends": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
                "rules": {"type": "object", "additionalProperties": {"$ref": "#/definitions/rule"}},
                "env": {"type": "object", "patternProperties": {"^[A-Z_]+$": {"type": "string"}}},
                "files": {"type": "array", "items": {"type": "string", "minLength": 1}, "uniqueItems": True},
            },
            "additionalProperties": not strict,
            "dependencies": {"rules": ["extends"]} if strict else {},
        }


def manifests() -> Iterator[Schema]:
    """Manifests of packages and builds, in draft 4."""
    for word, least in product(WORDS, (0, 1)):
        yield {
            "$schema": DRAFT_4,
            "id": f"http://example.com/{word}",
            "title": f"JSON schema of a {word}",
            "type": "object",
            "definitions": {
                "version": {"type": "string", "pattern": "^\\d+\\.\\d+\\.\\d+(-[a-z0-9.]+)?$"},
                "share": {"type": "number", "minimum": least, "exclusiveMinimum": True, "maximum": 100},
                "person": {
                    "type": ["object", "string"],
                    "required": ["name"],
                    "properties": {"name": {"type": "string"}, "mail": {"type": "string", "format": "email"}},
                },
            },
            "properties": {
                "name": {"type": "string", "minLength": 1, "maxLength": 214},
                "version": {"$ref": "#/definitions/version", "description": "siblings mean nothing here"},
                "share": {"$ref": "#/definitions/share"},
                "author": {"$ref": "#/definitions/person"},
                "maintainers": {
                    "type": "array",
                    "items": {"$ref": "#/definitions/person"},
                    "minItems": least,
                },
                "private": {"enum": [True, False, "partly"]},
            },
            "required": ["name", "version"][: least + 1],
            "not": {"required": ["share", "private"]},
        }


def functions() -> Iterator[Schema]:
    """Arguments of agents' functions, as the libraries that make them from code write them."""
    for word in WORDS:
        yield {
            "type": "object",
            "properties": {
                f"{word}_id": {"type": "string", "description": f"The {word}.", "title": f"{word} id"},
                "limit": {
                    "anyOf": [{"type": "integer"}, {"type": "null"}],
                    "default": None,
                    "title": "Limit",
                },
                "mode": {"$ref": "#/$defs/Mode", "default": "fast"},
            },
            "required": [f"{word}_id"],
            "$defs": {"Mode": {"enum": ["fast", "slow"], "title": "Mode", "type": "string"}},
            "title": f"find_{word}Arguments",
        }
        yield {
            "$schema": DRAFT_7,
            "type": "object",
            "properties": {
                "path": {"type": "string"},
                "edits": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {"old": {"type": "string"}, "new": {"type": "string"}},
                        "required": ["old", "new"],
                        "additionalProperties": False,
                    },
                },
                word: {"type": "number", "exclusiveMinimum": 0, "maximum": 1.7976931348623157e308},
            },
            "required": ["path", "edits"],
            "additionalProperties": False,
        }
        yield {
            "type": "object",
            "properties": {
                "action": {"type": "string", "enum": ["create", "delete"]},
                word: {
                    "type": "object",
                    "properties": {"name": {"type": "string"}},
                    "additionalProperties": {},
                },
            },
            "required": ["action"],
            "if": {"properties": {"action": {"const": "create"}}, "required": ["action"]},
            "then": {"required": [word]},
        }


def events() -> Iterator[Schema]:
    """Events and records of data pipelines, in the newer drafts."""
    for word, draft in product(WORDS, (DRAFT_6, DRAFT_2019, DRAFT_2020)):
        kinds = ["opened", "closed"]
        yield {
            "$schema": draft,
            "type": "object",
            "properties": {
                "event": {"enum": kinds},
                "at": {"type": "string", "format": "date"},
                word: {"type": ["string", "null"], "maxLength": 255},
                "count": {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1},
                "tags": {"type": "array", "items": {"type": "string"}, "contains": {}, "maxItems": 10},
            },
            "required": ["event", "at"],
            "anyOf": [{"required": [word]}, {"required": ["count"]}],
            "propertyNames": {"pattern": "^[a-z]+$"},
            "additionalProperties": False,
        }
    for word in WORDS:
        base = {
            "type": "object",
            "properties": {"id": {"type": "string", "format": "uuid"}},
            "required": ["id"],
        }
        yield {
            "$schema": DRAFT_2020,
            "$defs": {"base": base},
            "allOf": [{"$ref": "#/$defs/base"}],
            "properties": {
                word: {"type": "string"},
                "parts": {"type": "array", "prefixItems": [{"const": word}]},
            },
            "unevaluatedProperties": False,
            "minProperties": 1,
        }


def resources() -> Iterator[Schema]:
    """Objects of a cluster, with formats and extensions of their own."""
    for word in WORDS:
        yield {
            "description": f"A {word} of the cluster.",
            "type": "object",
            "required": ["apiVersion", "kind"],
            "properties": {
                "apiVersion": {"type": "string", "enum": ["v1"]},
                "kind": {"type": "string", "enum": [word.title()]},
                "metadata": {
                    "type": "object",
                    "properties": {
                        "name": {"type": "string"},
                        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                    },
                },
                "port": {
                    "anyOf": [{"type": "string"}, {"type": "integer"}],
                    "x-kubernetes-int-or-string": True,
                },
                "replicas": {"type": "integer", "format": "int32"},
            },
            "x-kubernetes-group-version-kind": [{"group": "", "kind": word.title(), "version": "v1"}],
        }


def envelopes() -> Iterator[Schema]:
    """Messages that are told apart by a field, and records with identifiers of their own."""
    for word in WORDS:
        yield {
            "$schema": DRAFT_7,
            "type": "object",
            "properties": {"type": {"enum": [word, "ping", "stop"]}, "body": {}},
            "required": ["type"],
            "oneOf": [
                {"properties": {"type": {"const": word}, "body": {"type": "object"}}, "required": ["body"]},
                {"properties": {"type": {"enum": ["ping", "stop"]}, "body": False}},
            ],
        }
        yield {
            "$schema": DRAFT_2020,
            "$id": f"https://example.com/{word}",
            "type": "array",
            "items": {"$ref": "item"},
            "maxItems": 2,
            "$defs": {
                "item": {
                    "$id": "item",
                    "type": "object",
                    "properties": {"next": {"$ref": "#leaf"}, word: {"$ref": "#/$defs/a~1b%25"}},
                    "$defs": {"leaf": {"$anchor": "leaf", "enum": [None, 1]}, "a/b%": {"type": "boolean"}},
                    "additionalProperties": False,
                }
            },
        }


WRITTEN: list[Schema] = [
    *components(),
    *settings(),
    *manifests(),
    *functions(),
    *events(),
    *resources(),
    *envelopes(),
]
