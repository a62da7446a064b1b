"""Rewrites a schema in the keywords that the compiler supports. Lists the keywords that cannot be rewritten.

Each unsupported keyword becomes additional schemas under `allOf`. The compiler multiplies the alternatives of
these schemas, so the number of alternatives is limited.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor
from typing import NoReturn

from antiphon.constraints.json_schema.intersections import (
    drop_beside_cycles,
    drop_overlapping_patterns,
)
from antiphon.constraints.json_schema.lengths import walk_schemas
from antiphon.constraints.json_schema.objects import (
    bound_properties,
    close_unevaluated,
    write_dependencies,
    write_patterns,
    write_property_names,
)
from antiphon.constraints.json_schema.reader import MAX_DEPTH, MAX_WRITTEN_DEPTH, read_schema
from antiphon.constraints.json_schema.schema_logic import (
    CannotNegateError,
    Disjointness,
    as_schema,
    build_any_of,
    negate,
)
from antiphon.constraints.json_schema.schemas import (
    EXACT,
    HIDDEN,
    NEXT,
    OPENED,
    PLACE,
    PREFIX,
    SMALLEST,
    Budget,
    Json,
    ReadSchema,
    Relaxation,
    Schema,
    read_place,
    refuse_relaxed,
)
from antiphon.constraints.shared_schemas import share_schema
from antiphon.domain.messages import SharedSchema
from antiphon.domain.values import Struct
from antiphon.errors import InvalidValue

EXCLUSIVE_BOUNDS = (
    ("exclusiveMinimum", "minimum", 1),
    ("exclusiveMaximum", "maximum", -1),
)
"""The keyword of each exclusive bound, that of the inclusive bound, and the direction of allowed numbers."""

COMBINED = frozenset(
    "allOf oneOf not if contains dependentSchemas patternProperties unevaluatedItems "
    "unevaluatedProperties".split()
)
"""Keywords with which several schemas can apply to one value."""

MAX_DECIMALS = 10
"""The most digits behind the point that the compiler can limit with `multipleOf`."""

DOUBLE_DIGITS = 15
"""The digits that a double always distinguishes."""

SINGLE_KEYWORDS = frozenset({"items", "additionalProperties"})
LIST_KEYWORDS = frozenset({"anyOf", "allOf", "prefixItems"})
NAMED_KEYWORDS = frozenset({"properties", "patternProperties"})
"""Keywords that contain a schema, a list of schemas, or schemas by name."""

ADJACENT_KEYWORDS = (
    ("properties", "patternProperties", "additionalProperties", "required", "minProperties", "maxProperties"),
    ("prefixItems", "items", "minItems", "maxItems"),
)
"""Groups of keywords whose meaning depends on each other. The compiler reads the keywords of a group together
only if they are adjacent."""

COMPANIONS = frozenset({"then", "else", "minContains", "maxContains"})
"""Keywords that only change the meaning of another keyword. They are rewritten together with it."""

NOT_ENFORCED = "it cannot be enforced while generating"

REACHED = "a number with many digits can be the bound itself once it is parsed"

MAX_OPTIONAL = 240
"""The most optional properties of one object. The compiler counts four for each of them, and allows 1,000."""

BEGINNING_ITEMS, LATER_ITEMS = 4, 2
"""The items in one row of the compiler's parser for an optional property: at the beginning of an object, and
after a required property."""

MAX_OPTIONAL_ITEMS = 3_840
"""The most items for optional properties in one row: those of 960 properties at the beginning of objects. The
rest of `matching.MAX_ROW_ITEMS` is for all else."""

MAX_BRANCHES = 256
"""The most alternatives of a oneOf that are examined."""

MAX_COUNTED_DEPTH = 4
"""The most levels of alternatives and references in which optional properties are counted."""

MAX_EXCLUDED = 5
"""The most alternatives of a oneOf that can be rewritten so that each one excludes the others."""

MAX_POSITIONS = 8
"""The most items of an array with `contains`."""

MAX_PRODUCT = 64
"""The most combined alternatives of the schemas that apply at once."""

MAX_WRITTEN = 16_384
"""The most schemas that one schema may become."""


@dataclass
class _AlternativeBudget:
    """Counts the combined alternatives of schemas that apply at once."""

    product: int = 1

    def multiply(self, factor: int) -> bool:
        """Multiplies the number of alternatives by `factor`, unless the result exceeds the limit. Returns
        whether it was multiplied."""
        if factor > 1 and self.product * factor > MAX_PRODUCT:
            return False
        self.product *= factor
        return True


def lower_schema(read: ReadSchema, field_name: str) -> Schema:
    """Writes the schema and its definitions for the compiler. Raises InvalidValue if the result becomes too
    large."""
    return _Lowering(read, field_name).lower()


class _Lowering:
    """Writes one schema for the compiler."""

    def __init__(self, read: ReadSchema, field_name: str) -> None:
        self._definitions = read.definitions
        self._read = read
        self._field = field_name
        self._budget = Budget()
        self._disjointness = Disjointness(read.definitions, self._budget)
        self._written_count = 0
        schemas = list(walk_schemas([read.root, *read.definitions.values()]))
        self._can_limit_digits = not any("multipleOf" in each for each in schemas) or not any(
            each.keys() & COMBINED or (each.keys() & {"anyOf", "$ref"} and len(each.keys() - HIDDEN) > 1)
            for each in schemas
        )
        """Whether no number has the `multipleOf` of two schemas if bounds add theirs. The compiler
        miscalculates common multiples with many digits."""
        self._queue: list[str] = []
        self._queued_names: set[str] = set()
        self._writers: dict[str, Callable[[Mapping[str, Json]], list[Schema] | None]] = {
            "not": self._write_not,
            "if": self._write_if,
            "contains": _write_contains,
            "uniqueItems": lambda schema: [] if schema.get("maxItems") in (0, 1) else None,
            "dependentRequired": lambda schema: write_dependencies(
                _get_object(schema, "dependentRequired"), {}
            ),
            "dependentSchemas": lambda schema: write_dependencies(
                {}, _get_object(schema, "dependentSchemas")
            ),
            "propertyNames": lambda schema: write_property_names(schema, as_schema(schema["propertyNames"])),
            "unevaluatedProperties": lambda schema: close_unevaluated(
                schema, self._definitions, self._budget
            ),
            "unevaluatedItems": _write_unevaluated_items,
        }
        """The writer of each unsupported keyword. It returns schemas that apply additionally, or None if the
        keyword cannot be enforced."""

    def lower(self) -> Schema:
        """Writes the root, then the definitions that it needs."""
        root = self._lower_schema(self._read.root, _AlternativeBudget())
        definitions: dict[str, Json] = {}
        while self._queue:
            name = self._queue.pop()
            definitions[name] = self._lower_schema(self._definitions[name], _AlternativeBudget())
        drop_overlapping_patterns(root, definitions, self._relax_anywhere, self._budget)
        drop_beside_cycles(root, definitions, self._relax_anywhere, self._budget)
        for schema in walk_schemas([root, *definitions.values()]):
            if "anyOf" in schema and self._count_row_items(schema, definitions) > MAX_OPTIONAL_ITEMS:
                raise InvalidValue(
                    f"the alternatives at one place of {self._field} can have at most "
                    f"{MAX_OPTIONAL_ITEMS // BEGINNING_ITEMS} optional properties together",
                    param=self._field,
                )
        if isinstance(root, dict) and definitions:
            root["$defs"] = definitions
        return root

    def _count_row_items(self, schema: Json, definitions: Mapping[str, Json]) -> int:
        """Returns the most items for optional properties in one row, of all objects that can begin where a
        schema applies."""
        items_by_place: Counter[_Place] = Counter()
        _count_optional(schema, definitions, self._budget, items_by_place)
        return max(
            (
                items + (items_by_place[names, None] if values is not None else 0)
                for (names, values), items in tuple(items_by_place.items())
            ),
            default=0,
        )

    def _lower_schema(self, schema: Json, budget: _AlternativeBudget) -> Schema:
        """Writes one schema and the schemas in it for the compiler. Raises InvalidValue if there are too many
        schemas or optional properties."""
        self._written_count += 1
        if self._written_count > MAX_WRITTEN:
            raise InvalidValue(f"{self._field} becomes too large; split it", param=self._field)
        if not isinstance(schema, dict):
            return schema is not False
        remaining, additions = self._rewrite(schema, budget)
        lowered: dict[str, Json] = {
            name: self._lower_value(name, remaining[name], budget) for name in _order_keywords(remaining)
        }
        if additions:
            all_of = lowered.get("allOf")
            lowered_additions = [self._lower_schema(each, budget) for each in additions]
            lowered["allOf"] = [*(all_of if isinstance(all_of, list) else []), *lowered_additions]
        return lowered

    def _lower_value(self, name: str, value: Json, budget: _AlternativeBudget) -> Json:
        """Writes the schemas in the value of one keyword for the compiler. Queues the definitions to which
        they refer."""
        if name in SINGLE_KEYWORDS:
            return self._lower_schema(value, _AlternativeBudget())
        if name in LIST_KEYWORDS and isinstance(value, list):
            return [
                self._lower_schema(each, budget if name == "allOf" else _AlternativeBudget())
                for each in value
            ]
        if name in NAMED_KEYWORDS and isinstance(value, dict):
            return {key: self._lower_schema(each, _AlternativeBudget()) for key, each in value.items()}
        if name == "$ref" and isinstance(value, str) and value != "#":
            definition = value.removeprefix("#/$defs/")
            if definition not in self._queued_names:
                self._queued_names.add(definition)
                self._queue.append(definition)
        return value

    def _rewrite(
        self, schema: Mapping[str, Json], budget: _AlternativeBudget
    ) -> tuple[dict[str, Json], list[Schema]]:
        """Rewrites one schema. Returns the keywords that stay, and the schemas that apply in addition."""
        replaced = HIDDEN | COMPANIONS | self._writers.keys() | {"oneOf"}
        remaining = {name: value for name, value in schema.items() if name not in replaced}
        place = schema.get(PLACE)
        additions = self._write_one_of(schema) if "oneOf" in schema else []
        for name, writer in self._writers.items():
            written = writer(schema) if name in schema else []
            if written is None or not budget.multiply(_count_alternatives(written)):
                self._relax(name, place)
            else:
                additions += written
        is_closed = remaining.get("additionalProperties", True) is not True
        if not write_patterns(remaining):
            self._relax("patternProperties", place, "a name may match two of its patterns")
            if is_closed:
                self._relax("additionalProperties", place, OPENED)
        for name in _include_bounds(remaining, self._can_limit_digits):
            self._relax(name, place, REACHED)
        more_additions, unenforced = bound_properties(remaining)
        for name in unenforced:
            self._relax(name, place)
        self._require_few_optional(remaining)
        return remaining, additions + more_additions

    def _relax(self, keyword: str, place: Json, reason: str = NOT_ENFORCED) -> None:
        """Adds a relaxation: a keyword that is not enforced."""
        self._read.relaxations.add(keyword, read_place(place), reason)

    def _relax_anywhere(self, keyword: str, reason: str) -> None:
        """Adds a relaxation whose place is no longer known."""
        self._relax(keyword, None, reason)

    def _require_few_optional(self, schema: Mapping[str, Json]) -> None:
        """Raises InvalidValue if an object has more than MAX_OPTIONAL optional properties."""
        properties, required = schema.get("properties"), schema.get("required")
        if not isinstance(properties, dict) or len(properties) <= MAX_OPTIONAL:
            return
        names = {*(required if isinstance(required, list) else [])}
        if sum(name not in names and each is not False for name, each in properties.items()) > MAX_OPTIONAL:
            raise InvalidValue(
                f"an object of {self._field} can have at most {MAX_OPTIONAL} optional properties",
                param=self._field,
            )

    # --- keywords

    def _write_one_of(self, schema: Mapping[str, Json]) -> list[Schema]:
        """Writes `oneOf` as `anyOf`, if it is proved that no value satisfies two of its schemas. Without a
        proof, writes each schema so that it excludes all other schemas."""
        value = schema["oneOf"]
        branches = [as_schema(each) for each in value if each is not False] if isinstance(value, list) else []
        context = {name: schema[name] for name in ("type", "properties", "required") if name in schema}
        if len(branches) <= MAX_BRANCHES and all(
            self._disjointness.are_disjoint({"allOf": [context, branch]}, other)
            for index, branch in enumerate(branches)
            for other in branches[index + 1 :]
        ):
            return [build_any_of(branches)]
        if len(branches) <= MAX_EXCLUDED:
            try:
                return [build_any_of(self._exclude_others(branches))]
            except CannotNegateError:
                pass
        self._relax("oneOf", schema.get(PLACE), "a value may satisfy two of its schemas; write anyOf")
        return [build_any_of(branches)]

    def _exclude_others(self, branches: list[Schema]) -> list[Schema]:
        """Returns each branch together with the negations of all other branches. Raises CannotNegateError if
        there is no negation, or if there are too many alternatives."""
        negations = [negate(each, self._definitions, self._budget) for each in branches]
        if _count_alternatives(negations) > MAX_PRODUCT:
            raise CannotNegateError
        return [
            {"allOf": [branch, *negations[:index], *negations[index + 1 :]]}
            for index, branch in enumerate(branches)
        ]

    def _write_not(self, schema: Mapping[str, Json]) -> list[Schema] | None:
        """Writes `not` as the negation of its schema. Returns None if the negation cannot be written."""
        try:
            return [negate(as_schema(schema["not"]), self._definitions, self._budget)]
        except CannotNegateError:
            return None

    def _write_if(self, schema: Mapping[str, Json]) -> list[Schema] | None:
        """Writes `if` as two alternatives: the condition with `then`, and its negation with `else`. Returns
        None if the condition has no negation."""
        condition = as_schema(schema["if"])
        then_schema, else_schema = as_schema(schema.get("then", True)), as_schema(schema.get("else", True))
        if isinstance(condition, bool):
            return [then_schema if condition else else_schema]
        if then_schema is True and else_schema is True:
            return []
        try:
            negation = negate(condition, self._definitions, self._budget)
        except CannotNegateError:
            return None
        else_branch: Schema = negation if else_schema is True else {"allOf": [negation, else_schema]}
        return [build_any_of([else_branch, {"allOf": [condition, then_schema]}])]


def _get_object(schema: Mapping[str, Json], name: str) -> Mapping[str, Json]:
    """Returns the value of a keyword if it is an object; an empty object for any other value."""
    value = schema[name]
    return value if isinstance(value, dict) else {}


_Place = tuple[tuple[str, ...], str | None]
"""A place in objects: the required properties before it, and their values in JSON. The values are None if one
of them is not fixed. Objects share a row of the parser at a place that they have in common."""


def _count_optional(
    schema: Json,
    definitions: Mapping[str, Json],
    budget: Budget,
    items_by_place: Counter[_Place],
    depth: int = 0,
) -> None:
    """Adds the items for the optional properties of all objects that can begin where the schema applies."""
    if not isinstance(schema, dict) or depth > MAX_COUNTED_DEPTH or not budget.spend(1):
        return
    properties, required = schema.get("properties"), schema.get("required")
    if isinstance(properties, dict):
        required_names = {*(required if isinstance(required, list) else [])}
        names: tuple[str, ...] = ()
        values: str | None = ""
        optional_count = 0
        for name, value in (*properties.items(), (None, None)):
            if name is not None and name not in required_names:
                optional_count += value is not False
                continue
            if optional_count:
                items = optional_count * LATER_ITEMS + 1 if names else optional_count * BEGINNING_ITEMS
                items_by_place[names, values] += items
                optional_count = 0
            if name is not None:
                names = (*names, name)
                fixed_value = _find_fixed_value(value)
                values = None if values is None or fixed_value is None else f"{values},{fixed_value}"
    if isinstance(reference := schema.get("$ref"), str):
        target = definitions.get(reference.removeprefix(PREFIX))
        _count_optional(target, definitions, budget, items_by_place, depth + 1)
    for keyword in ("anyOf", "allOf"):
        branches = schema.get(keyword)
        for each in branches if isinstance(branches, list) else ():
            _count_optional(each, definitions, budget, items_by_place, depth + 1)


def _find_fixed_value(schema: Json) -> str | None:
    """Returns the only value of a schema in JSON; None if there may be several."""
    if not isinstance(schema, dict):
        return None
    if "const" in schema:
        return json.dumps(schema["const"])
    values = schema.get("enum")
    return json.dumps(values[0]) if isinstance(values, list) and len(values) == 1 else None


def _order_keywords(schema: Mapping[str, Json]) -> Iterator[str]:
    """Yields the names of keywords, so that the keywords of each group of ADJACENT_KEYWORDS are adjacent."""
    written: set[str] = set()
    for name in schema:
        group = next((each for each in ADJACENT_KEYWORDS if name in each), (name,))
        if group[0] not in written:
            written.add(group[0])
            yield from (each for each in group if each in schema)


def _count_alternatives(schemas: list[Schema]) -> int:
    """Returns the number of alternatives that the compiler makes of schemas that all apply."""
    count = 1
    for each in schemas:
        if isinstance(each, dict):
            all_of, any_of = each.get("allOf"), each.get("anyOf")
            count *= _count_alternatives(all_of) if isinstance(all_of, list) else 1
            if isinstance(any_of, list):
                count *= sum(_count_alternatives([branch]) for branch in any_of)
    return count


def _include_bounds(schema: dict[str, Json], can_limit_digits: bool) -> list[str]:
    """Changes exclusive bounds so that no text reaches them once it is parsed, as 0.99999999999999999 reaches
    1. Changes the schema. Returns the keywords of the bounds that a text can still reach.

    An exclusive bound on the side of 0 becomes an inclusive bound next to it. (The compiler also allows such
    a bound itself if the other bound is less than 1 away.) For the compiler, an inclusive bound on the other
    side excludes its own first digits, as 0.9 with 0.99. So there, numbers get fewer digits instead.
    """
    types, own_step = schema.get("type", "number"), schema.get("multipleOf")
    if types == "integer":  # the compiler counts integers correctly
        return []
    reached: list[str] = []
    for keyword, inclusive, direction in EXCLUSIVE_BOUNDS:
        bound, other_bound = schema.get(keyword), schema.get(inclusive)
        if not isinstance(bound, int | float):
            continue
        if bound * direction < 0 and abs(bound) <= EXACT:
            digits = min(MAX_DECIMALS, DOUBLE_DIGITS - len(str(int(abs(bound)))))
            step, other_step = 10.0**-digits, schema.get("multipleOf")
            has_few_digits = isinstance(own_step, int | float) and own_step >= step
            if own_step is None and can_limit_digits and _has_multiple(schema, digits):
                schema["multipleOf"] = max(step, other_step) if isinstance(other_step, float) else step
            elif not has_few_digits and isinstance(types, str | list) and "number" in types:
                reached.append(keyword)
            continue
        next_bound = bound * NEXT if bound * direction > 0 else bound / NEXT or SMALLEST * direction
        del schema[keyword]
        if not isinstance(other_bound, int | float) or (other_bound - next_bound) * direction < 0:
            schema[inclusive] = next_bound
    return reached


def _has_multiple(schema: Mapping[str, Json], digits: int) -> bool:
    """Whether a number with at most `digits` digits behind the point is within the bounds of a schema."""
    minimum, above, maximum, below = (
        None if (bound := schema.get(keyword)) is None else Fraction(str(bound)) * 10**digits
        for keyword in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
    )
    lows = [*([] if minimum is None else [ceil(minimum)]), *([] if above is None else [floor(above) + 1])]
    highs = [*([] if maximum is None else [floor(maximum)]), *([] if below is None else [ceil(below) - 1])]
    return not lows or not highs or max(lows) <= min(highs)


def _write_contains(schema: Mapping[str, Json]) -> list[Schema] | None:
    """Writes `contains` as one alternative for each position. Returns None if there are too many
    positions."""
    min_contains, max_contains = schema.get("minContains", 1), schema.get("maxContains")
    max_items = schema.get("maxItems")
    if min_contains == 0 and max_contains is None:
        return []
    if min_contains != 1 or max_contains is not None:
        return None
    if not isinstance(max_items, int) or max_items > MAX_POSITIONS:
        return None
    alternatives: list[Schema] = [
        {"type": "array", "prefixItems": [*([True] * index), schema["contains"]], "minItems": index + 1}
        for index in range(max_items)
    ]
    return [build_any_of([*alternatives, {"type": ["null", "boolean", "object", "number", "string"]}])]


def _write_unevaluated_items(schema: Mapping[str, Json]) -> list[Schema] | None:
    """Writes `unevaluatedItems` as `items`. Returns None if another keyword evaluates items too."""
    if schema["unevaluatedItems"] is True or "items" in schema:
        return []
    if schema.keys() & {"anyOf", "allOf", "oneOf", "$ref", "if", "not", "contains", "dependentSchemas"}:
        return None
    prefix = schema.get("prefixItems")
    evaluated: list[Json] = [True] * len(prefix) if isinstance(prefix, list) else []
    prefix_items: dict[str, Json] = {"prefixItems": evaluated} if evaluated else {}
    return [prefix_items | {"items": schema["unevaluatedItems"]}]


REFERENCES = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})
"""Keywords that refer to a whole schema. Without its target, a reference would allow any value."""


class NormalizedSchema(Struct, frozen=True):
    """A schema in the keywords that the compiler supports."""

    schema: Schema
    relaxations: tuple[Relaxation, ...]
    """The keywords of the original schema that are not fully enforced."""


def normalize_schema(schema: Json, field: str, max_depth: int = MAX_DEPTH) -> NormalizedSchema:
    """Reads a schema of any draft. Raises InvalidValue for a value that is not a schema, or is too large."""
    try:
        read = read_schema(schema, field, max_depth)
        lowered = lower_schema(read, field)
    except RecursionError:
        raise InvalidValue(f"{field} is nested too deep", param=field) from None
    return NormalizedSchema(lowered, read.relaxations.list())


def relax_schema(
    schema: Json | SharedSchema, field: str, without_references: bool = False
) -> tuple[Schema, tuple[str, ...]]:
    """Returns the schema that the compiler enforces, and the keywords that are not fully enforced. Raises
    InvalidValue.

    Raises UnsupportedParameter for a reference without a target in the document, unless `without_references`
    is set. The results are remembered, because most requests of one application have the same schemas. Do not
    change them.
    """
    if isinstance(schema, dict):
        schema = share_schema(schema)
    if not isinstance(schema, SharedSchema):
        return _relax(schema, field, without_references)
    source = schema.schema
    key = (relax_schema, without_references)
    return schema.remember(key, lambda: _relax(source, field, without_references))


def _relax(schema: Json, field: str, without_references: bool) -> tuple[Schema, tuple[str, ...]]:
    normalized = normalize_schema(schema, field)
    if not without_references:
        refuse_relaxed((each for each in normalized.relaxations if each.keyword in REFERENCES), field)
    return normalized.schema, tuple(each.keyword for each in normalized.relaxations)


def make_compilable(source: str, field: str) -> Schema:
    """Returns the schema for the compiler. Raises UnsupportedParameter for a keyword that is not fully
    enforced, and InvalidValue. A bound that a text can still reach stays in a relaxed schema, so it is no
    reason to refuse the schema here."""
    normalized = normalize_schema(parse_json(source, field), field, MAX_WRITTEN_DEPTH)
    refuse_relaxed((each for each in normalized.relaxations if each.reason != REACHED), field)
    return normalized.schema


def parse_json(source: str, field: str) -> Json:
    """Parses JSON. Raises InvalidValue, also for NaN, duplicate keys and lone surrogates."""
    try:
        value: Json = json.loads(source, object_pairs_hook=_build_object, parse_constant=_refuse_constant)
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InvalidValue(
            f"{field} holds half of a surrogate pair, which is no character", param=field
        ) from None
    except (ValueError, RecursionError) as problem:
        raise InvalidValue(f"{field} is no valid JSON: {problem}", param=field) from None
    return value


def _build_object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    """Builds an object from its pairs. Raises ValueError for a duplicate key."""
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("an object has a key twice")
    return members


def _refuse_constant(name: str) -> NoReturn:
    """Raises ValueError for NaN and the infinities, which Python's parser would accept."""
    raise ValueError(f"{name} is no number of JSON")
