"""Whether a schema takes an object with keys that it does not list: only there can a key come twice."""

from collections.abc import Iterator

LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
NAMED = ("properties", "patternProperties", "$defs", "definitions")
SINGLE = ("items", "additionalProperties")

DECIDED_ELSEWHERE = frozenset({"const", "enum", "$ref", "anyOf", "oneOf", "allOf"})
"""Keywords that name all that a schema takes: its values, or the schemas that take them."""


def has_open_objects(schema: object) -> bool:
    """Whether a schema, as the compiler gets it, or any schema in it takes such an object. May be true of one
    that does not, and is never false of one that does."""
    if not isinstance(schema, dict):
        return schema is not False
    return _is_open(schema) or any(map(has_open_objects, _schemas_in(schema)))


def has_key_patterns(schema: object) -> bool:
    """Whether any object's keys are held to a pattern that says how they end: then few may match it, or few
    may begin like one that is there."""
    if not isinstance(schema, dict):
        return False
    patterns = schema.get("patternProperties")
    ends = isinstance(patterns, dict) and any("$" in pattern for pattern in patterns)
    return ends or any(map(has_key_patterns, _schemas_in(schema)))


def _is_open(schema: dict[str, object]) -> bool:
    if not schema.keys().isdisjoint(DECIDED_ELSEWHERE):
        return False
    if "type" not in schema:
        return True
    named = schema["type"]
    types = named if isinstance(named, list) else [named]
    has_all_keys = schema.get("additionalProperties") is False and not schema.get("patternProperties")
    return ("object" in types and not has_all_keys) or ("array" in types and "items" not in schema)


def _schemas_in(schema: dict[str, object]) -> Iterator[object]:
    for name in SINGLE:
        if name in schema:
            yield schema[name]
    for name in LISTS:
        if isinstance(several := schema.get(name), list):
            yield from several
    for name in NAMED:
        if isinstance(by_name := schema.get(name), dict):
            yield from by_name.values()
