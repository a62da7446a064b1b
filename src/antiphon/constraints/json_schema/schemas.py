"""Types for reading and rewriting a schema: positions, builders, relaxations and the budget of steps."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import NoReturn

from antiphon.constraints.json_schema.keywords import Json
from antiphon.constraints.json_schema.references import SchemaResource
from antiphon.domain.values import Struct
from antiphon.errors import InvalidValue, UnsupportedParameter

SchemaPlace = tuple["SchemaPlace", str] | None
"""A schema's place in its document: the place of the outer schema, and the step from there. The steps are
linked, because a text for each schema would take memory quadratic in the length of names."""

MAX_STEP, MAX_PLACE = 64, 200
"""The most characters of one step, and of a place, in a message."""


def format_place(place: SchemaPlace) -> str:
    """Formats a place as a JSON pointer."""
    steps: list[str] = []
    while place is not None:
        place, step = place
        steps.append(step[:MAX_STEP])
    return "/".join(["#", *reversed(steps)])[:MAX_PLACE]


class Relaxation(Struct, frozen=True):
    """One keyword that the compiled schema does not enforce."""

    keyword: str
    place: SchemaPlace
    reason: str


class Relaxations:
    """The keywords of one schema that are not enforced. Each keyword is listed once."""

    def __init__(self) -> None:
        self._by_keyword: dict[str, Relaxation] = {}

    def add(self, keyword: str, place: SchemaPlace, reason: str) -> None:
        """Adds a keyword that is not enforced. Only the first place of a keyword is stored."""
        self._by_keyword.setdefault(keyword, Relaxation(keyword, place, reason))

    def list(self) -> tuple[Relaxation, ...]:
        """Returns all relaxations."""
        return tuple(self._by_keyword.values())


def refuse_relaxed(relaxations: Iterable[Relaxation], field: str) -> None:
    """Raises UnsupportedParameter for the first relaxation, if there is one."""
    for each in relaxations:
        raise UnsupportedParameter(
            f"the keyword {each.keyword[:MAX_STEP]} at {format_place(each.place)} of {field} is not "
            f"supported: {each.reason}",
            param=field,
        )


def reject_value(keyword: str, place: SchemaPlace, field: str, problem: str) -> NoReturn:
    """Raises InvalidValue for a value that is invalid in any schema."""
    raise InvalidValue(f"{keyword} at {format_place(place)} of {field} {problem}", param=field)


INEXACT = "$inexact"
"""The key that marks a schema that accepts more or fewer values than its source. No proof uses such a
schema."""

PLACE = "$place"
"""The key of a schema's place in its document."""

HIDDEN = frozenset({INEXACT, PLACE})
"""Keys that are not keywords of JSON Schema."""

Schema = bool | dict[str, Json]


class ReadSchema(Struct, frozen=True):
    """A schema in the keywords of the newest draft. References are `#` and `#/$defs/NAME`."""

    root: Schema
    definitions: Mapping[str, Schema]
    relaxations: Relaxations


class Position(Struct, frozen=True):
    """The reader's position in the document."""

    place: SchemaPlace
    depth: int
    resource: SchemaResource

    def step(self, *names: str) -> "Position":
        """Returns the position of an inner schema. `names`: the steps to it."""
        place = self.place
        for name in names:
            place = (place, name)
        return Position(place, self.depth + 1, self.resource)


@dataclasses.dataclass
class SchemaBuilder:
    """A schema under construction."""

    keywords: dict[str, Json] = dataclasses.field(default_factory=dict)

    def add(self, name: str, value: Json) -> None:
        """Adds a keyword. If the schema already has the keyword, both values apply."""
        if name not in self.keywords:
            self.keywords[name] = value
            return
        existing = self.keywords[name]
        if name in ("allOf", "required") and isinstance(existing, list) and isinstance(value, list):
            self.keywords[name] = [*existing, *value]
        else:
            self.add("allOf", [{name: value}])

    def mark_inexact(self) -> None:
        """Marks the schema: it accepts more or fewer values than its source."""
        self.keywords[INEXACT] = True


MAX_STEPS = 60_000
"""The most keywords, names and alternatives that proofs and negations can examine. A statement that needs
more counts as unproved."""


@dataclasses.dataclass
class Budget:
    """The remaining steps for one document. The limit keeps the time for each schema below a second."""

    steps: int = MAX_STEPS

    def spend(self, steps: int) -> bool:
        """Uses some steps. Returns whether enough steps were left."""
        self.steps -= steps
        return self.steps >= 0
