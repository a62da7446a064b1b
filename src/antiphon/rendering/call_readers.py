"""Reads a choice's text while it arrives, and separates visible text from calls. The result does not depend
on how the text is divided.

Text that only resembles a call is shown as text. A call that ends before the function's name is dropped,
because its marks are no content. `JsonCall` reads a call in the form of a JSON object. It returns the
function's name as soon as the name is complete, and the arguments' text as it arrives. The order of the
object's members and the whitespace between them do not matter.
"""

import json
from collections.abc import Sequence
from enum import Enum, auto
from typing import Protocol

from antiphon.domain.values import Struct

SPACE = " \t\r\n"
LONGEST_HEADER = 400
"""The most characters before the name or the object of a call. After more of them, all is text."""

ARGUMENTS = frozenset({"arguments", "parameters", "args"})
NAME = "name"

Span = tuple[int, int | None]
"""A span of reasoning in the raw text: the index of its first character, and the index after its last
character. The latter index is None while the reasoning has not ended."""

SEPARATORS = SPACE + "[,;]"
"""Characters between the calls of a group."""


class CallName(Struct, frozen=True):
    """The beginning of a call, with the function's name."""

    name: str


class CallArguments(Struct, frozen=True):
    """Further text of the arguments."""

    text: str


class JsonValue:
    """Finds the end of one JSON value in a text that arrives in parts."""

    __slots__ = ("_depth", "_is_escaped", "_is_in_string", "_is_scalar", "is_complete", "text")

    def __init__(self) -> None:
        self._depth = 0
        self._is_in_string = self._is_escaped = self._is_scalar = False
        self.is_complete = False
        self.text = ""
        """The text of the value so far."""

    def take(self, text: str, index: int) -> int:
        """Reads characters of the value from index `index` of the text on. Returns the index after the last
        one that it read."""
        begin = index
        while index < len(text) and not self.is_complete:
            if self._is_scalar and text[index] in ",}]" + SPACE:
                self.is_complete = True
                break
            self._read_character(text[index])
            index += 1
        self.text += text[begin:index]
        return index

    def _read_character(self, char: str) -> None:
        """Reads one character of the value."""
        if self._is_in_string:
            if self._is_escaped:
                self._is_escaped = False
            elif char == "\\":
                self._is_escaped = True
            elif char == '"':
                self._is_in_string = False
                self.is_complete = not self._depth
        elif char == '"':
            self._is_in_string = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
            self.is_complete = self._depth <= 0
        elif not self._depth:
            self._is_scalar = True


class _Expected(Enum):
    """The part of the object that comes next."""

    OPEN = auto()
    KEY = auto()
    COLON = auto()
    VALUE = auto()
    COMMA = auto()


