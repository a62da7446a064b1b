"""JSON as it grows: which objects are open, and which keys each of them has.

It reads what a grammar already holds to JSON, so it checks two things alone: a key has one spelling, and no
object has a key twice. A text that is no JSON is left alone. Values are immutable, so that one text can be
continued in several ways.
"""

import json
import re
from collections.abc import Callable, Mapping
from enum import IntEnum, auto
from types import MappingProxyType
from typing import NamedTuple

UNPRINTED = '"\\' + "".join(map(chr, range(32)))
"""Characters that a string of JSON cannot hold as they are."""

ESCAPES = frozenset(json.dumps(char)[1:-1].encode() for char in UNPRINTED)
"""How a key spells them: by a short escape where there is one, otherwise by `\\u00` and two digits in lower
case. The compiler spells the keys of a schema in the same way."""

ESCAPES_BEGUN = frozenset(escape[:size] for escape in ESCAPES for size in range(1, len(escape)))

PLAIN = re.compile(rb'[^"\\]*')
SCALAR = re.compile(rb"[-+.0-9A-Za-z]*")
QUOTE, BACKSLASH = b'"', b"\\"

Level = frozenset[bytes] | None
"""The keys of an open object, as they are spelled; None for an open list."""


class Mode(IntEnum):
    """What comes next. Integers, because they are looked up for every token."""

    VALUE = auto()
    FIRST_ITEM = auto()
    """An item of a list, or its end."""
    FIRST_KEY = auto()
    """A key of an object, or its end."""
    NEXT_KEY = auto()
    KEY = auto()
    """The rest of one."""
    COLON = auto()
    STRING = auto()
    """The rest of a value."""
    SCALAR = auto()
    """The rest of a number, or of a name such as `true`."""
    COMMA = auto()
    """A comma, or the end of a list or an object."""
    DONE = auto()
    """Nothing: the text is whole."""
    REFUSED = auto()
    """Nothing: a key is repeated or misspelled."""
    BROKEN = auto()
    """Nothing: the text is no JSON."""


ENDED = frozenset({Mode.DONE, Mode.REFUSED, Mode.BROKEN})


class JsonText(NamedTuple):
    """One value as far as it is written. A tuple, because one is made for every token that is tried."""

    mode: Mode = Mode.VALUE
    levels: tuple[Level, ...] = ()
    key: bytes = b""
    """The open key as it is spelled so far, without an escape that has just begun."""
    escape: bytes = b""
    """An escape that has begun in the open string or key."""

    def read(self, data: bytes, start: int = 0) -> "tuple[JsonText, int]":
        """The text after more bytes, and where in them it ended; their length where it goes on."""
        if self.mode is Mode.STRING and not self.escape and QUOTE not in data and BACKSLASH not in data:
            return self, len(data)  # what most tokens are
        reader = _Reader(self, data, start)
        reader.read()
        return JsonText(reader.mode, reader.levels, reader.key, reader.escape), reader.at


class _Reader:
    """Reads bytes from where a text stands."""

    __slots__ = ("at", "data", "escape", "key", "levels", "mode")

    def __init__(self, text: JsonText, data: bytes, start: int) -> None:
        self.mode, self.levels, self.key, self.escape = text
        self.data = data
        self.at = start

    def read(self) -> None:
        size = len(self.data)
        while self.at < size and self.mode not in ENDED:
            READERS[self.mode](self)

    def read_key(self) -> None:
        if self.escape:
            self._read_escape()
            return
        found = self._read_plain()
        self.key += found
        if self.at == len(self.data):
            return
        if self._next() == BACKSLASH:
            self.escape = BACKSLASH
        elif (keys := self.levels[-1]) is None or self.key in keys:
            self.mode = Mode.REFUSED
        else:
            self.levels = (*self.levels[:-1], keys | {self.key})
            self.key, self.mode = b"", Mode.COLON

    def _read_escape(self) -> None:
        self.escape += self._next()
        if self.escape in ESCAPES:
            self.key += self.escape
            self.escape = b""
        elif self.escape not in ESCAPES_BEGUN:
            self.mode = Mode.REFUSED

    def read_string(self) -> None:
        if self.escape:  # a value may spell its characters as it likes
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
        match = SCALAR.match(self.data, self.at)
        self.at = self.at if match is None else match.end()
        if self.at < len(self.data):
            self._end_value()

    def read_sign(self) -> None:
        """A byte outside of strings and scalars."""
        sign = self._next()
        if sign.isspace():
            return
        if self.mode in (Mode.VALUE, Mode.FIRST_ITEM):
            self._begin_value(sign)
        elif self.mode in (Mode.FIRST_KEY, Mode.NEXT_KEY):
            self._begin_key(sign)
        elif self.mode is Mode.COLON:
            self.mode = Mode.VALUE if sign == b":" else Mode.BROKEN
        elif sign == b",":
            self.mode = Mode.VALUE if self.levels[-1] is None else Mode.NEXT_KEY
        else:
            self._close(sign)

    def _begin_value(self, sign: bytes) -> None:
        if sign == b"{":
            self.levels = (*self.levels, frozenset())
            self.mode = Mode.FIRST_KEY
        elif sign == b"[":
            self.levels = (*self.levels, None)
            self.mode = Mode.FIRST_ITEM
        elif sign == QUOTE:
            self.mode = Mode.STRING
        elif SCALAR.fullmatch(sign):
            self.mode = Mode.SCALAR
        elif self.mode is Mode.FIRST_ITEM:
            self._close(sign)
        else:
            self.mode = Mode.BROKEN

    def _begin_key(self, sign: bytes) -> None:
        if sign == QUOTE:
            self.mode = Mode.KEY
        elif self.mode is Mode.FIRST_KEY:
            self._close(sign)
        else:
            self.mode = Mode.BROKEN

    def _close(self, sign: bytes) -> None:
        if sign == (b"]" if self.levels[-1] is None else b"}"):
            self.levels = self.levels[:-1]
            self._end_value()
        else:
            self.mode = Mode.BROKEN

    def _end_value(self) -> None:
        self.mode = Mode.COMMA if self.levels else Mode.DONE

    def _read_plain(self) -> bytes:
        """What stands before the next quote, backslash or end."""
        match = PLAIN.match(self.data, self.at)
        found = b"" if match is None else match[0]
        self.at += len(found)
        return found

    def _next(self) -> bytes:
        self.at += 1
        return self.data[self.at - 1 : self.at]


READERS: Mapping[Mode, Callable[[_Reader], None]] = MappingProxyType(
    dict.fromkeys(Mode, _Reader.read_sign)
    | {Mode.KEY: _Reader.read_key, Mode.STRING: _Reader.read_string, Mode.SCALAR: _Reader.read_scalar}
)
