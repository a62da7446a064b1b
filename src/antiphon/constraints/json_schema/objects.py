"""Rewrites keywords about objects that the compiler does not support, or supports only in some schemas."""

import re
from collections.abc import Iterator, Mapping

from antiphon.constraints.json_schema.schema_logic import as_schema
from antiphon.constraints.json_schema.schemas import HIDDEN, INEXACT, Budget, Json, Schema

MAX_COUNTED = 16
"""The most optional properties of an object that must have at least one property."""

MAX_NAMES = 64
"""The most names in a `propertyNames`."""

MAX_DEPTH = 12
"""The most references that are followed to find the evaluated properties."""

IN_PLACE = frozenset("anyOf oneOf if dependentSchemas".split())
"""Keywords that evaluate properties only in some objects."""

# --- counts

FIRST_CHARACTERS = re.compile(
    r"\^(?:([A-Za-z0-9_:@ /-])|\\([.$/_-])|\\(d)|\[((?:[A-Za-z0-9_.:@$ -]|\\[.$/_])+)\])(?![*?{])"
)
"""The beginning of a pattern whose first characters are known: a character, an escaped one, a digit, a
class."""

LITERAL = re.compile(r"(?:[A-Za-z0-9_:@ /-]|\\[.$/_-])+")
"""A pattern that matches only its own text."""

FIXED_NAMES = re.compile(r"\^(?:\((?:\?:)?([^()]*)\)|([^()|]*))\$")
"""A whole pattern that matches one or several texts."""

CLASS_RANGE = re.compile(r"(.)-(.)|(.)")


def bound_properties(schema: dict[str, Json]) -> tuple[list[Schema], list[str]]:
    """Replaces counts of properties that the compiler does not support. Changes the schema. Returns schemas
    that apply in addition, and the keywords that cannot be enforced."""
    required, properties = schema.get("required"), schema.get("properties")
    names = {*(required if isinstance(required, list) else [])}
    optional = [
        name
        for name, each in (properties.items() if isinstance(properties, dict) else ())
        if name not in names and each is not False
    ]
    additions: list[Schema] = []
    unenforced: list[str] = []
    if not _can_enforce_maximum(schema, len(names), len(optional)):
        unenforced.append("maxProperties")
        del schema["maxProperties"]
    min_properties = schema.get("minProperties", 0)
    if isinstance(min_properties, int) and min_properties <= len(names):
        schema.pop("minProperties", None)
    elif min_properties != 1:
        unenforced.append("minProperties")
        del schema["minProperties"]
    elif optional and "maxProperties" not in schema and len(optional) <= MAX_COUNTED:
        del schema["minProperties"]
        additions.append(_require_one_of(optional, schema))
    elif optional and not _is_closed(schema):
        unenforced.append("minProperties")
        del schema["minProperties"]
    return additions, unenforced


def _can_enforce_maximum(schema: dict[str, Json], required: int, optional: int) -> bool:
    """Whether the compiler can enforce the maximum of properties. Removes a maximum without effect from the
    schema."""
    max_properties = schema.get("maxProperties")
    if not isinstance(max_properties, int) or (not optional and required <= max_properties):
        return True
    if _is_closed(schema) and required + optional <= max_properties:
        del schema["maxProperties"]
        return True
    return _is_closed(schema) and max_properties - required == 1


def _is_closed(schema: Mapping[str, Json]) -> bool:
    """Whether a schema accepts only declared properties."""
    return schema.get("additionalProperties") is False and "patternProperties" not in schema


def _require_one_of(optional: list[str], schema: Mapping[str, Json]) -> Schema:
    """Requires one of the optional properties, or an additional one. Each alternative excludes the names of
    the alternatives before it."""
    branches: list[Schema] = []
    for index, name in enumerate(optional):
        absent: dict[str, Json] = dict.fromkeys(optional[:index], False)
        branches.append({"properties": absent, "required": [name]} if absent else {"required": [name]})
    if not _is_closed(schema):
        branches.append({"properties": dict.fromkeys(optional, False), "minProperties": 1})
    return {"anyOf": branches}


