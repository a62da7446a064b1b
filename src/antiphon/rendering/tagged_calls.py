"""Reads calls whose arguments come one by one between tags: those of Qwen 3 Coder, GLM, MiniMax, Seed, and
DeepSeek from V3.2 on.

A text is raw between its tags, and all other values are JSON. So the type of a value comes from the tool's
schema. The reader returns the arguments as one JSON object, and a text as it arrives. The result does not
depend on how the text is divided.
"""

import json
import re
from collections.abc import Mapping, Sequence
from enum import Enum, auto

from antiphon.constraints.argument_types import (
    ALL_TYPES,
    Types,
    convert_text,
    is_surely_text,
    list_argument_types,
)
from antiphon.domain.messages import Tool
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

LONGEST_KEY = 400
"""The most characters between the opening mark of an argument and its value."""


class TagMarks(Struct, frozen=True):
    """The marks that a reader looks for. Whitespace around them has no meaning."""

    open: str
    """Before a group of calls."""
    before_name: str
    """Before the function's name; empty if the name follows the opening mark."""
    after_name: str
    """After the function's name; empty if the name ends where an argument or the end of the call begins."""
    before_key: str
    before_value: str
    """Between an argument's name and its value."""
    after_value: str
    after_call: str
    close: str = ""
    """After a group of calls; empty if a group is one call and ends with it."""
    key: re.Pattern[str] = re.compile(r"\s*+(?P<key>.*?)\s*", re.DOTALL)
    """Matches the text between the marks before the name and before the value. The group `text`, if the
    pattern has it, says whether the value is a text."""
    padding: str = ""
    """The text that is written between the tags and a value, and that is no part of the value."""


class _State(Enum):
    """What the buffer begins with."""

    OUTSIDE = auto()
    HEADER = auto()
    ARGUMENTS = auto()
    VALUE = auto()
    BETWEEN = auto()
    """After a call, inside a group."""


def list_tool_types(tool: Tool) -> dict[str, Types]:
    """Returns the types of each argument of a tool. Do not change them."""
    key = (list_argument_types, tool.supported_schema is tool.parameters)
    return tool.remember(key, lambda: list_argument_types(tool.schema))


