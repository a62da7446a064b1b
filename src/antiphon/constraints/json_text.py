"""JSON values in a growing text: where they begin, which objects are open, and which keys each object has.

A grammar already restricts the text to JSON. So this module checks two rules only: a key has one spelling,
and no object has a key twice. It ignores other text. It reads anything that looks like the beginning of a
value as a value, until the text proves not to be JSON, and beside any other open value. So a mark in free
text cannot hide a value that follows. The state of a value is immutable, so that one text can be continued in
several ways.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from enum import IntEnum, auto
from types import MappingProxyType
from typing import NamedTuple

from antiphon.constraints.grammar_types import WHOLE_TEXT, JsonPlaces, Marks

UNPRINTED = '"\\' + "".join(map(chr, range(32)))
"""Characters that must be escaped in a JSON string."""

ESCAPES = frozenset(json.dumps(char)[1:-1].encode() for char in UNPRINTED)
r"""The spelling of these characters in keys: a short escape if there is one, otherwise `\u00` and two
lower-case digits. The compiler spells the keys of a schema in the same way."""

ESCAPES_BEGUN = frozenset(escape[:size] for escape in ESCAPES for size in range(1, len(escape)))

PLAIN = re.compile(rb'[^"\\]*')
SCALAR = re.compile(rb"[-+.0-9A-Za-z]*")
QUOTE, BACKSLASH = b'"', b"\\"

Level = frozenset[bytes] | None
"""The keys of an open object, as they are spelled; None for an open list."""


class JsonMode(IntEnum):
    """The next expected part. The modes are integers for speed, because each token looks them up."""

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
    """One value as far as it is written. It is a tuple for speed, because one is made for each token that is
    tried."""

    mode: JsonMode = JsonMode.VALUE
    levels: tuple[Level, ...] = ()
    key: bytes = b""
    """The open key as it is spelled so far, without an incomplete escape at its end."""
    escape: bytes = b""
    """The incomplete escape in the open string or key."""

    def read(self, data: bytes, start: int = 0) -> "tuple[JsonText, int]":
        """Reads more bytes. Returns the new state and the index at which the value ended. If the value is
        still open, the index is the number of bytes."""
        if self.mode is JsonMode.STRING and not self.escape and QUOTE not in data and BACKSLASH not in data:
            return self, len(data)  # the usual case
        reader = _JsonReader(self, data, start)
        reader.read()
        return JsonText(reader.mode, reader.levels, reader.key, reader.escape), reader.at


class _JsonReader:
    """Reads bytes in the current mode of a text."""

    __slots__ = ("at", "data", "escape", "key", "levels", "mode")

    def __init__(self, text: JsonText, data: bytes, start: int) -> None:
        self.mode, self.levels, self.key, self.escape = text
        self.data = data
        self.at = start

    def read(self) -> None:
        """Reads the next part of the text in its current mode."""
        size = len(self.data)
        while self.at < size and self.mode not in ENDED:
            READERS[self.mode](self)

    def read_key(self) -> None:
        """Reads bytes of a key, up to the next escape or the closing quote. Refuses a repeated or misspelled
        key."""
        if self.escape:
            self._read_escape()
            return
        plain = self._read_plain()
        self.key += plain
        if self.at == len(self.data):
            return
        if self._next() == BACKSLASH:
            self.escape = BACKSLASH
        elif (keys := self.levels[-1]) is None or self.key in keys:
            self.mode = JsonMode.REFUSED
        else:
            self.levels = (*self.levels[:-1], keys | {self.key})
            self.key, self.mode = b"", JsonMode.COLON

    def _read_escape(self) -> None:
        """Reads one more byte of an escape. In a key, adds the complete escape to the key, and refuses a
        misspelled one."""
        self.escape += self._next()
        if self.escape in ESCAPES:
            self.key += self.escape
            self.escape = b""
        elif self.escape not in ESCAPES_BEGUN:
            self.mode = JsonMode.REFUSED

    def read_string(self) -> None:
        """Reads bytes of a string value, up to the next escape or the closing quote."""
        if self.escape:  # values may use any escape
            self.escape = b""
            self.at += 1
            return
        self._read_plain()
        if self.at == len(self.data):
            return
        if self._next() == BACKSLASH:
            self.escape = BACKSLASH
        else:
            self._end_value()

    def read_scalar(self) -> None:
        """Reads bytes of a number or a name, up to the byte that ends it."""
        match = SCALAR.match(self.data, self.at)
        self.at = self.at if match is None else match.end()
        if self.at < len(self.data):
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
        """Ends the innermost object or list if the byte is its closing bracket. Otherwise the text is not
        JSON."""
        if sign == (b"]" if self.levels[-1] is None else b"}"):
            self.levels = self.levels[:-1]
            self._end_value()
        else:
            self.mode = JsonMode.BROKEN

    def _end_value(self) -> None:
        """Expects a comma or a bracket after a value, or nothing if the whole text is complete."""
        self.mode = JsonMode.COMMA if self.levels else JsonMode.DONE

    def _read_plain(self) -> bytes:
        """Reads the bytes before the next quote, backslash or end."""
        match = PLAIN.match(self.data, self.at)
        plain = b"" if match is None else match[0]
        self.at += len(plain)
        return plain

    def _next(self) -> bytes:
        """Returns the next byte and moves past it."""
        self.at += 1
        return self.data[self.at - 1 : self.at]


READERS: Mapping[JsonMode, Callable[[_JsonReader], None]] = MappingProxyType(
    dict.fromkeys(JsonMode, _JsonReader.read_sign)
    | {
        JsonMode.KEY: _JsonReader.read_key,
        JsonMode.STRING: _JsonReader.read_string,
        JsonMode.SCALAR: _JsonReader.read_scalar,
    }
)


class PartialMarks(NamedTuple):
    """Incomplete marks, after which a value may begin."""

    texts: tuple[bytes, ...]
    size: int = 0
    """The number of bytes of these marks that were read."""


class FoundValues(NamedTuple):
    """The open values of a text, as far as it is read."""

    values: tuple[JsonText, ...] = ()
    """The open values."""
    leads: tuple[PartialMarks, ...] = ()
    tail: bytes = b""
    """The end of the text, which may contain the beginning of a mark."""


class JsonFinder:
    """Reads the texts of one grammar. Any thread may use it."""

    def __init__(self, places: JsonPlaces, spelling: Callable[[int], bytes]) -> None:
        """`spelling` gives the bytes that a token adds to a text. For a token without text, `spelling` gives
        a name that occurs in no text."""

        def spell(marks: Marks) -> bytes:
            return b"".join(spelling(mark) if isinstance(mark, int) else mark.encode() for mark in marks)

        self._anywhere = tuple(map(spell, places.anywhere))
        self._last_bytes = frozenset(mark[-1] for mark in self._anywhere)
        self._longest = max(map(len, self._anywhere), default=0)
        self._after_json = tuple(map(spell, places.after_json))
        self.is_whole = replace(places, keys_run_out=False) == WHOLE_TEXT
        """Whether the text is one value and nothing else."""
        at_start = PartialMarks(tuple(map(spell, places.at_start)))
        self.start = (
            FoundValues((JsonText(),)) if self.is_whole else self._read(FoundValues(leads=(at_start,)), b"")
        )
        """The state of an empty text."""

    def read(self, values: FoundValues, data: bytes) -> FoundValues | None:
        """Reads more bytes. Returns None if the bytes repeat or misspell a key."""
        if self.is_whole:
            value, _ = values.values[0].read(data)
            return None if value.mode is JsonMode.REFUSED else FoundValues((value,))
        values = self._read(values, data)
        return None if any(value.mode is JsonMode.REFUSED for value in values.values) else values

    def _read(self, found_values: FoundValues, data: bytes) -> FoundValues:
        """Reads more bytes into all open values and marks. Returns the values and marks that are open
        afterwards."""
        parts: list[JsonText | PartialMarks] = [*found_values.values, *found_values.leads]
        open_now = [each for part in parts for each in self._follow(part, data, 0)]
        tail = b""
        if self._anywhere:
            text = found_values.tail + data
            mark_ends = self._find_mark_ends(text, len(found_values.tail))
            open_now += [each for at in mark_ends for each in self._follow(JsonText(), data, at)]
            tail = text[-self._longest :]
        values = tuple(each for each in open_now if isinstance(each, JsonText))
        return FoundValues(values, tuple(each for each in open_now if isinstance(each, PartialMarks)), tail)

    def _follow(
        self, part: JsonText | PartialMarks, data: bytes, at: int
    ) -> Iterator[JsonText | PartialMarks]:
        """Reads the bytes from one open value or mark. Returns the values and marks that are open
        afterwards."""
        if isinstance(part, PartialMarks):
            yield from self._follow_marks(part, data, at)
            return
        value, at = part.read(data, at)
        if value.mode is JsonMode.DONE:
            yield from self._follow_marks(PartialMarks(self._after_json), data, at)
        elif value.mode is not JsonMode.BROKEN:
            yield value

    def _follow_marks(self, lead: PartialMarks, data: bytes, at: int) -> Iterator[JsonText | PartialMarks]:
        """Reads the bytes after incomplete marks. Yields the values that begin after complete marks, and the
        marks that are still incomplete."""
        following = data[at:]
        going_on = []
        for text in lead.texts:
            rest = text[lead.size :]
            if following.startswith(rest):
                yield from self._follow(JsonText(), data, at + len(rest))
            elif rest.startswith(following):
                going_on.append(text)
        if going_on:
            yield PartialMarks(tuple(going_on), lead.size + len(following))

    def _find_mark_ends(self, text: bytes, start: int) -> Iterator[int]:
        """The indices, after the start, at which marks end."""
        for at in range(start, len(text)):
            if text[at] in self._last_bytes and text.endswith(self._anywhere, 0, at + 1):
                yield at + 1 - start