# --- names


def write_property_names(schema: Mapping[str, Json], names: Schema) -> list[Schema] | None:
    """Returns schemas that replace `propertyNames`; None if the keyword cannot be replaced."""
    if isinstance(names, bool):
        return [] if names else [{"maxProperties": 0}]
    keywords = {name: value for name, value in names.items() if name not in HIDDEN}
    if keywords.get("type") == "string":
        del keywords["type"]
    if INEXACT in names or len(keywords) > 1 or "patternProperties" in schema:
        return None if keywords else []
    if not keywords:
        return []
    ((name, value),) = keywords.items()
    allowed = [value] if name == "const" else value
    if name in ("const", "enum") and isinstance(allowed, list) and len(allowed) <= MAX_NAMES:
        properties = {each: True for each in allowed if isinstance(each, str)}
        return [{"properties": properties, "additionalProperties": False}]
    pattern = value if name == "pattern" else _build_length_pattern(name, value)
    return [{"patternProperties": {pattern: True}, "additionalProperties": False}] if pattern else None


def _build_length_pattern(name: str, value: Json) -> str | None:
    """Returns the pattern of names that satisfy `minLength` or `maxLength`; None for other keywords."""
    counts = {"minLength": f"{{{value},}}", "maxLength": f"{{0,{value}}}"}
    return f"^[\\s\\S]{counts[name]}$" if name in counts else None


def write_dependencies(required: Mapping[str, Json], schemas: Mapping[str, Json]) -> list[Schema]:
    """Returns schemas that replace `dependentRequired` and `dependentSchemas`. Each schema has two
    alternatives: the property is absent, or its requirements apply."""
    branches: list[Schema] = []
    for name, names in required.items():
        if names and isinstance(names, list):
            branches.append({"anyOf": [{"properties": {name: False}}, {"required": [name, *names]}]})
    for name, each in schemas.items():
        present = {"allOf": [{"required": [name]}, each]}
        branches.append({"anyOf": [{"properties": {name: False}}, present]})
    return branches


# --- unevaluated


def find_evaluated(
    schema: Schema, definitions: Mapping[str, Schema], budget: Budget, depth: int = 0
) -> tuple[dict[str, Json], dict[str, Json]] | None:
    """Returns the names and patterns of the properties that a schema evaluates in every object. Returns None
    if they depend on the object, or if they are all properties."""
    if isinstance(schema, bool):
        return {}, {}
    if depth > MAX_DEPTH or schema.keys() & (IN_PLACE | {"additionalProperties", "unevaluatedProperties"}):
        return None
    names: dict[str, Json] = {}
    patterns: dict[str, Json] = {}
    for keyword, found_names in (("properties", names), ("patternProperties", patterns)):
        value = schema.get(keyword)
        found_names.update(dict.fromkeys(value if isinstance(value, dict) else (), True))
    if not budget.spend(len(names) + len(patterns) + 1):
        return None
    all_of = schema.get("allOf")
    inner = [as_schema(each) for each in all_of] if isinstance(all_of, list) else []
    if isinstance(reference := schema.get("$ref"), str):
        inner.append(definitions.get(reference.removeprefix("#/$defs/"), {"additionalProperties": True}))
    for each in inner:
        evaluated = find_evaluated(each, definitions, budget, depth + 1)
        if evaluated is None:
            return None
        names |= evaluated[0]
        patterns |= evaluated[1]
    return names, patterns


def close_unevaluated(
    schema: Mapping[str, Json], definitions: Mapping[str, Schema], budget: Budget
) -> list[Schema] | None:
    """Returns schemas that replace `unevaluatedProperties`. Returns None if the evaluated properties depend
    on the object."""
    value = schema["unevaluatedProperties"]
    if value is True or "additionalProperties" in schema:
        return []
    other_keywords = {name: each for name, each in schema.items() if name != "unevaluatedProperties"}
    evaluated = find_evaluated(other_keywords, definitions, budget)
    if evaluated is None:
        return None
    names, patterns = evaluated
    if "" in patterns:  # a pattern that cannot be enforced evaluates all names
        return None
    closed: dict[str, Json] = {"properties": names, "additionalProperties": value}
    if patterns:
        closed["patternProperties"] = patterns
    return [closed]


