"""Calls of functions in whatever notation a model has for them: the source of a constraint of the kind
`calls`, as values and as JSON. Made by the renderer, never by a caller; only the schemas in it are a
caller's. `calls` makes the grammar."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum

Mark = str | int
"""A text, or the id of a control token."""

Marks = tuple[Mark, ...]


class Around(StrEnum):
    """What stands around groups."""

    NOTHING = "nothing"
    """The output is a group, and others after `again`."""
    TEXT = "text"
    """Groups stand in any text; only one where `again` is None, and then it is the end."""
    TEXT_ALONE = "text_alone"
    """Text in which no group begins."""


@dataclass(frozen=True, slots=True)
class Call:
    """One function: what is written before and after its arguments."""

    begin: Marks
    schema: Mapping[str, object]
    end: Marks
    field: str
    """What the caller calls the schema; errors name it."""


@dataclass(frozen=True, slots=True)
class Group:
    """`open`, a call, as many more as `between` allows, and `close`."""

    around: Around
    open: Marks
    calls: tuple[Call, ...]
    close: Marks
    between: Marks | None = None
    """Before each further call; None is one call in a group."""
    again: Marks | None = None
    """Before each further group."""

    def dump(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))


def load(source: str) -> Group:
    """What `dump` wrote."""
    said = json.loads(source)
    calls = (
        Call(tuple(call["begin"]), call["schema"], tuple(call["end"]), call["field"])
        for call in said["calls"]
    )
    between, again = (None if said[name] is None else tuple(said[name]) for name in ("between", "again"))
    return Group(
        Around(said["around"]), tuple(said["open"]), tuple(calls), tuple(said["close"]), between, again
    )
