"""Types of grammars: the groups of calls and preludes that the renderer describes, and compiled grammars.

A group of calls is the source of a constraint of the kind `calls`. It describes the calls of a model in that
model's notation. Only the renderer makes groups, but their schemas and formats come from callers.
`grammar_builder` writes the grammar of a group.
"""

import json
from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct, convert, to_builtins

from antiphon.domain.request import Constraint
from antiphon.domain.values import replace

GrammarEntry = dict[str, object]


class NumberMark(Struct, frozen=True):
    """A number in digits that the model chooses."""


Mark = str | int | NumberMark
"""A text, the id of a control token, or a number of the model's choice."""

Marks = tuple[Mark, ...]


class TextAround(StrEnum):
    """The text that is allowed around groups of calls."""

    NOTHING = "nothing"
    """The output is a group. If `again` is set, more groups may follow."""
    TEXT = "text"
    """Groups may occur in any text. If `again` is None, there is only one group, at the end of the text. If
    `sign` is set, groups occur at the beginning only. If `format` is set, the output is either groups alone
    or a text of the format."""
    TEXT_ALONE = "text_alone"
    """The output is text in which no group begins."""


class CallFormat(Struct, frozen=True):
    """The form of a call of one function: the marks before and after the arguments, and the schema of the
    arguments."""

    begin: Marks
    schema: Mapping[str, object]
    end: Marks
    field: str
    """The caller's name for the schema, for error messages."""
    types: Mapping[str, tuple[str, ...]] = {}
    """The JSON types of each argument, for arguments between tags. A missing argument can have any type."""


class ArgumentTags(Struct, frozen=True):
    """The marks around each argument of a call. A text is raw between them, and any other value is JSON."""

    before_key: Marks
    before_text: Marks
    before_json: Marks
    after_text: Marks
    after_json: Marks
    key_end: str
    """The text after an argument's name. No name can contain it."""
    value_end: str
    """The text at which a reader ends a value. No raw text can contain it."""
    between: Marks = ()
    """The marks between two arguments."""
    has_raw_texts: bool = True
    """Whether texts are raw. If not, they are JSON, and the words of the value's type are Python's."""
    before_nested_text: Marks = ()
    """The marks before a text in a list or object, whose keys then have no quotes. Empty if lists and objects
    are JSON."""


class TextFrame(Struct, frozen=True):
    """A text with marks around it, for example one of the model's channels. Other frames can follow a closed
    frame. A frame without closing marks is the last one."""

    open: Marks
    close: Marks | None = None


class CallGroup(Struct, frozen=True):
    """A group of calls: `open`, a call, any number of further calls that `between` allows, and `close`."""

    around: TextAround
    open: Marks
    calls: tuple[CallFormat, ...]
    close: Marks
    between: Marks | None = None
    """The marks before each further call; with None, a group has one call."""
    between_groups: Marks | None = None
    """The marks before each further group."""
    call_pattern: str | None = None
    """A regular expression for the beginning of a group. No text may begin with a match. If it is set,
    `open` does not tell a group from text."""
    frames: tuple[TextFrame, ...] = ()
    """The frames that contain all text. They come before groups. Closed frames are allowed even if `around`
    allows no text."""
    format: Constraint | None = None
    """The caller's constraint on an output without calls; None allows any text."""
    forbidden_prefixes: tuple[str, ...] = ()
    """The beginnings of calls. No text of `format` may begin with one of them."""
    tags: ArgumentTags | None = None
    """The marks around each argument; None if the arguments are one JSON object."""

    @property
    def can_be_format(self) -> bool:
        """Whether the output can be a text of `format` instead of calls."""
        return self.format is not None and self.around is TextAround.TEXT

    def dump(self) -> str:
        """Returns the group as JSON."""
        return json.dumps(to_builtins(self))


class Prelude(Struct, frozen=True):
    """The frames that the model may write before the constrained part, for example its reasoning. All frames
    are closed."""

    frames: tuple[TextFrame, ...]
    optional: bool = False
    """Whether the prelude may be absent."""
    allows_several: bool = False
    """Whether the model may write several frames."""
    budget: int | None = None
    """The most tokens of the text in a frame. After them the frame must be closed. The budget applies only to
    frames that are closed by one token."""
    forbidden_text: str = ""
    """The characters of the closing token, which no text in a frame may contain."""
    answer: Marks = ()
    """The marks before the constrained part."""
    call_opening: Marks = ()
    """The marks with which a group of calls begins that ends the frame before its closing marks. Empty if
    nothing but the closing marks ends a frame."""

    def dump(self) -> str:
        """Returns the prelude as JSON."""
        return json.dumps(to_builtins(self))


