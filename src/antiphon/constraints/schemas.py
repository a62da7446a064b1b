"""JSON Schemas: which keywords are kept, and the schema as the compiler gets it.

Every keyword of the caller's is kept exactly, is an annotation that asserts nothing, or is refused with its
name and place; the compiler would ignore some that it does not know. Refused besides is what the compiler
would accept and not keep: key counts where keys may repeat, numbers that a double cannot hold, references out
of the schema. Pure reading; whether the schema compiles in time is tried elsewhere.
"""

import json
from collections.abc import Iterator, Mapping, Set
from typing import NoReturn

from antiphon.constraints.formats import COMPILED, OWN
from antiphon.constraints.regexes import quotable, require_portable
from antiphon.errors import InvalidValue, UnsupportedParameter

MAX_DEPTH = 48
"""Schemas in schemas."""

MAX_SCHEMAS = 4096
"""Schemas in one schema."""

MAX_VALUES = 4096
"""Items of one enum, and values in it."""

MAX_OPTIONAL = 128
"""Properties of one object that may be left out: each may follow each, and from 1,000 on a mask fails."""

EXACT = 2**53
"""Largest integer that the compiler's numbers hold exactly."""

MAX_COUNT = 100_000
"""Largest length or number of items."""

DRAFTS = ("2020-12/schema", "2019-09/schema", "draft-07/schema", "draft-06/schema")

ANNOTATIONS = frozenset(
    "title description default examples $comment deprecated readOnly writeOnly contentMediaType "
    "contentEncoding contentSchema $schema $id".split()
)
"""They assert nothing, and the compiler does not see them."""

ONE = frozenset({"items", "additionalProperties"})
MANY = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
NAMED = frozenset({"properties", "$defs", "definitions"})
COUNTS = frozenset("minLength maxLength minItems maxItems minProperties maxProperties".split())
NUMBERS = frozenset("minimum maximum exclusiveMinimum exclusiveMaximum multipleOf".split())
PLAIN = frozenset({"type", "required", "pattern", "format", "const", "enum", "$ref"})
UNBUILT = frozenset(
    "not if then else contains minContains maxContains dependentRequired dependentSchemas dependencies "
    "propertyNames patternProperties unevaluatedItems unevaluatedProperties uniqueItems additionalItems "
    "$anchor $dynamicRef $dynamicAnchor $recursiveRef $recursiveAnchor $vocabulary".split()
)
TYPES = frozenset("null boolean object array number integer string".split())

Json = object


def compilable(source: str, field: str) -> Json:
    """The schema as the compiler gets it. Raises InvalidValue or UnsupportedParameter."""
    return _Reading(field).whole(parsed(source, field))


def relaxed(schema: Mapping[str, Json], field: str) -> tuple[Mapping[str, Json], tuple[str, ...]]:
    """The schema less what cannot be kept, which accepts more, and the keywords that were left out. Raises
    InvalidValue for what is no schema."""
    reading = _Relaxing(field)
    made = reading.whole(schema)
    return (made if isinstance(made, dict) else {}), tuple(dict.fromkeys(reading.left_out))


def parsed(source: str, field: str) -> Json:
    """JSON without NaN, doubled keys and halves of surrogate pairs. Raises InvalidValue."""
    try:
        value: Json = json.loads(source, object_pairs_hook=_once, parse_constant=_no_constant)
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InvalidValue(
            f"{field} holds half of a surrogate pair, which is no character", param=field
        ) from None
    except (ValueError, RecursionError) as problem:
        raise InvalidValue(f"{field} is no valid JSON: {problem}", param=field) from None
    return value


