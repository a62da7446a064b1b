"""Schemas that a seeded generator composes of the keywords of each draft."""

from random import Random
from typing import Any

from tests.constraints.written import DRAFT_4, DRAFT_6, DRAFT_7, DRAFT_2019, DRAFT_2020

DRAFT_3 = "http://json-schema.org/draft-03/schema#"
DRAFTS = (DRAFT_3, DRAFT_4, DRAFT_6, DRAFT_7, DRAFT_2019, DRAFT_2020)
NAMES = ["a", "b", "key", "größe", 'q"']
VALUES: list[Any] = [None, True, 0, 1, -2, 2.5, "", "x", "é", [1], {"a": 1}]
PATTERNS = ["^[a-z]+$", "x", "^\\d{2}$", "^(a|b)$", '^[^"]{0,3}$']


class Generator:
    """Makes schemas of one draft, small enough to be walked."""

    def __init__(self, draft: str, seed: int) -> None:
        self._draft = draft
        self._age = DRAFTS.index(draft)
        self._random = Random(f"{draft} {seed}")

    def make(self) -> dict[str, Any]:
        """A schema with its draft and two definitions."""
        made: dict[str, Any] = {"$schema": self._draft}
        made |= self._typed(3) | self._combined(2)
        return made | {"definitions": {"one": self._typed(1), "two": self._schema(1)}}

    def _schema(self, depth: int) -> Any:
        chosen = self._random.random()
        if chosen < 0.1 and self._age >= 2:
            return True
        if chosen < 0.25 and depth < 3:
            return {"$ref": self._random.choice(["#/definitions/one", "#/definitions/two"])}
        return self._typed(depth) | (self._combined(depth - 1) if depth > 0 and chosen > 0.7 else {})

    def _typed(self, depth: int) -> dict[str, Any]:
        kinds = ["string", "integer", "number", "boolean", "null"] + ["object", "object", "array"] * (
            depth > 0
        )
        kind = self._random.choice(kinds)
        made: dict[str, Any] = {"type": kind} if self._random.random() < 0.9 else {}
        match kind:
            case "string":
                made |= self._some({"maxLength": 6, "minLength": 1, "pattern": self._random.choice(PATTERNS)})
            case "integer" | "number":
                made |= self._bounds()
            case "object":
                made |= self._object(depth - 1)
            case "array":
                made |= self._array(depth - 1)
        return made

    def _some(self, keywords: dict[str, Any], share: float = 0.4) -> dict[str, Any]:
        return {name: value for name, value in keywords.items() if self._random.random() < share}

    def _bounds(self) -> dict[str, Any]:
        exclusive: Any = True if self._age <= 1 else -3
        multiple = "divisibleBy" if self._age == 0 else "multipleOf"
        return self._some({"minimum": -3, "maximum": 20, "exclusiveMinimum": exclusive, multiple: 2})

    def _object(self, depth: int) -> dict[str, Any]:
        names = self._random.sample(NAMES, 2)
        properties = {name: self._schema(depth) for name in names}
        if self._age == 0:
            properties[names[0]] = {**properties[names[0]], "required": True}
        made: dict[str, Any] = {"properties": properties}
        choices: dict[str, Any] = {
            "additionalProperties": False,
            "patternProperties": {"^[a-f]$": self._schema(depth)},
        }
        if self._age >= 1:
            choices |= {"required": names[:1], "minProperties": 1, "maxProperties": 2}
        if self._age >= 2:
            choices |= {"propertyNames": {"pattern": "^[a-z]+$"}}
        needs = "dependencies" if self._age <= 3 else "dependentRequired"
        choices[needs] = {names[1]: [names[0]]}
        if self._age >= 4:
            choices |= {"dependentSchemas": {names[0]: self._typed(0)}, "unevaluatedProperties": False}
        return made | self._some(choices, 0.3)

    def _array(self, depth: int) -> dict[str, Any]:
        made: dict[str, Any] = {"maxItems": 3}
        if self._age == 5:
            made |= self._some({"prefixItems": [self._schema(depth)], "items": self._schema(depth)}, 0.6)
        elif self._random.random() < 0.5:
            made |= {"items": [self._schema(depth)]} | self._some({"additionalItems": self._typed(depth)})
        else:
            made["items"] = self._schema(depth)
        if self._age >= 2:
            made |= self._some({"contains": self._typed(0)}, 0.2)
        return made | self._some({"minItems": 1}, 0.3)

    def _combined(self, depth: int) -> dict[str, Any]:
        if self._age == 0:
            return self._some({"extends": self._typed(0), "disallow": "boolean"}, 0.2)
        choices: dict[str, Any] = {
            "not": self._typed(0),
            "anyOf": [self._schema(depth), self._schema(0)],
            "oneOf": [self._schema(0), self._typed(0)],
            "allOf": [self._typed(0) | {"type": ["object", "string", "array", "number"]}],
            "enum": self._random.sample(VALUES, 4),
        }
        if self._age >= 3:
            choices |= {"if": self._typed(0), "then": self._schema(0), "else": self._typed(0)}
        return self._some(choices, 0.15)


def generate(count: int) -> list[dict[str, Any]]:
    """As many schemas, of all drafts in turn."""
    return [Generator(DRAFTS[at % len(DRAFTS)], at).make() for at in range(count)]