def write_patterns(schema: dict[str, Json]) -> bool:
    """Writes patterns that match fixed names as properties. Changes the schema.

    Returns whether the remaining patterns can be enforced. They cannot if a name can match two of them: all
    undeclared names become allowed in that case.
    """
    patterns = schema.get("patternProperties")
    if not isinstance(patterns, dict):
        return True
    remaining_patterns = _extract_names(schema, dict(patterns)) if len(patterns) > 1 else patterns
    are_enforced = are_patterns_apart(list(remaining_patterns))
    if remaining_patterns == {"": True} or not are_enforced:
        schema.pop("additionalProperties", None)
        remaining_patterns = {}
    schema["patternProperties"] = remaining_patterns
    if not remaining_patterns:
        del schema["patternProperties"]
    return are_enforced


def are_patterns_apart(patterns: list[str]) -> bool:
    """Whether no name can match two patterns, because their first characters differ."""
    if len(patterns) < 2:
        return True
    used_characters: set[str] = set()
    for pattern in patterns:
        first_characters = find_first_characters(pattern)
        if first_characters is None or first_characters & used_characters:
            return False
        used_characters |= first_characters
    return True


def find_first_characters(pattern: str) -> frozenset[str] | None:
    """Returns the possible first characters of a matching name; None if they are unknown."""
    match = FIRST_CHARACTERS.match(pattern)
    if match is None or _has_alternatives(pattern):
        return None
    literal, escaped, digit, inner = match.groups()
    if inner is None:
        return frozenset("0123456789" if digit else literal or escaped)
    return frozenset(_list_class_members(inner.replace("\\", "")))


def _list_class_members(inner: str) -> Iterator[str]:
    """Yields the characters of a class."""
    for low, high, single in CLASS_RANGE.findall(inner):
        yield from (single,) if single else map(chr, range(ord(low), ord(high) + 1))


def _has_alternatives(pattern: str) -> bool:
    """Whether a pattern has alternatives at its top level."""
    depth, index = 0, 0
    while index < len(pattern):
        char = pattern[index]
        if char == "[":
            closed = re.compile(r"(?:\\.|[^\]\\])*\]").match(pattern, index + 1)
            index = closed.end() - 1 if closed else index
        elif char == "|" and not depth:
            return True
        depth += (char == "(") - (char == ")")
        index += 1 + (char == "\\")
    return False


def find_names(pattern: str) -> list[str] | None:
    """Returns the names that a pattern of a few texts matches, such as `^(a|b)$`. None for other patterns."""
    match = FIXED_NAMES.fullmatch(pattern)
    if match is None:
        return None
    branches = match[1].split("|") if match[1] is not None else [match[2]]
    if not all(map(LITERAL.fullmatch, branches)):
        return None
    return [re.sub(r"\\(.)", r"\1", branch) for branch in branches]


def _extract_names(schema: dict[str, Json], patterns: dict[str, Json]) -> dict[str, Json]:
    """Removes patterns that match fixed names from `patterns`, and declares the names as properties. A
    pattern stays if another pattern can match its names. Returns the remaining patterns."""
    properties = schema.get("properties")
    known_properties = dict(properties) if isinstance(properties, dict) else {}
    names_by_pattern = {pattern: names for pattern in patterns if (names := find_names(pattern))}
    other_characters = [
        find_first_characters(pattern) for pattern in patterns if pattern not in names_by_pattern
    ]
    for pattern, names in names_by_pattern.items():
        if any(
            characters is None or name[0] in characters for name in names for characters in other_characters
        ):
            continue  # a name can match another pattern too
        for name in names:
            each = patterns[pattern]
            known_properties[name] = (
                {"allOf": [known_properties[name], each]} if name in known_properties else each
            )
        del patterns[pattern]
    if known_properties:
        schema["properties"] = known_properties
    return patterns
