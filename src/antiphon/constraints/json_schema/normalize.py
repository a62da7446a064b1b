"""From what a caller wrote to a schema that the compiler keeps, and what of it is not kept."""

import json
from dataclasses import dataclass
from typing import NoReturn

from antiphon.constraints.json_schema.drafts import Json
from antiphon.constraints.json_schema.lowering import lower
from antiphon.constraints.json_schema.reading import MAX_DEPTH, MAX_WRITTEN_DEPTH, read
from antiphon.constraints.json_schema.relaxing import Relaxation, refuse
from antiphon.constraints.json_schema.schemas import Schema
from antiphon.errors import InvalidValue

REFERENCES = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})
"""Keywords that stand for a whole schema, without which an answer is held to too little."""


@dataclass(frozen=True, slots=True)
class NormalizedSchema:
    """A schema in the keywords that the compiler keeps."""

    schema: Schema
    relaxations: tuple[Relaxation, ...]
    """What it accepts more than the one that was written."""


def normalize(schema: Json, field: str, max_depth: int = MAX_DEPTH) -> NormalizedSchema:
    """Reads a schema of any draft. Raises InvalidValue for what is none, or is too large."""
    try:
        found = read(schema, field, max_depth)
        made = lower(found, field)
    except RecursionError:
        raise InvalidValue(f"{field} is nested too deep", param=field) from None
    return NormalizedSchema(made, found.relaxations.get())


def relax(schema: Json, field: str, without_references: bool = False) -> tuple[Schema, tuple[str, ...]]:
    """The schema that the compiler keeps, and the keywords of which it does not keep all. Raises
    InvalidValue, and UnsupportedParameter for a reference that points to nothing inside, unless
    `without_references`."""
    made = normalize(schema, field)
    if not without_references:
        refuse((each for each in made.relaxations if each.keyword in REFERENCES), field)
    return made.schema, tuple(each.keyword for each in made.relaxations)


def compilable(source: str, field: str) -> Schema:
    """The schema as the compiler gets it, nothing of it left out. Raises InvalidValue or
    UnsupportedParameter."""
    made = normalize(parsed(source, field), field, MAX_WRITTEN_DEPTH)
    refuse(made.relaxations, field)
    return made.schema


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
