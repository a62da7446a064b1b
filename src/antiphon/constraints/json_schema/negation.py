"""Writes the exact negation of a schema as another schema, if this is possible.

Each keyword is negated separately, because a schema refuses a value if any keyword refuses it. Regular
expressions, items and additional properties have no negation in the keywords that the compiler supports.
"""

import re
from collections.abc import Callable, Mapping, Sequence

from antiphon.constraints.json_schema.keywords import Json, is_number
from antiphon.constraints.json_schema.schemas import HIDDEN, INEXACT, Budget, Schema

MAX_DEPTH = 12
"""The most levels of nested schemas, references included."""

MAX_SCHEMAS = 200
"""The most schemas in one negation."""

MAX_NUMBERS = 8
"""The most numbers that one negation can exclude."""

MAX_TEXT = 1024
"""The most characters of all texts that one negation can exclude."""

SINGLE_TYPES = ("null", "boolean", "object", "array", "number", "string")


class CannotNegateError(Exception):
    """Raised if a schema's negation cannot be written as a schema."""


def negate(schema: Schema, definitions: Mapping[str, Schema], budget: Budget) -> Schema:
    """Returns a schema that accepts exactly the values that `schema` refuses. Raises CannotNegateError."""
    return _Negation(definitions, budget).negate(schema, 0)


class _Negation:
    """Writes one negation, and counts its schemas."""

    def __init__(self, definitions: Mapping[str, Schema], budget: Budget) -> None:
        self._definitions = definitions
        self._budget = budget
        self._schema_count = 0
        self._handlers: dict[str, Callable[[Json, int], list[Schema]]] = {
            "type": self._negate_type,
            "const": lambda value, _: [refuse_values([value])],
            "enum": lambda value, _: [refuse_values(value if isinstance(value, list) else [])],
            "required": self._negate_required,
            "properties": self._negate_properties,
            "additionalProperties": self._negate_trivial,
            "items": self._negate_trivial,
            "anyOf": self._negate_any_of,
            "allOf": self._negate_all_of,
            "not": lambda value, _: [as_schema(value)],
            "$ref": self._negate_reference,
            "minLength": lambda value, _: build_below("string", "maxLength", value),
            "maxLength": lambda value, _: build_above("string", "minLength", value),
            "minItems": lambda value, _: build_below("array", "maxItems", value),
            "maxItems": lambda value, _: build_above("array", "minItems", value),
            "minProperties": lambda value, _: build_below("object", "maxProperties", value),
            "maxProperties": lambda value, _: build_above("object", "minProperties", value),
            "minimum": lambda value, _: [{"type": "number", "exclusiveMaximum": value}],
            "maximum": lambda value, _: [{"type": "number", "exclusiveMinimum": value}],
            "exclusiveMinimum": lambda value, _: [{"type": "number", "maximum": value}],
            "exclusiveMaximum": lambda value, _: [{"type": "number", "minimum": value}],
        }

    def negate(self, schema: Schema, depth: int) -> Schema:
        """Returns the negation of a schema. Raises CannotNegateError if it cannot be written, or is too deep
        or too large."""
        self._schema_count += 1
        if isinstance(schema, bool):
            return not schema
        size = sum(len(each) if isinstance(each, list | dict) else 1 for each in schema.values())
        if (
            INEXACT in schema
            or depth > MAX_DEPTH
            or self._schema_count > MAX_SCHEMAS
            or not self._budget.spend(size)
        ):
            raise CannotNegateError
        parts: list[Schema] = []
        for name, value in schema.items():
            if name in HIDDEN:
                continue
            if name not in self._handlers:
                raise CannotNegateError
            parts += self._handlers[name](value, depth + 1)
        branches = [part for part in parts if part is not False]
        if True in branches:
            return True
        return build_any_of(branches)

    def _negate_type(self, value: Json, depth: int) -> list[Schema]:
        """Returns schemas for values of all other types. Raises CannotNegateError for integers, because the
        compiler has no type for numbers with a fraction."""
        types = set(value if isinstance(value, list) else [value])
        if "integer" in types and "number" not in types:
            raise CannotNegateError
        other_types = [each for each in SINGLE_TYPES if each not in types]
        return [{"type": other_types}] if other_types else []

    def _negate_required(self, value: Json, depth: int) -> list[Schema]:
        """Returns a schema for each required name. It accepts objects without that name."""
        names = value if isinstance(value, list) else []
        return [{"type": "object", "properties": {name: False}} for name in names]

    def _negate_properties(self, value: Json, depth: int) -> list[Schema]:
        """Returns a schema for each property. It accepts objects whose value of that property is refused."""
        if not isinstance(value, dict):
            raise CannotNegateError
        negated = {name: self.negate(as_schema(each), depth) for name, each in value.items()}
        return [
            {"type": "object", "properties": {name: each}, "required": [name]}
            for name, each in negated.items()
            if each is not False
        ]

    def _negate_trivial(self, value: Json, depth: int) -> list[Schema]:
        """Returns no schema if the keyword's value accepts everything. Raises CannotNegateError for any other
        value."""
        if value is True or (isinstance(value, dict) and value.keys() <= HIDDEN and INEXACT not in value):
            return []
        raise CannotNegateError

    def _negate_any_of(self, value: Json, depth: int) -> list[Schema]:
        """Returns a schema that accepts the values that all branches refuse."""
        return [{"allOf": [self.negate(as_schema(each), depth) for each in _as_list(value)]}]

    def _negate_all_of(self, value: Json, depth: int) -> list[Schema]:
        """Returns the negation of each branch."""
        return [self.negate(as_schema(each), depth) for each in _as_list(value)]

    def _negate_reference(self, value: Json, depth: int) -> list[Schema]:
        """Returns the negation of the definition. Raises CannotNegateError if the definition is unknown."""
        name = value.removeprefix("#/$defs/") if isinstance(value, str) else ""
        if name not in self._definitions:
            raise CannotNegateError
        return [self.negate(self._definitions[name], depth)]