class JsonCall:
    """Reads one object with a name and arguments, from its first brace on."""

    __slots__ = (
        "_early_arguments",
        "_expected",
        "_key",
        "_name_first",
        "_sent_length",
        "_value",
        "has_name",
        "is_broken",
        "is_complete",
        "parts",
    )

    def __init__(self, name_first: bool = False) -> None:
        """`name_first`: whether an object must begin with the name to be a call."""
        self._name_first = name_first
        self._expected = _Expected.OPEN
        self._key = ""
        self._value: JsonValue | None = None
        self.has_name = False
        """Whether the name is known."""
        self._early_arguments = ""
        """Arguments that came before the name."""
        self._sent_length = 0
        """Number of characters of the current arguments that were added to the parts."""
        self.parts: list[CallName | CallArguments] = []
        """Parts that can be returned now. The reader empties the list."""
        self.is_complete = False
        self.is_broken = False
        """Whether the object cannot be a call, or is no valid object."""

    @property
    def is_call(self) -> bool:
        """Whether the object must be a call, because its name or the key of its name is known."""
        return self.has_name or self._key == NAME

    def take(self, text: str, index: int) -> int:
        """Reads characters of the object from index `index` of the text on. Returns the index after the last
        one that it read."""
        while index < len(text) and not (self.is_complete or self.is_broken):
            if self._value is not None:
                index = self._take_value(self._value, text, index)
            elif text[index] in SPACE or self._take_punctuation(text[index]):
                index += 1
        return index

    def _take_punctuation(self, char: str) -> bool:
        """Reads a character between values. Returns False if the character is no punctuation: it begins a
        value or breaks the object."""
        match self._expected, char:
            case _Expected.OPEN, "{":
                self._expected = _Expected.KEY
            case _Expected.COLON, ":":
                self._expected = _Expected.VALUE
            case _Expected.COMMA, ",":
                self._expected = _Expected.KEY
            case ((_Expected.COMMA | _Expected.KEY), "}"):
                self.is_complete, self.is_broken = self.has_name, not self.has_name
            case _Expected.VALUE, _:
                self._value, self._sent_length = JsonValue(), 0
                return False
            case _Expected.KEY, '"':
                self._value = JsonValue()
                return False
            case _:
                self.is_broken = True
                return False
        return True

    def _take_value(self, value: JsonValue, text: str, index: int) -> int:
        """Reads characters of the current key or value. Passes arguments on as they arrive."""
        index = value.take(text, index)
        is_arguments = self._expected is _Expected.VALUE and self._key in ARGUMENTS
        if is_arguments and value.text[:1] != '"':
            self._add_arguments(value.text[self._sent_length :])
            self._sent_length = len(value.text)
        if value.is_complete:
            self._value = None
            self._handle_complete(value.text)
        return index

    def _handle_complete(self, text: str) -> None:
        """Handles a complete key or value."""
        if self._expected is _Expected.KEY:
            is_first_key, self._key = not self._key, str(_parse_json(text))
            self._expected = _Expected.COLON
            self.is_broken = self._name_first and is_first_key and self._key != NAME
            return
        self._expected = _Expected.COMMA
        if self._key == NAME and not self.has_name:
            name = _parse_json(text)
            self.is_broken = not (isinstance(name, str) and name)
            if not self.is_broken:
                self.has_name = True
                self.parts.append(CallName(str(name)))
                self._add_arguments(self._early_arguments)
        elif self._key in ARGUMENTS and text[:1] == '"':
            self._add_arguments(str(_parse_json(text)))  # the arguments are a JSON text inside a string

    def _add_arguments(self, text: str) -> None:
        """Adds a piece of the arguments to the parts, or holds it back until the name is known."""
        if not self.has_name:
            self._early_arguments += text
        elif text:
            self.parts.append(CallArguments(text))


