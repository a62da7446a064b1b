"""Values of grammars: groups of calls and preludes as the renderer describes them, and the compiler's text.

A group is the source of a constraint of the kind `calls`, in whatever notation a model has. The renderer
makes it, never a caller; only the schemas and the format in it are a caller's. `call_grammar` makes its text.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from msgspec import convert, to_builtins

from antiphon.domain.request import Constraint

Mark = str | int
"""A text, or the id of a control token."""

Marks = tuple[Mark, ...]


class TextAround(StrEnum):
    """What text may stand around groups of calls."""

    NOTHING = "nothing"
    """The output is a group, and others after `again`."""
    TEXT = "text"
    """Groups stand in any text; only one where `again` is None, and then it is the end. With `sign` they
    stand at the beginning alone. With `format` the output is groups alone, or a text of the format."""
    TEXT_ALONE = "text_alone"
    """Text in which no group begins."""


@dataclass(frozen=True, slots=True)
class CallFormat:
    """One function: the marks before and after its arguments."""

    begin: Marks
    schema: Mapping[str, object]
    end: Marks
    field: str
    """What the caller calls the schema; errors name it."""


@dataclass(frozen=True, slots=True)
class TextFrame:
    """Marks around a text of its own: a channel of the model's. Others may follow a closed frame; one that is
    not closed is the end."""

    open: Marks
    close: Marks | None = None


@dataclass(frozen=True, slots=True)
class CallGroup:
    """`open`, a call, as many more as `between` allows, and `close`."""

    around: TextAround
    open: Marks
    calls: tuple[CallFormat, ...]
    close: Marks
    between: Marks | None = None
    """Before each further call; None is one call in a group."""
    again: Marks | None = None
    """Before each further group."""
    sign: str | None = None
    """A regular expression of how a group may begin, and no text does. `open` is empty then."""
    frames: tuple[TextFrame, ...] = ()
    """In which all text stands, before groups only; closed ones also where there is to be no text."""
    format: Constraint | None = None
    """What an output without calls is held to, a caller's; None is any text."""
    heads: tuple[str, ...] = ()
    """How calls are told from a text of `format`: none begins with one of these."""

    @property
    def is_either(self) -> bool:
        """Whether the output is calls or a text of `format`."""
        return self.format is not None and self.around is TextAround.TEXT

    def dump(self) -> str:
        """As JSON."""
        return json.dumps(to_builtins(self))


@dataclass(frozen=True, slots=True)
class Prelude:
    """What a choice may say before its constrained part: one of the frames, each closed."""

    frames: tuple[TextFrame, ...]
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


def load_group(source: str) -> CallGroup:
    """What `Group.dump` wrote."""
    return convert(json.loads(source), CallGroup)


@dataclass(frozen=True, slots=True)
class JsonPlaces:
    """The marks right before a value of JSON in a text."""

    at_start: tuple[Marks, ...] = ()
    """At the text's beginning; no marks are the beginning itself."""
    anywhere: tuple[Marks, ...] = ()
    """Wherever it stands. Never empty marks."""
    after_json: tuple[Marks, ...] = ()
    """Right behind another value of JSON."""
    keys_run_out: bool = False
    """Whether keys are held to patterns, so that none may be left that is new."""

    def add_prelude(self, prelude: Prelude) -> "JsonPlaces":
        """The places in a text that begins with a prelude."""
        starts = tuple((*prelude.answer, *start) for start in self.at_start)
        closes = (frame.close or () for frame in prelude.frames)
        behind = tuple((*close, *start) for close in closes for start in starts)
        at_start = starts if prelude.optional else ()
        return replace(self, at_start=at_start, anywhere=(*self.anywhere, *behind))

    def __or__(self, other: "JsonPlaces") -> "JsonPlaces":
        """The places of both."""
        return JsonPlaces(
            (*self.at_start, *other.at_start),
            (*self.anywhere, *other.anywhere),
            (*self.after_json, *other.after_json),
            self.keys_run_out or other.keys_run_out,
        )


@dataclass(frozen=True, slots=True)
class Grammar:
    """The compiler's text of one constraint."""

    text: str
    """What the compiler reads."""
    places: JsonPlaces | None = None
    """Where its texts hold JSON whose keys the compiler does not keep apart: objects that take keys which
    their schema does not list. None where there is none."""


WHOLE_TEXT = JsonPlaces(at_start=((),))
"""The text is one value of JSON."""


def find_argument_places(group: CallGroup) -> JsonPlaces:
    """The places of the arguments of a group's calls."""
    begins = tuple(call.begin for call in group.calls)
    first = tuple((*group.open, *begin) for begin in begins)
    ends = dict.fromkeys(call.end for call in group.calls)
    between = group.between
    later = () if between is None else tuple((*end, *between, *begin) for end in ends for begin in begins)
    # Where no mark opens them, calls stand at the beginning alone.
    return JsonPlaces((), first, later) if group.sign is None else JsonPlaces(first, (), later)


def find_format_places(group: CallGroup, alone: JsonPlaces) -> JsonPlaces:
    """The places of a text of the group's format in an output without calls. `alone`: its places in a text
    that is nothing but the format."""
    if not group.frames:
        return alone
    framed = tuple(frame.open for frame in group.frames if frame.close is None)
    return replace(alone, at_start=(), anywhere=framed)


Part = dict[str, object]


def join_grammars(first: str, name: str, other: str) -> str:
    """A grammar with another one, to which it refers by `name`."""
    named, *more = _list_grammars(other)
    return json.dumps({"grammars": [*_list_grammars(first), named | {"name": name}, *more]})


def _list_grammars(grammar: str) -> list[Part]:
    """A grammar and those that it refers to. A grammar that is not JSON is written in Lark and alone."""
    if not grammar.startswith("{"):
        return [{"lark_grammar": grammar}]
    found: list[Part] = json.loads(grammar)["grammars"]
    return found
