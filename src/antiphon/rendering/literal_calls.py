"""Reads calls that look like calls in a programming language: Python's (Llama 4, LFM 2) and Gemma 4's.

`LiteralReader` converts the arguments to JSON while they arrive. `LiteralCallReader` finds the calls. The
result does not depend on how the text is divided.
"""

import json
import re
from enum import Enum, auto
from math import isfinite
from types import MappingProxyType

from antiphon.constraints.argument_types import LITERALS
from antiphon.domain.values import Struct
from antiphon.rendering.call_readers import (
    LONGEST_HEADER,
    SPACE,
    CallArguments,
    CallName,
    OutputPart,
    Span,
    VisibleText,
    find_partial_mark,
)

NAME = re.compile(r"[\w.-]*")

LONGEST_NAME = 64
"""The most characters of a function's name."""

JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")

CLOSERS = MappingProxyType({"{": "}", "[": "]", "(": ")"})

ESCAPE = re.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[^xuU])", re.DOTALL)
"""An escape of Python."""

LONGEST_ESCAPE = 10

ESCAPED = MappingProxyType(
    {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "0": "\0", "\n": ""}
    | {char: char for char in "\\'\""}
)
"""The characters that Python's short escapes mean."""


class LiteralMarks(Struct, frozen=True):
    """The marks of a family's calls."""

    open: str
    """Before a group of calls; empty if calls are only at the beginning of the text."""
    list_open: str
    """Between the opening mark and the first call."""
    before_name: str
    after_name: str
    """The bracket before the arguments."""
    quotes: tuple[str, ...]
    """The marks around a text."""
    has_escapes: bool
    """Whether a text has Python's escapes."""
    list_close: str
    """After the last call."""
    close: str
    """After a group of calls; empty if there is no such mark."""
    before_value: str
    """Between an argument's name and its value."""
    after_value: str
    """The mark after a text; empty if a text has escapes."""


class LiteralReader:
    """Converts the arguments of one call to JSON, from after their opening bracket to their closing one."""

    def __init__(self, marks: LiteralMarks) -> None:
        self._marks = marks
        self._closers = [CLOSERS[marks.after_name]]
        """The brackets that will close what is open."""
        self._keys: list[set[str] | None] = [set()]
        """The keys of each open object; None for a list."""
        self._quote = ""
        """The mark that ends the open text; empty outside a text."""
        self._key: str | None = None
        """The key that is being read; None outside a key."""
        self._word = ""
        """A value or key without quotes."""
        self._expects_key = True
        self._needs_comma = False
        """Whether a comma must come before the next member."""
        self._muted_level = 0
        """The number of open brackets at which a repeated key's value ends; 0 if there is none."""
        self._written: list[str] = ["{"]
        self.is_complete = False

    def take(self, text: str) -> tuple[str, int]:
        """Reads the beginning of a text. Returns the JSON of it, and how many characters were read."""
        index = 0
        while index < len(text) and not self.is_complete:
            step = self._take_quoted(text, index) if self._quote else self._take_plain(text, index)
            if not step:
                break
            index += step
        written, self._written = "".join(self._written), []
        return written, index

    def _write(self, text: str) -> None:
        if not self._muted_level:
            self._written.append(text)

    def _take_quoted(self, text: str, index: int) -> int:
        """Reads characters of a text. Returns how many; 0 if more must arrive first."""
        if text.startswith(self._quote, index):
            size = len(self._quote)
            self._quote = ""
            if self._key is None:
                self._write('"')
                self._needs_comma = True
            return size
        if self._marks.has_escapes and text[index] == "\\":
            escape = ESCAPE.match(text, index)
            if escape is None and len(text) - index < LONGEST_ESCAPE:
                return 0
            self._add_text("\\" if escape is None else _read_escape(escape[0]))
            return 1 if escape is None else len(escape[0])
        signs = (self._quote, "\\") if self._marks.has_escapes else (self._quote,)
        end = min(
            (at for sign in signs if (at := text.find(sign, index)) >= 0),
            default=index + find_partial_mark(text[index:], self._quote),
        )
        self._add_text(text[index:end])
        return end - index

    def _add_text(self, text: str) -> None:
        """Adds characters to the open text or key."""
        if self._key is None:
            self._write(json.dumps(text, ensure_ascii=False)[1:-1])
        else:
            self._key += text

    def _take_plain(self, text: str, index: int) -> int:
        """Reads a sign, or a character of a word. Returns how many characters it read; 0 if more must arrive
        first."""
        for quote in self._marks.quotes:
            if text.startswith(quote, index):
                self._end_word()
                self._quote = quote
                if self._expects_key:
                    self._key = ""
                else:
                    self._begin_value()
                    self._write('"')
                return len(quote)
            if quote.startswith(text[index : index + len(quote)]):
                return 0
        char = text[index]
        if char in ":=":
            self._end_key(char)
        elif char in CLOSERS:
            self._end_word()
            self._begin_value()
            is_object = char == "{"
            self._write("{" if is_object else "[")
            self._closers.append(CLOSERS[char])
            self._keys.append(set() if is_object else None)
            self._expects_key, self._needs_comma = is_object, False
        elif char == self._closers[-1]:
            self._close()
        elif char == ",":
            self._end_word()
            self._end_muted(len(self._closers))
            self._expects_key = self._keys[-1] is not None
        elif char in SPACE:
            self._word += char if self._word else ""
        else:
            self._word += char
        return 1

    def _end_key(self, char: str) -> None:
        """Ends a key at this sign, and writes it unless the object has it already. In a value the sign is one
        of its characters."""
        if not self._expects_key:
            self._word += char
            return
        key = self._word.strip(SPACE) if self._key is None else self._key
        self._word, self._key, self._expects_key = "", None, False
        keys = self._keys[-1]
        if keys is None or self._muted_level:
            return
        if key in keys:
            self._muted_level = len(self._closers)
            return
        keys.add(key)
        self._begin_value()
        self._write(f"{json.dumps(key, ensure_ascii=False)}: ")
        self._needs_comma = False

    def _begin_value(self) -> None:
        """Writes the comma before a member, if it needs one."""
        if self._needs_comma:
            self._write(", ")
            self._needs_comma = False

    def _end_word(self) -> None:
        """Writes a value without quotes."""
        word, self._word = self._word.strip(SPACE), ""
        if word and not self._expects_key:
            self._begin_value()
            self._write(_convert_word(word))
            self._needs_comma = True

    def _end_muted(self, level: int) -> None:
        """Ends the value of a repeated key, if it ends here."""
        if self._muted_level == level:
            self._muted_level = 0
            self._needs_comma = True

    def _close(self) -> None:
        """Closes the innermost object or list."""
        self._end_word()
        self._key = None  # a text without a key before it
        self._end_muted(len(self._closers))
        self._closers.pop()
        self._write("}" if self._keys.pop() is not None else "]")
        self._needs_comma, self._expects_key = True, False
        self.is_complete = not self._closers


