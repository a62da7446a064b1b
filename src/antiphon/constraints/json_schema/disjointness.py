"""Proves that no value satisfies two schemas at once.

A schema is treated as a list of alternatives. An alternative is a list of schemas that all apply. Unknown
keywords are ignored. So an alternative can only accept more than the schema, and each proof stays valid.
"""

from collections.abc import Iterator, Mapping
from itertools import chain, islice, product

from antiphon.constraints.json_schema.keywords import Json, freeze
from antiphon.constraints.json_schema.schemas import Budget, Schema

MAX_DEPTH = 6
"""The most levels of nested schemas that are examined, references included."""

MAX_ALTERNATIVES = 24
"""The most alternatives of one schema. If a schema has more, none of them is examined."""

ALL_TYPES = frozenset("null boolean object array string integer fraction".split())
"""The types of values. A number is an integer or has a fraction."""

Alternative = tuple[Mapping[str, Json], ...]


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
        if depth > MAX_DEPTH or not self._budget.spend(1):
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
        if depth > MAX_DEPTH:
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