def _as_list(value: Json) -> list[Json]:
    """Returns the value if it is a list; an empty list for any other value."""
    return value if isinstance(value, list) else []


def as_schema(value: Json) -> Schema:
    """Returns the value as a schema. The reader has already checked that it is one."""
    return value if isinstance(value, bool | dict) else True


def build_any_of(parts: Sequence[Schema]) -> Schema:
    """Returns a schema that accepts a value if any part accepts it."""
    if not parts:
        return False
    return parts[0] if len(parts) == 1 else {"anyOf": list(parts)}


def build_below(kind: str, name: str, value: Json) -> list[Schema]:
    """Returns schemas that accept values of a type whose count is below `value`. `name`: the keyword of the
    maximum."""
    return [{"type": kind, name: value - 1}] if isinstance(value, int) and value > 0 else []


def build_above(kind: str, name: str, value: Json) -> list[Schema]:
    """Returns schemas that accept values of a type whose count is above `value`. `name`: the keyword of the
    minimum."""
    return [{"type": kind, name: value + 1}] if isinstance(value, int) else []


# --- values


def refuse_values(values: list[Json]) -> Schema:
    """Returns a schema that accepts all values except these values. Raises CannotNegateError for lists and
    objects."""
    texts = [each for each in values if isinstance(each, str)]
    numbers = sorted({float(each) for each in values if is_number(each) and isinstance(each, int | float)})
    flags = [each for each in values if isinstance(each, bool)]
    if any(isinstance(each, list | dict) for each in values) or len(numbers) > MAX_NUMBERS:
        raise CannotNegateError
    other_types = ["object", "array"]
    parts: list[Schema] = []
    if None not in values:
        other_types.append("null")
    if not flags:
        other_types.append("boolean")
    elif len(set(flags)) == 1:
        parts.append({"const": not flags[0]})
    if texts:
        parts.append({"type": "string", "pattern": build_exclusion_pattern(texts)})
    else:
        other_types.append("string")
    parts += _build_between(numbers) if numbers else []
    if not numbers:
        other_types.append("number")
    return build_any_of([{"type": other_types}, *parts])


def _build_between(numbers: list[float]) -> list[Schema]:
    """Returns schemas for all numbers except these numbers: for the numbers below, between and above them."""
    exact = [int(each) if each == each // 1 else each for each in numbers]
    branches: list[Schema] = []
    for low, high in zip([None, *exact], [*exact, None], strict=True):
        bounds: dict[str, Json] = {"exclusiveMinimum": low, "exclusiveMaximum": high}
        branches.append(
            {"type": "number"} | {name: bound for name, bound in bounds.items() if bound is not None}
        )
    return branches


def build_exclusion_pattern(texts: list[str]) -> str:
    """Returns a regular expression that matches every text except these texts."""
    if sum(map(len, texts)) > MAX_TEXT:
        raise CannotNegateError
    return f"^(?:{_build_exclusion(sorted(set(texts)), 0)})$"


def _build_exclusion(texts: list[str], index: int) -> str:
    """Returns a pattern for the part of a text from `index` on. It matches that part of no text in `texts`.

    The texts are equal before `index`. Each recursion handles one character; the texts are few and short.
    """
    if index > MAX_TEXT // 8:
        raise CannotNegateError
    has_end = texts[0][index:] == ""
    following: dict[str, list[str]] = {}
    for text in texts[1:] if has_end else texts:
        following.setdefault(text[index], []).append(text)
    branches = [
        f"{_escape_character(char)}(?:{_build_exclusion(group, index + 1)})"
        for char, group in following.items()
    ]
    branches.append(f"[^{''.join(map(_escape_character, following))}][\\s\\S]*" if following else "[\\s\\S]+")
    return "|".join(branches) + ("" if has_end else "|")


def _escape_character(char: str) -> str:
    """Escapes a character for a regular expression, in a class or not."""
    if char.isalnum() or ord(char) > 127:
        return char
    if not char.isprintable():
        return f"\\x{ord(char):02x}"
    return char if char in "<> _" else re.sub(r"([^\w\s])", r"\\\1", char)
