"""Calls of functions in whatever notation a model has for them: the source of a constraint of the kind
`calls`, as values and as JSON. Made by the renderer, never by a caller; only the schemas and the format in it
are a caller's. `calls` makes the grammar."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from msgspec import convert, to_builtins

from antiphon.domain.constraint import Constraint

Mark = str | int
"""A text, or the id of a control token."""

Marks = tuple[Mark, ...]


class Around(StrEnum):
    """What stands around groups."""

    NOTHING = "nothing"
    """The output is a group, and others after `again`."""
    TEXT = "text"
    """Groups stand in any text; only one where `again` is None, and then it is the end. With `sign` they
    stand at the beginning alone. With `format` the output is groups alone, or a text of the format."""
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
class Frame:
    """What stands around a text of its own: a channel of the model's. One that is closed may be followed by
    others; one that is not is the end."""

    open: Marks
    close: Marks | None = None


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
    sign: str | None = None
    """A regular expression of how a group may begin, and no text does. `open` is empty then."""
    frames: tuple[Frame, ...] = ()
    """In which all text stands, before groups only; closed ones also where there is to be no text."""
    format: Constraint | None = None
    """What an output without calls is held to, a caller's; None is any text."""
    heads: tuple[str, ...] = ()
    """How calls are told from a text of `format`: none begins with one of these."""

    @property
    def is_either(self) -> bool:
        """Whether the output is calls or a text of `format`."""
        return self.format is not None and self.around is Around.TEXT

    def dump(self) -> str:
        """As JSON."""
        return json.dumps(to_builtins(self))


@dataclass(frozen=True, slots=True)
class Prelude:
    """What a choice may say before what it is held to: one of the frames, each closed."""

    frames: tuple[Frame, ...]
    optional: bool = False
    """Whether there may be none."""
    many: bool = False
    """Whether there may be several."""
    budget: int | None = None
    """Most tokens of the text in a frame, after which it is closed; of one that is closed by one token."""
    never: str = ""
    """What no text in a frame holds: how the token reads that closes it."""
    answer: Marks = ()
    """Before what the choice is held to."""

    def dump(self) -> str:
        """As JSON."""
        return json.dumps(to_builtins(self))


def load_prelude(source: str) -> Prelude:
    """What `Prelude.dump` wrote."""
    return convert(json.loads(source), Prelude)


def load(source: str) -> Group:
    """What `Group.dump` wrote."""
    return convert(json.loads(source), Group)