def _once(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


class _Reading:
    """One schema on its way through."""

    def __init__(self, field: str) -> None:
        self._field = field
        self._places: set[str] = set()
        """Pointers of all schemas met."""
        self._references: list[tuple[str, str]] = []
        """Place and target of every `$ref`."""
        self._old = False
        """Whether the schema names a draft that has no prefixItems."""

    def whole(self, schema: Json) -> Json:
        """Reads from the root."""
        if isinstance(schema, dict):
            self._take_draft(schema)
        made = self._schema(schema, "#", 0)
        self._require_references()
        return made

    def _require_references(self) -> None:
        for place, target in self._references:
            if target not in self._places:
                self._unsupported(
                    "$ref", place, f"{target!r} is not a schema inside this one, written as #/$defs/NAME"
                )

    def _take_draft(self, schema: Mapping[str, Json]) -> None:
        draft = schema.get("$schema", DRAFTS[0])
        if not isinstance(draft, str) or not draft.rstrip("#").endswith(DRAFTS):
            self._unsupported("$schema", "#", f"the drafts are {', '.join(DRAFTS)}")
        self._old = not draft.rstrip("#").endswith(DRAFTS[0])

    def _schema(self, schema: Json, place: str, depth: int) -> Json:
        self._places.add(place)
        if len(self._places) > MAX_SCHEMAS or depth > MAX_DEPTH:
            raise InvalidValue(
                f"{self._field} may hold {MAX_SCHEMAS} schemas, {MAX_DEPTH} deep", param=self._field
            )
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            self._wrong("a schema", place, "must be an object, true or false")
        made: dict[str, Json] = {}
        for name, value in schema.items():
            if name not in ANNOTATIONS:
                made.update(self._keyword(name, value, place, depth))
            elif name == "$id" and depth:
                self._unsupported(name, place, "it would change what references mean")
        self._require_countable(made, place)
        return self._with_format(made, place)

    def _keyword(self, name: str, value: Json, place: str, depth: int) -> dict[str, Json]:
        """The keyword as the compiler gets it; nothing when it asserts nothing."""
        here = f"{place}/{name}"
        if name in ONE:
            return {name: self._schema(value, here, depth + 1)}
        if name in MANY:
            if name == "prefixItems" and self._old:
                self._unsupported(name, place, "the draft that $schema names does not have it")
            if not isinstance(value, list) or not value:
                self._wrong(name, place, "must be a list of schemas")
            return {name: [self._schema(each, f"{here}/{at}", depth + 1) for at, each in enumerate(value)]}
        if name in NAMED:
            if not isinstance(value, dict):
                self._wrong(name, place, "must be an object of schemas")
            return {
                name: {key: self._schema(each, f"{here}/{key}", depth + 1) for key, each in value.items()}
            }
        if name == "uniqueItems" and value is False:
            return {}
        if name in COUNTS | NUMBERS | PLAIN:
            self._require_value(name, value, place)
            return {
                name: self._pattern(value, place) if name == "pattern" and isinstance(value, str) else value
            }
        unbuilt = (
            "it cannot be kept while generating" if name in UNBUILT else "no keyword of that name is known"
        )
        return self._unsupported(name, place, f"{unbuilt}; leave it out")

    # --- values

    def _require_value(self, name: str, value: Json, place: str) -> None:
        if name in COUNTS:
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_COUNT:
                self._wrong(name, place, f"must be an integer from 0 to {MAX_COUNT}")
        elif name in NUMBERS:
            if not _is_exact(value):
                self._wrong(name, place, "must be a number, up to 2^53 either way")
            if name == "multipleOf" and not (isinstance(value, int | float) and value > 0):
                self._wrong(name, place, "must be above 0")
        elif name in ("const", "enum"):
            self._require_data(name, value, place)
        elif name == "type":
            self._require_types(value, place)
        elif name == "required":
            if not _is_texts(value):
                self._wrong(name, place, "must be a list of texts")
        else:
            self._require_text(name, value, place)

    def _require_text(self, name: str, value: Json, place: str) -> None:
        if not isinstance(value, str):
            self._wrong(name, place, "must be a text")
        if name == "$ref":
            if "~" in value or "%" in value:
                self._unsupported(name, place, "names with ~ or % cannot be pointed to")
            self._references.append((place, value))
        elif name == "format" and value not in OWN and value not in COMPILED:
            known = ", ".join(sorted([*OWN, *COMPILED]))
            self._unsupported(name, place, f"the format {value[:64]!r} is not known; known are {known}")

    def _pattern(self, value: str, place: str) -> str:
        """The pattern as the compiler gets it."""
        try:
            require_portable(value, self._field)
            return quotable(value, self._field)
        except InvalidValue as problem:
            self._wrong("pattern", place, f"cannot be taken: {problem.message}")

    def _require_types(self, value: Json, place: str) -> None:
        named = value if isinstance(value, list) else [value]
        if not named or not all(isinstance(each, str) and each in TYPES for each in named):
            self._wrong("type", place, f"must be one or several of {', '.join(sorted(TYPES))}")

    def _require_data(self, name: str, value: Json, place: str) -> None:
        if name == "enum" and (not isinstance(value, list) or not value):
            self._wrong(name, place, "must be a list of values")
        for count, each in enumerate(_values(value)):
            if count > MAX_VALUES:
                self._wrong(name, place, f"may hold {MAX_VALUES} values")
            if isinstance(each, int | float) and not isinstance(each, bool) and not _is_exact(each):
                self._wrong(name, place, "may hold numbers up to 2^53 either way")

    # --- what keywords mean together

    def _require_countable(self, made: dict[str, Json], place: str) -> None:
        required = made.get("required", [])
        least, properties = made.get("minProperties", 0), made.get("properties", {})
        if not isinstance(required, list) or not isinstance(least, int) or not isinstance(properties, dict):
            return
        if least > max(1, len(set(required))):
            self._unsupported("minProperties", place, "above 1 it needs as many required properties")
        if len(properties.keys() - set(required)) > MAX_OPTIONAL:
            self._wrong("properties", place, f"may hold {MAX_OPTIONAL} that are not required")

    def _with_format(self, made: dict[str, Json], place: str) -> dict[str, Json]:
        """The same schema, with the format said as a pattern or bounded where it has a regex of ours."""
        name = made.get("format")
        if not isinstance(name, str):
            return made
        extra: dict[str, Json] | None = None
        if name in OWN:
            del made["format"]
            extra = {"pattern": f"^{OWN[name]}$"}
        elif (most := COMPILED[name]) is not None:
            extra = {"maxLength": most}
        if extra is None:
            return made
        if made.keys() & extra.keys():
            return {"allOf": [made, extra]}
        return made | extra

    # --- refusals

    def _wrong(self, name: str, place: str, says: str) -> NoReturn:
        raise InvalidValue(f"{name} at {place[:200]} of {self._field} {says}", param=self._field)

    def _unsupported(self, name: str, place: str, says: str) -> NoReturn:
        raise UnsupportedParameter(
            f"the keyword {name[:64]} at {place[:200]} of {self._field} is not supported: {says}",
            param=self._field,
        )


class _Relaxing(_Reading):
    """Leaves out what the other one refuses."""

    def __init__(self, field: str) -> None:
        super().__init__(field)
        self.left_out: list[str] = []

    def whole(self, schema: Json) -> Json:
        made = super().whole(schema)
        missing = {target for _, target in self._references if target not in self._places}
        return _without(made, missing) if missing else made

    def _take_draft(self, schema: Mapping[str, Json]) -> None:
        try:
            super()._take_draft(schema)
        except UnsupportedParameter:
            self.left_out.append("$schema")

    def _keyword(self, name: str, value: Json, place: str, depth: int) -> dict[str, Json]:
        try:
            if name == "oneOf":
                # Kept only where no two of them can hold at once, which nobody can tell from here.
                self.left_out.append(name)
                return {"anyOf": super()._keyword(name, value, place, depth)[name]}
            return super()._keyword(name, value, place, depth)
        except UnsupportedParameter:
            self.left_out.append(name)
        except InvalidValue:
            if name != "pattern":
                raise
            self.left_out.append(name)
        return {}

    def _require_countable(self, made: dict[str, Json], place: str) -> None:
        try:
            super()._require_countable(made, place)
        except UnsupportedParameter:
            self.left_out.append("minProperties")
            del made["minProperties"]

    def _require_references(self) -> None:
        if any(target not in self._places for _, target in self._references):
            self.left_out.append("$ref")


def _without(schema: Json, targets: Set[str]) -> Json:
    """The same, without references to what is not there."""
    if isinstance(schema, list):
        return [_without(each, targets) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: _without(each, targets)
        for name, each in schema.items()
        if not (name == "$ref" and isinstance(each, str) and each in targets)
    }


def _is_exact(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -EXACT <= value <= EXACT


def _is_texts(value: Json) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _values(value: Json) -> Iterator[Json]:
    """A value and all that are in it."""
    yield value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for each in inner:
        yield from _values(each)