class TaggedCallReader:
    """Reads one choice."""

    spans: tuple[Span, ...] = ()

    def __init__(self, marks: TagMarks, tools: Sequence[Tool]) -> None:
        """`tools`: the tools of the request, for the types of their arguments."""
        self._marks = marks
        self._types = {tool.name: list_tool_types(tool) for tool in tools}
        self._buffer = ""
        self._visible_text = VisibleText()
        self._read_parts: list[OutputPart] = []
        self._state = _State.OUTSIDE
        self._had_call = False
        """Whether the open group has a call."""
        self._argument_types: Mapping[str, Types] = {}
        """The types of the current call's arguments."""
        self._keys: set[str] = set()
        """The names of the current call's arguments so far."""
        self._value_types: Types = ALL_TYPES
        self._is_repeated = False
        """Whether the call already has an argument of this name. Its value is not returned."""
        self._is_padded = False
        """Whether the beginning of the value was read, so that no padding can follow."""
        self._is_text = False
        """Whether the value is a text, so that its characters are returned as they arrive."""

    @property
    def has_complete_calls(self) -> bool:
        return self._visible_text.has_calls and self._state in (_State.OUTSIDE, _State.BETWEEN)

    def add(self, text: str) -> list[OutputPart]:
        self._buffer += text
        while self._buffer and self._advance():
            pass
        return self._pop_parts()

    def end(self, calls_required: bool = False) -> list[OutputPart]:
        if self._state is not _State.OUTSIDE or calls_required:
            self._visible_text.record_cut()
        else:
            self._read_parts += self._visible_text.add(self._buffer)
        self._buffer = ""
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
                return self._read_key()
            case _State.VALUE:
                return self._read_value()
            case _State.BETWEEN:
                return self._read_between()

    def _read_outside(self) -> bool:
        """Shows the text before the next group."""
        opening = self._marks.open
        at = self._buffer.find(opening)
        end = at if at >= 0 else find_partial_mark(self._buffer, opening)
        self._show(end)
        if at >= 0:
            self._buffer = self._buffer[len(opening) :]
            self._state, self._had_call = _State.HEADER, False
        return at >= 0

    def _read_header(self) -> bool:
        """Reads the marks around a function's name. A header without a name, or with too many spaces, is
        text."""
        marks, header = self._marks, self._buffer[:LONGEST_HEADER]
        can_end = len(self._buffer) <= LONGEST_HEADER
        rest = header.lstrip(SPACE)
        if not rest.startswith(marks.before_name):
            is_beginning = can_end and marks.before_name.startswith(rest)
            return False if is_beginning else self._reject_header()
        name_match = NAME.match(rest, len(marks.before_name))
        name = name_match[0] if name_match is not None else ""
        after_name = rest[len(marks.before_name) + len(name) :].lstrip(SPACE)
        if len(name) > LONGEST_NAME or (after_name and not name):
            return self._reject_header()
        next_marks = (marks.after_name,) if marks.after_name else (marks.before_key, marks.after_call)
        if not any(map(after_name.startswith, next_marks)):
            is_beginning = can_end and any(mark.startswith(after_name) for mark in next_marks)
            return False if is_beginning else self._reject_header()
        self._buffer = self._buffer[len(header) - len(after_name) + len(marks.after_name) :]
        self._read_parts.append(CallName(name))
        self._visible_text.record_call()
        self._argument_types, self._keys = self._types.get(name, {}), set()
        self._state, self._had_call = _State.ARGUMENTS, True
        return True

    def _reject_header(self) -> bool:
        """Shows the opening mark as text, unless a call came after it."""
        if not self._had_call:
            self._read_parts += self._visible_text.add(self._marks.open)
        self._state = _State.OUTSIDE
        return True

    def _read_key(self) -> bool:
        """Reads the name of the next argument, or the end of the call."""
        marks = self._marks
        self._buffer = rest = self._buffer.lstrip(SPACE)
        if rest.startswith(marks.after_call):
            self._buffer = rest[len(marks.after_call) :]
            self._end_call()
            return True
        if not rest.startswith(marks.before_key):
            if marks.before_key.startswith(rest) or marks.after_call.startswith(rest):
                return False
            self._end_call()
            return True
        at = rest.find(marks.before_value, len(marks.before_key))
        if not 0 <= at <= LONGEST_KEY:
            if at < 0 and len(rest) <= LONGEST_KEY:
                return False
            self._end_call()
            return True
        match = marks.key.fullmatch(rest[len(marks.before_key) : at])
        groups = match.groupdict() if match is not None else {}
        key = groups.get("key") or rest[len(marks.before_key) : at].strip(SPACE)
        self._value_types = self._argument_types.get(key, ALL_TYPES)
        if (kind := groups.get("text")) is not None:
            self._value_types = frozenset({"string"}) if kind == "true" else self._value_types - {"string"}
        self._buffer = rest[at + len(marks.before_value) :]
        self._is_repeated = key in self._keys
        if not self._is_repeated:
            separator = ", " if self._keys else "{"
            self._add_arguments(f"{separator}{json.dumps(key, ensure_ascii=False)}: ")
        self._keys.add(key)
        self._state, self._is_padded, self._is_text = _State.VALUE, False, False
        return True

    def _read_value(self) -> bool:
        """Reads a value up to its closing tag. Returns a text as it arrives."""
        marks = self._marks
        if not self._is_padded:
            self._buffer = self._buffer.removeprefix(marks.padding)
            self._is_padded = True
            if not self._buffer:
                return False
        at = self._buffer.find(marks.after_value)
        if at >= 0:
            value = self._buffer[:at].removesuffix(marks.padding)
            self._buffer = self._buffer[at + len(marks.after_value) :]
            if not self._is_repeated:
                if self._is_text:
                    self._add_arguments(_escape(value) + '"')
                else:
                    self._add_arguments(convert_text(value, self._value_types))
            self._state = _State.ARGUMENTS
            return True
        if not self._is_text and is_surely_text(self._buffer, self._value_types):
            self._is_text = True
            if not self._is_repeated:
                self._add_arguments('"')
        if self._is_text:
            held = min(
                find_partial_mark(self._buffer, mark)
                for mark in (marks.after_value, marks.padding + marks.after_value)
            )
            if not self._is_repeated:
                self._add_arguments(_escape(self._buffer[:held]))
            self._buffer = self._buffer[held:]
        return False

    def _read_between(self) -> bool:
        """Reads what follows a call in its group: the next call, or the end of the group."""
        marks = self._marks
        self._buffer = rest = self._buffer.lstrip(SPACE)
        if rest.startswith(marks.close):
            self._buffer = rest[len(marks.close) :]
            self._state = _State.OUTSIDE
        elif rest.startswith(marks.before_name):
            self._state = _State.HEADER
        elif marks.close.startswith(rest) or marks.before_name.startswith(rest):
            return False
        else:
            self._state = _State.OUTSIDE
        return True

    def _end_call(self) -> None:
        """Closes the object of the arguments."""
        self._add_arguments("}" if self._keys else "{}")
        self._state = _State.BETWEEN if self._marks.close else _State.OUTSIDE

    def _add_arguments(self, text: str) -> None:
        if text:
            self._read_parts.append(CallArguments(text))

    def _show(self, count: int) -> None:
        """Shows the first `count` characters of the buffer as text."""
        self._read_parts += self._visible_text.add(self._buffer[:count])
        self._buffer = self._buffer[count:]


def _escape(text: str) -> str:
    """Returns the text as the inside of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
