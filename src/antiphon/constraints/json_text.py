"""JSON values in a growing text: where they begin, which objects are open, and which keys each object has.

A grammar already restricts the text to JSON. So this module checks only two rules: a key has one spelling,
and no object has a key twice. It ignores other text.

A mark in free text can look like the beginning of a value. So the module reads every possible value, beside
all other open values, until the text proves not to be JSON. The state of a value is immutable, so that a text
can be continued in several ways.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum, auto
from types import MappingProxyType
from typing import NamedTuple

from antiphon.constraints.grammar_types import WHOLE_TEXT, JsonPlaces, Marks
from antiphon.domain.values import replace

ESCAPED_CHARACTERS = '"\\' + "".join(map(chr, range(32)))
"""Characters that must be escaped in a JSON string."""

ESCAPES = frozenset(json.dumps(char)[1:-1].encode() for char in ESCAPED_CHARACTERS)
r"""The spelling of these characters in keys: a short escape if there is one, otherwise `\u00` and two
lower-case digits. The compiler spells the keys of a schema in the same way."""

PARTIAL_ESCAPES = frozenset(escape[:size] for escape in ESCAPES for size in range(1, len(escape)))

PLAIN = re.compile(rb'[^"\\]*')
SCALAR = re.compile(rb"[-+.0-9A-Za-z]*")
QUOTE, BACKSLASH = b'"', b"\\"

Level = frozenset[bytes] | None
"""The keys of an open object, as they are spelled; None for an open list."""


class JsonMode(IntEnum):
    """What is expected next in the text. The modes are integers because they are looked up for each token."""

    VALUE = auto()
    FIRST_ITEM = auto()
    """An item of a list, or its end."""
    FIRST_KEY = auto()
    """A key of an object, or its end."""
    NEXT_KEY = auto()
    KEY = auto()
    """The rest of a key."""
    COLON = auto()
    STRING = auto()
    """The rest of a string value."""
    SCALAR = auto()
    """The rest of a number, or of a name such as `true`."""
    COMMA = auto()
    """A comma, or the end of a list or an object."""
    DONE = auto()
    """Nothing: the text is complete."""
    REFUSED = auto()
    """Nothing: a key is repeated or misspelled."""
    BROKEN = auto()
    """Nothing: the text is not JSON."""


ENDED = frozenset({JsonMode.DONE, JsonMode.REFUSED, JsonMode.BROKEN})


class JsonText(NamedTuple):
    """The state of one value that is being written. It is a tuple because one is made for each examined
    token, and tuples are created fastest."""

    mode: JsonMode = JsonMode.VALUE
    levels: tuple[Level, ...] = ()
    key: bytes = b""
    """The beginning of the open key, as it is spelled, without an incomplete escape."""
    escape: bytes = b""
    """The incomplete escape in the open string or key."""

    def read(self, data: bytes, start: int = 0) -> "tuple[JsonText, int]":
        """Reads more bytes. Returns the new state and the index at which the value ended. If the value is
        still open, the index is the number of bytes."""
        if self.mode is JsonMode.STRING and not self.escape and QUOTE not in data and BACKSLASH not in data:
            return self, len(data)  # the most frequent case
        reader = _JsonReader(self, data, start)
        reader.read()
        return JsonText(reader.mode, reader.levels, reader.key, reader.escape), reader.index


class _JsonReader:
    """Reads bytes of one value. It has the mutable state during `JsonText.read`."""

    __slots__ = ("data", "escape", "index", "key", "levels", "mode")

    def __init__(self, text: JsonText, data: bytes, start: int) -> None:
        self.mode, self.levels, self.key, self.escape = text
        self.data = data
        self.index = start

    def read(self) -> None:
        """Reads until the bytes or the value end."""
        size = len(self.data)
        while self.index < size and self.mode not in ENDED:
            READERS[self.mode](self)

    def read_key(self) -> None:
        """Reads bytes of a key, up to the next escape or the closing quote. Refuses a repeated or misspelled
        key."""
        if self.escape:
            self._read_escape()
            return
        plain = self._read_plain()
        self.key += plain
        if self.index == len(self.data):
            return
        if self._next() == BACKSLASH:
            self.escape = BACKSLASH
        elif (keys := self.levels[-1]) is None or self.key in keys:
            self.mode = JsonMode.REFUSED
        else:
            self.levels = (*self.levels[:-1], keys | {self.key})
            self.key, self.mode = b"", JsonMode.COLON

    def _read_escape(self) -> None:
        """Reads one byte of an escape in a key. Adds the complete escape to the key. Refuses a misspelled
        escape."""
        self.escape += self._next()
        if self.escape in ESCAPES:
            self.key += self.escape
            self.escape = b""
        elif self.escape not in PARTIAL_ESCAPES:
            self.mode = JsonMode.REFUSED

    def read_string(self) -> None:
        """Reads bytes of a string value, up to the next escape or the closing quote."""
        if self.escape:  # values may use any escape
            self.escape = b""
            self.index += 1
            return
        self._read_plain()
        if self.index == len(self.data):
            return
        if self._next() == BACKSLASH:
            self.escape = BACKSLASH
        else:
            self._end_value()

    def read_scalar(self) -> None:
        """Reads bytes of a number or a name, up to the byte that ends it."""
        match = SCALAR.match(self.data, self.index)
        self.index = self.index if match is None else match.end()
        if self.index < len(self.data):
            self._end_value()

    def read_sign(self) -> None:
        """Reads a byte outside of strings and scalars."""
        sign = self._next()
        if sign.isspace():
            return
        if self.mode in (JsonMode.VALUE, JsonMode.FIRST_ITEM):
            self._begin_value(sign)
        elif self.mode in (JsonMode.FIRST_KEY, JsonMode.NEXT_KEY):
            self._begin_key(sign)
        elif self.mode is JsonMode.COLON:
            self.mode = JsonMode.VALUE if sign == b":" else JsonMode.BROKEN
        elif sign == b",":
            self.mode = JsonMode.VALUE if self.levels[-1] is None else JsonMode.NEXT_KEY
        else:
            self._close(sign)

    def _begin_value(self, sign: bytes) -> None:
        """Reads the first byte of a value, or the end of an empty list."""
        if sign == b"{":
            self.levels = (*self.levels, frozenset())
            self.mode = JsonMode.FIRST_KEY
        elif sign == b"[":
            self.levels = (*self.levels, None)
            self.mode = JsonMode.FIRST_ITEM
        elif sign == QUOTE:
            self.mode = JsonMode.STRING
        elif SCALAR.fullmatch(sign):
            self.mode = JsonMode.SCALAR
        elif self.mode is JsonMode.FIRST_ITEM:
            self._close(sign)
        else:
            self.mode = JsonMode.BROKEN

    def _begin_key(self, sign: bytes) -> None:
        """Reads the quote before a key, or the end of an empty object."""
        if sign == QUOTE:
            self.mode = JsonMode.KEY
        elif self.mode is JsonMode.FIRST_KEY:
            self._close(sign)
        else:
            self.mode = JsonMode.BROKEN

    def _close(self, sign: bytes) -> None:
        """Ends the innermost object or list if the byte is its closing bracket. After any other byte, the
        text is not JSON."""
        if sign == (b"]" if self.levels[-1] is None else b"}"):
            self.levels = self.levels[:-1]
            self._end_value()
        else:
            self.mode = JsonMode.BROKEN

    def _end_value(self) -> None:
        """Sets the mode after a value: expects a comma or bracket, or nothing if the whole value is
        complete."""
        self.mode = JsonMode.COMMA if self.levels else JsonMode.DONE

    def _read_plain(self) -> bytes:
        """Reads the bytes before the next quote, backslash or end."""
        match = PLAIN.match(self.data, self.index)
        plain = b"" if match is None else match[0]
        self.index += len(plain)
        return plain

    def _next(self) -> bytes:
        """Returns the next byte and moves past it."""
        self.index += 1
        return self.data[self.index - 1 : self.index]


READERS: Mapping[JsonMode, Callable[[_JsonReader], None]] = MappingProxyType(
    dict.fromkeys(JsonMode, _JsonReader.read_sign)
    | {
        JsonMode.KEY: _JsonReader.read_key,
        JsonMode.STRING: _JsonReader.read_string,
        JsonMode.SCALAR: _JsonReader.read_scalar,
    }
)


class PartialMarks(NamedTuple):
    """Marks of which the text contains the beginning. A value begins after complete marks."""

    texts: tuple[bytes, ...]
    size: int = 0
    """How many bytes of these marks the text contains."""


class TextState(NamedTuple):
    """The state of a text: its open values and incomplete marks."""

    states: tuple[JsonText, ...] = ()
    """The state of each open value."""
    partial_marks: tuple[PartialMarks, ...] = ()
    tail: bytes = b""
    """The end of the text, which may contain the beginning of a mark."""


class JsonFinder:
    """Finds the JSON values in texts of one grammar. Any thread may use it."""

    def __init__(self, places: JsonPlaces, spelling: Callable[[int], bytes]) -> None:
        """`spelling`: returns the bytes that a token adds to a text. For a token without text, it returns a
        name that occurs in no text."""

        def spell(marks: Marks) -> bytes:
            return b"".join(spelling(mark) if isinstance(mark, int) else str(mark).encode() for mark in marks)

        self._anywhere = tuple(map(spell, places.anywhere))
        self._last_bytes = frozenset(mark[-1] for mark in self._anywhere)
        self._longest = max(map(len, self._anywhere), default=0)
        self._after_json = tuple(map(spell, places.after_json))
        self.is_single_value = replace(places, keys_can_run_out=False) == WHOLE_TEXT
        """Whether the text is one value and nothing else."""
        at_start = PartialMarks(tuple(map(spell, places.at_start)))
        if self.is_single_value:
            self.start = TextState((JsonText(),))
        else:
            self.start = self._read(TextState(partial_marks=(at_start,)), b"")
        """The state of an empty text."""

    def read(self, text_state: TextState, data: bytes) -> TextState | None:
        """Reads more bytes and returns the new state. Returns None if the bytes repeat or misspell a key."""
        if self.is_single_value:
            state, _ = text_state.states[0].read(data)
            return None if state.mode is JsonMode.REFUSED else TextState((state,))
        text_state = self._read(text_state, data)
        return None if any(state.mode is JsonMode.REFUSED for state in text_state.states) else text_state

    def _read(self, text_state: TextState, data: bytes) -> TextState:
        """Reads more bytes of all open values and incomplete marks. Returns the new state."""
        new_items: list[JsonText | PartialMarks] = []
        open_items: list[JsonText | PartialMarks] = [*text_state.states, *text_state.partial_marks]
        for item in open_items:
            new_items += self._follow(item, data, 0)
        tail = b""
        if self._anywhere:
            text = text_state.tail + data
            mark_ends = self._find_mark_ends(text, len(text_state.tail))
            for index in mark_ends:
                new_items += self._follow(JsonText(), data, index)
            tail = text[-self._longest :]
        states = tuple(each for each in new_items if isinstance(each, JsonText))
        partial_marks = tuple(each for each in new_items if isinstance(each, PartialMarks))
        return TextState(states, partial_marks, tail)

    def _follow(
        self, item: JsonText | PartialMarks, data: bytes, index: int
    ) -> Iterator[JsonText | PartialMarks]:
        """Reads bytes of one open value or of incomplete marks. Yields the values and marks that are open
        afterwards."""
        if isinstance(item, PartialMarks):
            yield from self._follow_marks(item, data, index)
            return
        value, index = item.read(data, index)
        if value.mode is JsonMode.DONE:
            yield from self._follow_marks(PartialMarks(self._after_json), data, index)
        elif value.mode is not JsonMode.BROKEN:
            yield value

    def _follow_marks(
        self, marks: PartialMarks, data: bytes, index: int
    ) -> Iterator[JsonText | PartialMarks]:
        """Reads the bytes after incomplete marks. Yields the values that begin after complete marks, and the
        marks that are still incomplete."""
        following = data[index:]
        incomplete = []
        for text in marks.texts:
            rest = text[marks.size :]
            if following.startswith(rest):
                yield from self._follow(JsonText(), data, index + len(rest))
            elif rest.startswith(following):
                incomplete.append(text)
        if incomplete:
            yield PartialMarks(tuple(incomplete), marks.size + len(following))

    def _find_mark_ends(self, text: bytes, start: int) -> Iterator[int]:
        """Yields the indices where marks end, counted from `start`."""
        for index in range(start, len(text)):
            if text[index] in self._last_bytes and text.endswith(self._anywhere, 0, index + 1):
                yield index + 1 - start
