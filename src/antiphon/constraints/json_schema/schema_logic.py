"""Writes the exact negation of a schema, and proves that no value satisfies two schemas at once.

Each keyword is negated separately, because a schema refuses a value if any keyword refuses it. Regular
expressions, items and additional properties have no negation in the keywords that the compiler supports.

A proof treats a schema as a list of alternatives. An alternative is a list of schemas that all apply. Unknown
keywords are ignored. So an alternative can only accept more than the schema, and each proof stays valid.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice, product

from antiphon.constraints.json_schema.schemas import HIDDEN, INEXACT, Budget, Json, Schema, freeze, is_number

MAX_DEPTH = 12
"""The most levels of nested schemas, references included."""

MAX_SCHEMAS = 200
"""The most schemas in one negation."""

MAX_NUMBERS = 8
"""The most numbers that one negation can exclude."""

MAX_TEXT = 1024
"""The most characters of all texts that one negation can exclude."""

SINGLE_TYPES = ("null", "boolean", "object", "array", "number", "string")

MAX_PROOF_DEPTH = 6
"""The most levels of nested schemas that are examined, references included."""

MAX_ALTERNATIVES = 24
"""The most alternatives of one schema. If a schema has more, none of them is examined."""

ALL_TYPES = frozenset("null boolean object array string integer fraction".split())
"""The types of values. A number is an integer or has a fraction."""

Alternative = tuple[Mapping[str, Json], ...]


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


class Disjointness:
    """Proves statements about the schemas of one document."""

    def __init__(self, definitions: Mapping[str, Schema], budget: Budget) -> None:
        self._definitions = definitions
        self._budget = budget
        self._listed: dict[int, frozenset[object]] = {}
        """The frozen values of each enum, by the identity of its list."""

    def are_disjoint(self, left: Schema, right: Schema, depth: int = 0) -> bool:
        """Whether it is proved that no value satisfies both schemas. Returns False if the budget ends before
        the proof."""
        if depth > MAX_PROOF_DEPTH or not self._budget.spend(1):
            return False
        right_alternatives = self._list_alternatives(right, 0)
        return all(
            self._are_alternatives_disjoint(left_alternative, right_alternative, depth)
            for left_alternative in self._list_alternatives(left, 0)
            for right_alternative in right_alternatives
        )

    # --- alternatives

    def _list_alternatives(self, schema: Schema, depth: int) -> list[Alternative]:
        """Lists the alternatives of a schema. Returns one empty alternative, which accepts everything, if the
        schema is too deep or the budget is spent."""
        if isinstance(schema, bool):
            return [()] if schema else []
        if depth > MAX_PROOF_DEPTH:
            return [()]
        groups = [self._list_alternatives(each, depth + 1) for each in self._list_conjuncts(schema)]
        for name in ("anyOf", "oneOf"):
            if isinstance(branches := schema.get(name), list) and len(branches) <= MAX_ALTERNATIVES:
                of_branches = (self._list_alternatives(branch, depth + 1) for branch in branches)
                groups.append(list(chain.from_iterable(of_branches)))
        if not self._budget.spend(sum(map(len, groups)) + 1):
            return [()]
        combinations = islice(product(*groups), MAX_ALTERNATIVES + 1)
        combined = [(schema, *chain.from_iterable(parts)) for parts in combinations]
        return combined if len(combined) <= MAX_ALTERNATIVES else [(schema,)]

    def _list_conjuncts(self, schema: Mapping[str, Json]) -> Iterator[Schema]:
        """Yields the schemas that apply in addition to the schema's own keywords: those of `allOf`, and the
        target of a reference."""
        all_of = schema.get("allOf")
        yield from all_of if isinstance(all_of, list) else ()
        reference = schema.get("$ref")
        if isinstance(reference, str):
            yield self._definitions.get(reference.removeprefix("#/$defs/"), True)

    # --- proofs

    def _are_alternatives_disjoint(self, left: Alternative, right: Alternative, depth: int) -> bool:
        """Whether it is proved that no value satisfies both alternatives."""
        both = (*left, *right)
        if not self._budget.spend(len(both) + sum(len(get_required(each)) for each in both)):
            return False
        types = ALL_TYPES.intersection(*map(get_types, both))
        if not types or self._have_disjoint_values(both, types):
            return True
        return all(self._are_disjoint_as_type(type_name, left, right, depth) for type_name in types)

    def _are_disjoint_as_type(
        self, type_name: str, left: Alternative, right: Alternative, depth: int
    ) -> bool:
        """Whether it is proved that no value of the type `type_name` satisfies both alternatives."""
        both = (*left, *right)
        match type_name:
            case "object":
                names = dict.fromkeys(name for each in both for name in get_required(each))
                return any(self._have_disjoint_properties(name, left, right, depth) for name in names)
            case "array":
                return has_impossible_count(both, "minItems", "maxItems")
            case "string":
                return has_impossible_count(both, "minLength", "maxLength")
            case "integer" | "fraction":
                return have_disjoint_bounds(both)
            case _:
                return False

    def _have_disjoint_values(self, schemas: Alternative, types: frozenset[str]) -> bool:
        """Whether the values that the schemas list have no value in common, or no common value of an allowed
        type."""
        common: frozenset[object] | None = None
        for schema in schemas:
            if "const" in schema:
                listed = frozenset([freeze(schema["const"])])
            elif isinstance(values := schema.get("enum"), list):
                listed = self._listed.get(id(values)) or frozenset(map(freeze, values))
                self._listed[id(values)] = listed
            else:
                continue
            common = listed if common is None else common & listed
        return common is not None and not any(find_type(each) in types for each in common)

    def _have_disjoint_properties(self, name: str, left: Alternative, right: Alternative, depth: int) -> bool:
        """Whether no value of a property fits both schemas. Objects of both schemas must have that
        property."""
        left_schema, right_schema = get_property(left, name), get_property(right, name)
        return self.are_disjoint(left_schema, right_schema, depth + 1)


def get_types(schema: Mapping[str, Json]) -> frozenset[str]:
    """Returns the types that the schema's own `type` allows."""
    type_names = schema.get("type")
    if type_names is None:
        return ALL_TYPES
    types = {str(each) for each in (type_names if isinstance(type_names, list) else [type_names])}
    return frozenset(types - {"number"} | ({"integer", "fraction"} if "number" in types else set()))


