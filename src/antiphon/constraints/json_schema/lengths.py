"""Counted texts: which lengths and repetitions the compiler can count, and which must be tried.

The compiler's automaton gets states for each character of a counted text. Texts that are counted alike
share their states; all others add up. So the shortest texts of a schema are counted, up to a sum that always
fits. A pattern that repeats groups, or that is counted twice, can need more states than characters. It is
tried before it is accepted.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

from antiphon.constraints.json_schema.schemas import (
    INEXACT,
    MAX_COUNTED_LENGTH,
    PLACE,
    Json,
    Relaxations,
    Schema,
    read_place,
)

DATA = frozenset("const enum type required dependentRequired".split())
"""Keywords whose values contain no schemas."""

NAMED = frozenset("properties patternProperties dependentSchemas $defs".split())
"""Keywords that contain schemas by name."""

REPETITION = re.compile(
    r"\\.|\[(?:\\.|[^\]\\])*\]|(?P<group>\))?\{(?P<least>\d+)(?:,(?P<most>\d*))?\}", re.DOTALL
)
"""An escape, a class, or a counted repetition, perhaps of a group."""

MIN_COUNT = 8
"""The least repetitions that make a pattern worth a trial."""

COUNTED_KEYWORDS = ("maxLength", "minLength", "pattern")
"""The keywords that count characters, in the order in which they are dropped."""


def drop_long_counts(schemas: Iterable[Schema], relaxations: Relaxations) -> None:
    """Drops the longest counts that do not fit together, and adds them to the relaxations. Changes the
    schemas."""
    places: dict[tuple[Json, ...], list[dict[str, Json]]] = {}
    for schema in walk_texts(schemas):
        places.setdefault(_get_key(schema), []).append(schema)
    free = MAX_COUNTED_LENGTH
    for same in sorted(places.values(), key=lambda same: count_characters(same[0])):
        for keyword in COUNTED_KEYWORDS:
            if count_characters(same[0]) <= free:
                break
            for schema in same:
                if schema.pop(keyword, None) is not None:
                    schema[INEXACT] = True
                    reason = f"the texts of a schema can count {MAX_COUNTED_LENGTH} characters together"
                    relaxations.add(keyword, read_place(schema.get(PLACE)), reason)
        free -= count_characters(same[0])


def walk_texts(schemas: Iterable[Json]) -> Iterator[dict[str, Json]]:
    """Yields the schemas, and those in them, that count characters or have a pattern."""
    for schema in walk_schemas(schemas):
        if any(keyword in schema for keyword in COUNTED_KEYWORDS):
            yield schema


def walk_schemas(schemas: Iterable[Json]) -> Iterator[dict[str, Json]]:
    """Yields the schemas that are objects, and those in them. Follows no references."""
    waiting = list(schemas)
    while waiting:
        schema = waiting.pop()
        if not isinstance(schema, dict):
            continue
        yield schema
        for name, value in schema.items():
            if isinstance(value, list) and name not in DATA:
                waiting += value
            elif isinstance(value, dict) and name not in DATA:
                waiting += value.values() if name in NAMED else [value]


def count_characters(schema: Mapping[str, Json]) -> int:
    """Returns how many characters a text is counted up to; 0 if nothing is counted."""
    pattern = schema.get("pattern")
    repetitions = list_repetitions(pattern) if isinstance(pattern, str) else []
    lengths = [each for name in ("minLength", "maxLength") if isinstance(each := schema.get(name), int)]
    return max([sum(count for count, _ in repetitions), *lengths])


def list_repetitions(pattern: str) -> list[tuple[int, bool]]:
    """Returns the largest number of each counted repetition, and whether a group is repeated."""
    return [
        (int(each["most"] or each["least"]), each["group"] is not None)
        for each in REPETITION.finditer(pattern)
        if each["least"]
    ]


def needs_trial(schema: Mapping[str, Json]) -> bool:
    """Whether a text's pattern can need more states than the text has characters."""
    pattern = schema.get("pattern")
    if not isinstance(pattern, str):
        return False
    return is_counted_twice(pattern, "minLength" in schema or "maxLength" in schema)


def is_counted_twice(pattern: str, has_length: bool = False) -> bool:
    """Whether a pattern repeats a group several times, or repeats a part while the length is counted too."""
    return any(
        count >= MIN_COUNT and (is_group or has_length) for count, is_group in list_repetitions(pattern)
    )


def _get_key(schema: Mapping[str, Json]) -> tuple[Json, ...]:
    return tuple(schema.get(name) for name in (*COUNTED_KEYWORDS, "format"))
