"""Reads a call in the form of a JSON object while it arrives. It returns the function's name as soon as the
name is complete, and the arguments' text as it arrives. The order of the object's members and the whitespace
between them do not matter."""

import json
from enum import Enum, auto

from antiphon.domain.values import Struct

SPACE = " \t\r\n"
ARGUMENTS = frozenset({"arguments", "parameters", "args"})
NAME = "name"


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