def get_required(schema: Mapping[str, Json]) -> list[str]:
    """Returns the names that the schema's own `required` lists."""
    names = schema.get("required")
    return names if isinstance(names, list) else []


def get_property(schemas: Alternative, name: str) -> Schema:
    """Returns the schema for a property by all these schemas together. Unknown keywords are ignored."""
    property_schemas: list[Json] = []
    for schema in schemas:
        properties = schema.get("properties")
        if isinstance(properties, dict) and name in properties:
            property_schemas.append(properties[name])
        elif "patternProperties" not in schema and schema.get("additionalProperties") is False:
            return False
        for keyword in ("const", "enum"):
            values = schema.get(keyword)
            values = [values] if keyword == "const" else values
            if keyword in schema and isinstance(values, list):
                inner = [each[name] for each in values if isinstance(each, dict) and name in each]
                property_schemas.append({"enum": inner} if inner else False)
    return {"allOf": property_schemas}


def find_type(frozen: object) -> str:
    """Returns the type of a frozen value."""
    match frozen:
        case (str(type_name), _):
            return type_name
        case str():
            return "string"
        case None:
            return "null"
        case int() | float():
            return "integer" if frozen == frozen // 1 else "fraction"
        case _:
            return "null"


def has_impossible_count(schemas: Alternative, min_keyword: str, max_keyword: str) -> bool:
    """Whether the highest minimum of a count exceeds the lowest maximum."""
    lows = [each[min_keyword] for each in schemas if isinstance(each.get(min_keyword), int)]
    highs = [each[max_keyword] for each in schemas if isinstance(each.get(max_keyword), int)]
    return bool(lows and highs) and max(map(_to_number, lows)) > min(map(_to_number, highs))


def have_disjoint_bounds(schemas: Alternative) -> bool:
    """Whether no number is within the bounds of all schemas."""
    lows = [
        _to_number(each[name]) for each in schemas for name in ("minimum", "exclusiveMinimum") if name in each
    ]
    highs = [
        _to_number(each[name]) for each in schemas for name in ("maximum", "exclusiveMaximum") if name in each
    ]
    if not lows or not highs:
        return False
    low, high = max(lows), min(highs)
    is_exclusive = any(
        each.get("exclusiveMinimum") == low or each.get("exclusiveMaximum") == high for each in schemas
    )
    return low > high or (low == high and is_exclusive)


def _to_number(value: Json) -> float:
    """Returns the value if it is a number; 0 for any other value."""
    return value if isinstance(value, int | float) else 0.0