def _read_escape(escape: str) -> str:
    """Returns the character of an escape of Python; an unknown escape stays what it is."""
    if len(escape) == 2:
        return ESCAPED.get(escape[1], escape)
    code_point = int(f"0x{escape[2:]}", 0)
    return chr(code_point) if code_point < 0xD800 or 0xDFFF < code_point < 0x110000 else escape


def _convert_word(word: str) -> str:
    """Converts a value without quotes to JSON: a number, or a word of Python or JSON. Any other word is a
    text."""
    if word in LITERALS:
        return json.dumps(LITERALS[word])
    if word in ("true", "false", "null") or JSON_NUMBER.fullmatch(word):
        return word
    try:
        number = float(word)
    except ValueError:
        return json.dumps(word, ensure_ascii=False)
    return json.dumps(number) if isfinite(number) else json.dumps(word)


class _State(Enum):
    """What the buffer begins with."""

    OUTSIDE = auto()
    HEADER = auto()
    ARGUMENTS = auto()
    BETWEEN = auto()
    """After a call, inside a group."""
    TEXT = auto()
    """Text to the end, because calls are only at the beginning."""


class LiteralCallReader:
    """Reads one choice."""

    spans: tuple[Span, ...] = ()

    def __init__(self, marks: LiteralMarks) -> None:
        self._marks = marks
        self._buffer = ""
        self._visible_text = VisibleText()
        self._read_parts: list[OutputPart] = []
        self._state = _State.OUTSIDE
        self._arguments = LiteralReader(marks)
        self._had_call = False
        """Whether the open group has a call."""
        self._opening = ""
        """The text of the open group before its first call. If no call follows, this text is shown."""

    @property
    def has_complete_calls(self) -> bool:
        return self._visible_text.has_calls and self._state not in (_State.HEADER, _State.ARGUMENTS)

    def add(self, text: str) -> list[OutputPart]:
        self._buffer += text
        while self._buffer and self._advance():
            pass
        return self._pop_parts()

    def end(self, calls_required: bool = False) -> list[OutputPart]:
        is_header = self._state is _State.HEADER and bool(self._marks.open or self._had_call)
        if calls_required or is_header or self._state in (_State.ARGUMENTS, _State.BETWEEN):
            self._visible_text.record_cut()
        else:
            self._read_parts += self._visible_text.add(self._opening + self._buffer)
        self._buffer = self._opening = ""
        self._read_parts += self._visible_text.end()
        return self._pop_parts()

    def _pop_parts(self) -> list[OutputPart]:
        """Returns the identified parts, and clears them."""
        parts, self._read_parts = self._read_parts, []
        return parts

    # Each step removes text from the buffer, and returns whether another step can follow.

    def _advance(self) -> bool:
        match self._state:
            case _State.OUTSIDE:
                return self._read_outside()
            case _State.HEADER:
                return self._read_header()
            case _State.ARGUMENTS:
                return self._read_arguments()
            case _State.BETWEEN:
                return self._read_between()
            case _State.TEXT:
                self._show(len(self._buffer))
                return False

    def _read_outside(self) -> bool:
        """Shows the text before the next group. Without a mark before groups, the whole text begins with a
        group or has none."""
        opening = self._marks.open
        if not opening:
            header = self._buffer[:LONGEST_HEADER]
            size = len(header) - len(header.lstrip(SPACE))
            if size == len(header):
                is_text = len(self._buffer) > LONGEST_HEADER
                self._state = _State.TEXT if is_text else _State.OUTSIDE
                return is_text
            opening, self._buffer = self._buffer[:size], self._buffer[size:]
        else:
            at = self._buffer.find(opening)
            self._show(at if at >= 0 else find_partial_mark(self._buffer, opening))
            if at < 0:
                return False
            self._buffer = self._buffer[len(opening) :]
        self._opening, self._had_call, self._state = opening, False, _State.HEADER
        return True

    def _read_header(self) -> bool:
        """Reads what comes before the arguments. A header without a name, or with too many spaces, is
        text."""
        marks, header = self._marks, self._buffer[:LONGEST_HEADER]
        can_end, rest = len(self._buffer) <= LONGEST_HEADER, header
        for mark in (marks.before_name,) if self._had_call else (marks.list_open, marks.before_name):
            rest = rest.lstrip(SPACE)
            if not rest.startswith(mark):
                return False if can_end and mark.startswith(rest) else self._reject_header()
            rest = rest[len(mark) :]
        rest = rest.lstrip(SPACE)
        match = NAME.match(rest)
        name = match[0] if match is not None else ""
        after_name = rest[len(name) :]
        if can_end and not after_name and len(name) <= LONGEST_NAME:
            return False
        if not name or name[0].isdigit() or not after_name.startswith(marks.after_name):
            return self._reject_header()
        self._buffer = self._buffer[len(header) - len(after_name) + len(marks.after_name) :]
        self._opening = ""
        self._read_parts.append(CallName(name))
        self._visible_text.record_call()
        self._arguments, self._had_call, self._state = LiteralReader(marks), True, _State.ARGUMENTS
        return True

    def _reject_header(self) -> bool:
        """Shows the opening mark of a group without calls as text."""
        self._read_parts += self._visible_text.add(self._opening)
        self._opening = ""
        self._state = _State.OUTSIDE if self._marks.open else _State.TEXT
        return True

    def _read_arguments(self) -> bool:
        """Reads arguments up to their closing bracket."""
        written, size = self._arguments.take(self._buffer)
        if written:
            self._read_parts.append(CallArguments(written))
        self._buffer = self._buffer[size:]
        if self._arguments.is_complete:
            self._state = _State.BETWEEN
        return self._arguments.is_complete

    def _read_between(self) -> bool:
        """Reads what follows a call in its group: the next call, or the end of the group."""
        self._buffer = rest = self._buffer.lstrip(SPACE)
        if self._marks.list_close and rest.startswith(","):
            self._buffer, self._state = rest[1:], _State.HEADER
            return True
        for mark in (self._marks.list_close, self._marks.close):
            rest = rest.lstrip(SPACE)
            if not rest.startswith(mark):
                if mark.startswith(rest):
                    return False
                break
            rest = rest[len(mark) :]
        self._buffer, self._state = rest, _State.OUTSIDE if self._marks.open else _State.TEXT
        return True

    def _show(self, count: int) -> None:
        """Shows the first `count` characters of the buffer as text."""
        self._read_parts += self._visible_text.add(self._buffer[:count])
        self._buffer = self._buffer[count:]