def load_prelude(source: str) -> Prelude:
    """Loads the output of `Prelude.dump`."""
    return convert(json.loads(source), Prelude)


def load_group(source: str) -> CallGroup:
    """Loads the output of `CallGroup.dump`."""
    return convert(json.loads(source), CallGroup)


class JsonPlaces(Struct, frozen=True):
    """Where JSON values begin in a text, by the marks right before them."""

    at_start: tuple[Marks, ...] = ()
    """Marks at the text's beginning; empty marks mean the beginning itself."""
    anywhere: tuple[Marks, ...] = ()
    """Marks anywhere in the text. Never empty."""
    after_json: tuple[Marks, ...] = ()
    """Marks after which a value begins anywhere in the text. No entry is empty."""
    keys_can_run_out: bool = False
    """Whether keys must match patterns. Such an object can reach a state in which no new key is possible."""

    def add_prelude(self, prelude: Prelude) -> "JsonPlaces":
        """Returns the places in a text that begins with a prelude."""
        starts = tuple((*prelude.answer, *start) for start in self.at_start)
        closes = (frame.close or () for frame in prelude.frames)
        after_frames = tuple((*close, *start) for close in closes for start in starts)
        at_start = starts if prelude.optional else ()
        return replace(self, at_start=at_start, anywhere=(*self.anywhere, *after_frames))

    def __or__(self, other: "JsonPlaces") -> "JsonPlaces":
        """Returns the places of both objects together."""
        return JsonPlaces(
            (*self.at_start, *other.at_start),
            (*self.anywhere, *other.anywhere),
            (*self.after_json, *other.after_json),
            self.keys_can_run_out or other.keys_can_run_out,
        )


class Grammar(Struct, frozen=True):
    """The grammar of one constraint, not yet compiled."""

    text: str
    """The grammar in the compiler's notation."""
    places: JsonPlaces | None = None
    """The places of JSON objects whose schemas accept keys that they do not list. For these objects, the
    compiler does not keep keys unique. None if there are no such objects."""


WHOLE_TEXT = JsonPlaces(at_start=((),))
"""The text is one JSON value."""


def find_argument_places(group: CallGroup) -> JsonPlaces:
    """Returns the places of the arguments of a group's calls."""
    begins = tuple(call.begin for call in group.calls)
    first_marks = tuple(_skip_numbers((*group.open, *begin)) for begin in begins)
    ends = dict.fromkeys(call.end for call in group.calls)
    between = group.between
    later_marks = (
        ()
        if between is None
        else tuple(_skip_numbers((*end, *between, *begin)) for end in ends for begin in begins)
    )
    # If no mark comes before groups, calls occur at the beginning only.
    return (
        JsonPlaces((), first_marks, later_marks)
        if group.call_pattern is None
        else JsonPlaces(first_marks, (), later_marks)
    )


def _skip_numbers(marks: Marks) -> Marks:
    """Returns the marks after the last number, because only they are known."""
    numbers = [index for index, mark in enumerate(marks) if isinstance(mark, NumberMark)]
    return marks[numbers[-1] + 1 :] if numbers else marks


def find_format_places(group: CallGroup, unframed_places: JsonPlaces) -> JsonPlaces:
    """Returns the places of JSON values in an answer without calls. `unframed_places`: the places if the
    answer has no frames."""
    if not group.frames:
        return unframed_places
    frame_marks = tuple(frame.open for frame in group.frames if frame.close is None)
    return replace(unframed_places, at_start=(), anywhere=frame_marks)


def join_grammars(outer: str, name: str, inner: str) -> str:
    """Combines two grammars. The outer grammar refers to the inner grammar by `name`."""
    inner_root, *inner_parts = _list_grammars(inner)
    return json.dumps({"grammars": [*_list_grammars(outer), inner_root | {"name": name}, *inner_parts]})


def _list_grammars(grammar: str) -> list[GrammarEntry]:
    """Returns a grammar and the grammars to which it refers. A grammar that is not JSON is a single Lark
    grammar."""
    if not grammar.startswith("{"):
        return [{"lark_grammar": grammar}]
    grammars: list[GrammarEntry] = json.loads(grammar)["grammars"]
    return grammars