def _parse_json(text: str) -> object:
    """Returns the value of a JSON text; None if the text is no JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return None


class VisiblePart(Struct, frozen=True):
    """Further text to show; never empty."""

    text: str


class ReasoningPart(Struct, frozen=True):
    """Further reasoning; never empty."""

    text: str


OutputPart = VisiblePart | ReasoningPart | CallName | CallArguments


def is_inside(spans: Sequence[Span], position: int) -> bool:
    """Whether a character is part of reasoning."""
    return any(begin <= position and (end is None or position < end) for begin, end in spans)


class OutputReader(Protocol):
    """Reads one choice."""

    @property
    def spans(self) -> Sequence[Span]:
        """The spans of reasoning in the text so far; none overlap."""

    @property
    def has_complete_calls(self) -> bool:
        """Whether the text has calls and each of them is complete."""

    def add(self, text: str) -> list[OutputPart]:
        """Adds text. Returns the parts that can be identified now."""

    def end(self, calls_required: bool = False) -> list[OutputPart]:
        """Ends the text. Returns the parts that were held back. `calls_required`: whether the choice must be
        only calls; then a cut call is not shown as text."""


def find_partial_mark(text: str, mark: str) -> int:
    """Returns the index from which the end of the text could be the beginning of a mark; the text's length if
    there is none."""
    for begin in range(max(0, len(text) - len(mark) + 1), len(text)):
        if text[begin] == mark[0] and mark.startswith(text[begin:]):
            return begin
    return len(text)


class VisibleText:
    """The text outside calls. Whitespace next to a call belongs to the notation and is not shown."""

    __slots__ = ("_has_text", "_held_space", "has_calls")

    def __init__(self) -> None:
        self._has_text = False
        self._held_space: list[str] = []
        """Whitespace that is shown only if text follows."""
        self.has_calls = False
        """Whether a call was made."""

    def record_call(self) -> None:
        """Records that a call was made at this position of the text."""
        self.has_calls, self._held_space = True, []

    def record_cut(self) -> None:
        """Records that an incomplete call began at this position of the text."""
        self._held_space = []

    def add(self, text: str) -> list[OutputPart]:
        """Returns the part of the text that can be shown now. Holds back whitespace at the end."""
        body = text.rstrip(SPACE)
        if not body:
            self._held_space.append(text)
            return []
        space, self._held_space = self._held_space, [text[len(body) :]]
        body = "".join((*space, body))
        if self.has_calls and not self._has_text:
            body = body.lstrip(SPACE)
        self._has_text = True
        return [VisiblePart(body)]

    def end(self) -> list[OutputPart]:
        """Returns the whitespace that was held back, unless a call was made."""
        space, self._held_space = "".join(self._held_space), []
        return [VisiblePart(space)] if space and not self.has_calls else []


class PlainReader:
    """Reads a choice without calls."""

    has_complete_calls = False
    spans: tuple[Span, ...] = ()

    def add(self, text: str) -> list[OutputPart]:
        return [VisiblePart(text)] if text else []

    def end(self, calls_required: bool = False) -> list[OutputPart]:
        return []


class CallsOrTextReader:
    """Reads a choice that is only calls or only text."""

    spans: tuple[Span, ...] = ()

    def __init__(self, call_openings: Sequence[str], call_reader: OutputReader) -> None:
        """`call_openings`: the texts with which calls begin. A choice of text begins with none of them.
        `call_reader`: reads the calls."""
        self._call_openings = call_openings
        self._call_reader = call_reader
        self._reader: OutputReader | None = None
        """None until the kind of the choice is known."""
        self._buffer = ""

    @property
    def has_complete_calls(self) -> bool:
        return self._reader is not None and self._reader.has_complete_calls

    def add(self, text: str) -> list[OutputPart]:
        """Buffers text until it is known whether the output begins with a call. Then passes all text to one
        reader."""
        if self._reader is None:
            text = self._buffer = self._buffer + text
            if any(map(text.startswith, self._call_openings)):
                self._reader = self._call_reader
            elif any(head.startswith(text) for head in self._call_openings):
                return []
            else:
                self._reader = PlainReader()
        return self._reader.add(text)

    def end(self, calls_required: bool = False) -> list[OutputPart]:
        if self._reader is None:
            return PlainReader().add(self._buffer)
        return self._reader.end(calls_required)


class ObjectReader:
    """Reads calls as JSON objects in a group: `opening`, an object or a list of them, `closing`."""

    spans: tuple[Span, ...] = ()
    _name_first = False
    """Whether an object must begin with the name to be a call."""

    def __init__(self, opening: str, closing: str) -> None:
        self._opening = opening
        self._closing = closing
        self._buffer = ""
        """Text whose kind is not known yet."""
        self._visible_text = VisibleText()
        self._read_parts: list[OutputPart] = []
        self._is_in_group = False
        self._call: JsonCall | None = None
        self._group_text = ""
        """The group's text since its previous call. If no call follows, this text is shown."""

    @property
    def has_complete_calls(self) -> bool:
        return self._visible_text.has_calls and self._call is None

    def add(self, text: str) -> list[OutputPart]:
        self._buffer += text
        while self._buffer and (self._read_inside() if self._is_in_group else self._read_outside()):
            pass
        return self._pop_parts()

    def end(self, calls_required: bool = False) -> list[OutputPart]:
        if calls_required or (self._is_in_group and self._is_call()):
            self._visible_text.record_cut()
        else:
            self._read_parts += self._visible_text.add(self._group_text + self._buffer)
        self._group_text = self._buffer = ""
        self._read_parts += self._visible_text.end()
        return self._pop_parts()

    def _is_call(self) -> bool:
        """Whether an unfinished group can only be a call."""
        return True

    def _pop_parts(self) -> list[OutputPart]:
        """Returns the identified parts, and clears them."""
        parts, self._read_parts = self._read_parts, []
        return parts

    # Each step removes text from the buffer, and returns whether another step can follow.

    def _read_outside(self) -> bool:
        """Reads the text before the next group."""
        at = self._buffer.find(self._opening)
        has_mark = at >= 0
        end = at if has_mark else find_partial_mark(self._buffer, self._opening)
        self._read_parts += self._visible_text.add(self._buffer[:end])
        self._buffer = self._buffer[end:]
        if has_mark:
            self._is_in_group = True
            self._consume(len(self._opening))
        return has_mark

    def _read_inside(self) -> bool:
        """Reads one step inside a group: a separator, the begin of a call, or the end of the group."""
        if self._call is not None:
            return self._read_object(self._call)
        rest = self._buffer.lstrip(SEPARATORS)
        self._consume(len(self._buffer) - len(rest))
        if rest.startswith("{"):
            self._call = JsonCall(self._name_first)
        elif self._closing and rest.startswith(self._closing):
            # A call clears `_group_text`, so it begins with the mark only before the group's first call.
            had_call = not self._group_text.startswith(self._opening)
            self._consume(len(self._closing))
            self._group_text = "" if had_call else self._group_text
            self._end_group()
        elif rest and self._closing.startswith(rest):
            return False
        elif rest:
            self._end_group()
        return True

    def _read_object(self, call: JsonCall) -> bool:
        """Reads further into a call. Ends the group if the object is no call."""
        self._consume(call.take(self._buffer, 0))
        if call.parts:
            self._read_parts += call.parts
            call.parts = []
            self._group_text = ""
            self._visible_text.record_call()
        if call.is_complete:
            self._call, self._group_text = None, ""
        elif call.is_broken:
            self._end_group()
        return call.is_complete or call.is_broken

    def _consume(self, count: int) -> None:
        """Moves the first `count` characters of the buffer to the group's text."""
        self._group_text += self._buffer[:count]
        self._buffer = self._buffer[count:]

    def _end_group(self) -> None:
        """Ends a group. If text remains that belongs to no call, shows it as text."""
        raw, self._group_text = self._group_text, ""
        self._is_in_group, self._call = False, None
        if raw.strip(SEPARATORS):
            self._read_parts += self._visible_text.add(raw)


class LeadingCallReader(ObjectReader):
    """Reads calls as JSON objects at the beginning of a text, perhaps after a mark. A text that begins
    differently has no calls."""

    _name_first = True

    def __init__(self, mark: str) -> None:
        super().__init__(opening=mark, closing="")
        self._is_decided = False
        """Whether it is known if the text begins with a call."""

    def _read_outside(self) -> bool:
        """Detects whether the text begins with a call. Shows all text if it does not."""
        if self._is_decided:
            self._read_parts += self._visible_text.add(self._buffer)
            self._buffer = ""
            return False
        header = self._buffer[:LONGEST_HEADER]
        rest = header.lstrip(SPACE)
        if self._opening and rest.startswith(self._opening):
            rest = rest[len(self._opening) :].lstrip(SPACE)
        elif self._opening.startswith(rest):
            rest = ""
        if not rest and len(self._buffer) <= LONGEST_HEADER:
            return False
        self._is_decided = True
        if rest.startswith("{"):
            self._is_in_group = True
            self._consume(len(header) - len(rest))
        return True

    def _is_call(self) -> bool:
        return self._visible_text.has_calls or (self._call is not None and self._call.is_call)
