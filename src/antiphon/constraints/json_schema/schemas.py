"""A schema while it is read: its keywords, where it is, and what is noted beside them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from antiphon.constraints.json_schema.drafts import Json
from antiphon.constraints.json_schema.references import Resource
from antiphon.constraints.json_schema.relaxing import Place, Relaxations

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

    place: Place
    depth: int
    resource: Resource

    def step(self, *names: str) -> "Position":
        """The position of a schema inside."""
        place = self.place
        for name in names:
            place = (place, name)
        return Position(place, self.depth + 1, self.resource)


@dataclass
class SchemaBuilder:
    """A schema that is being read."""

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
