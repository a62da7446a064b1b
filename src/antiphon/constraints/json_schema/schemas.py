"""A schema while it is read: its keywords, its position, what of it is not kept, and how much may be
concluded."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from antiphon.constraints.json_schema.keywords import Json
from antiphon.constraints.json_schema.references import SchemaResource
from antiphon.errors import InvalidValue, UnsupportedParameter

SchemaPlace = tuple["SchemaPlace", str] | None
"""Where a schema is in its document: the place of the schema around it, and the step from there. Linked,
since a text of each would grow with the length of names."""

MAX_STEP, MAX_PLACE = 64, 200
"""Characters of one step, and of a place, that are shown."""


def format_place(place: SchemaPlace) -> str:
    """A place as a pointer."""
    steps: list[str] = []
    while place is not None:
        place, step = place
        steps.append(step[:MAX_STEP])
    return "/".join(["#", *reversed(steps)])[:MAX_PLACE]


@dataclass(frozen=True, slots=True)
class Relaxation:
    """One keyword that is not kept."""

    keyword: str
    place: SchemaPlace
    reason: str


class Relaxations:
    """The keywords of one schema that are not kept, each once."""

    def __init__(self) -> None:
        self._found: dict[str, Relaxation] = {}

    def add(self, keyword: str, place: SchemaPlace, reason: str) -> None:
        """Notes a keyword, at the first place where it is not kept."""
        self._found.setdefault(keyword, Relaxation(keyword, place, reason))

    def list(self) -> tuple[Relaxation, ...]:
        """All of them."""
        return tuple(self._found.values())


def refuse_relaxed(relaxations: Iterable[Relaxation], field: str) -> None:
    """Raises UnsupportedParameter for the first, if there is one."""
    for each in relaxations:
        raise UnsupportedParameter(
            f"the keyword {each.keyword[:MAX_STEP]} at {format_place(each.place)} of {field} is not "
            f"supported: {each.reason}",
            param=field,
        )


def reject_value(keyword: str, place: SchemaPlace, field: str, problem: str) -> NoReturn:
    """Raises InvalidValue for a value that no schema may have."""
    raise InvalidValue(f"{keyword} at {format_place(place)} of {field} {problem}", param=field)


INEXACT = "$inexact"
"""Marks a schema that is read as more or less than it says, so that nothing is concluded from what it
refuses."""

PLACE = "$place"
"""Where a schema is in its document."""

HIDDEN = frozenset({INEXACT, PLACE})
"""What is noted of a schema beside its keywords."""

Schema = bool | dict[str, Json]


@dataclass(frozen=True, slots=True)
class ReadSchema:
    """A schema in the keywords of the newest draft. References are `#` and `#/$defs/NAME`."""

    root: Schema
    definitions: Mapping[str, Schema]
    relaxations: Relaxations


@dataclass(frozen=True, slots=True)
class Position:
    """Where the reader is."""

    place: SchemaPlace
    depth: int
    resource: SchemaResource

    def step(self, *names: str) -> "Position":
        """The position of a schema inside."""
        place = self.place
        for name in names:
            place = (place, name)
        return Position(place, self.depth + 1, self.resource)


@dataclass
class SchemaBuilder:
    """A schema while it is read."""

    keywords: dict[str, Json] = field(default_factory=dict)

    def add(self, name: str, value: Json) -> None:
        """Adds a keyword, beside one of that name if there is one."""
        if name not in self.keywords:
            self.keywords[name] = value
            return
        held = self.keywords[name]
        if name in ("allOf", "required") and isinstance(held, list) and isinstance(value, list):
            self.keywords[name] = [*held, *value]
        else:
            self.add("allOf", [{name: value}])

    def mark_inexact(self) -> None:
        """Notes that the schema is read as more or less than it says."""
        self.keywords[INEXACT] = True


MAX_STEPS = 60_000
"""Keywords, names and alternatives that are looked at to prove, negate or collect something. What is not
proved by then is not known."""


@dataclass
class Budget:
    """The steps left for one document, so that no schema takes more than part of a second to read."""

    steps: int = MAX_STEPS

    def spend(self, steps: int) -> bool:
        """Takes so many steps; whether there were enough."""
        self.steps -= steps
        return self.steps >= 0
