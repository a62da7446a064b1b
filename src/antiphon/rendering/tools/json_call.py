"""Reads a call in the form of a JSON object while it arrives. It returns the function's name as soon as the
name is complete, and the arguments' text as it arrives. The order of the object's members and the whitespace
between them do not matter."""

import json
from dataclasses import dataclass
from enum import Enum, auto

SPACE = " \t\r\n"
ARGUMENTS = frozenset({"arguments", "parameters", "args"})
NAME = "name"


@dataclass(frozen=True, slots=True)
class CallName:
    """The beginning of a call, with the function's name."""

    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """Further text of the arguments."""

    text: str


class JsonValue:
    """Finds the end of one JSON value in a text that arrives in parts."""

    __slots__ = ("_depth", "_escaped", "_quoted", "_scalar", "done", "text")

    def __init__(self) -> None:
        self._depth = 0
        self._quoted = self._escaped = self._scalar = False
        self.done = False
        self.text = ""
        """The text of the value so far."""

    def take(self, text: str, at: int) -> int:
        """Reads characters of the value from index `at` of the text on. Returns the index after the last one
        that it read."""
        begin = at
        while at < len(text) and not self.done:
            if self._scalar and text[at] in ",}]" + SPACE:
                self.done = True
                break
            self._step(text[at])
            at += 1
        self.text += text[begin:at]
        return at

    def _step(self, char: str) -> None:
        """Reads one character, and records whether it ends the value."""
        if self._quoted:
            if self._escaped:
                self._escaped = False
            elif char == "\\":
                self._escaped = True
            elif char == '"':
                self._quoted = False
                self.done = not self._depth
        elif char == '"':
            self._quoted = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
            self.done = self._depth <= 0
        elif not self._depth:
            self._scalar = True


class _At(Enum):
    OPEN = auto()
    KEY = auto()
    COLON = auto()
    VALUE = auto()
    COMMA = auto()


class JsonCall:
    """Reads one object with a name and arguments, from its first brace on."""

    __slots__ = ("_at", "_kept", "_key", "_name_first", "_sent", "_value", "broken", "done", "named", "parts")

    def __init__(self, name_first: bool = False) -> None:
        """`name_first`: whether an object must begin with the name to be a call."""
        self._name_first = name_first
        self._at = _At.OPEN
        self._key = ""
        self._value: JsonValue | None = None
        self.named = False
        """Whether the name is known."""
        self._kept = ""
        """Arguments that came before the name."""
        self._sent = 0
        """Number of characters of the value that were already passed on."""
        self.parts: list[CallName | CallArguments] = []
        """Parts that can be returned now. The reader empties the list."""
        self.done = False
        self.broken = False
        """Whether the object names no call, or is no valid object."""

    @property
    def is_call(self) -> bool:
        """Whether the object must be a call, because its name or the key of its name is known."""
        return self.named or self._key == NAME

    def take(self, text: str, at: int) -> int:
        """Reads characters of the object from index `at` of the text on. Returns the index after the last one
        that it read."""
        while at < len(text) and not (self.done or self.broken):
            if self._value is not None:
                at = self._take_value(self._value, text, at)
            elif text[at] in SPACE or self._takes_sign(text[at]):
                at += 1
        return at

    def _takes_sign(self, char: str) -> bool:
        """Whether a character between values is structure. Any other character begins a value or breaks the
        object."""
        match self._at, char:
            case _At.OPEN, "{":
                self._at = _At.KEY
            case _At.COLON, ":":
                self._at = _At.VALUE
            case _At.COMMA, ",":
                self._at = _At.KEY
            case ((_At.COMMA | _At.KEY), "}"):
                self.done, self.broken = self.named, not self.named
            case _At.VALUE, _:
                self._value, self._sent = JsonValue(), 0
                return False
            case _At.KEY, '"':
                self._value = JsonValue()
                return False
            case _:
                self.broken = True
                return False
        return True

    def _take_value(self, value: JsonValue, text: str, at: int) -> int:
        """Reads characters of the current key or value. Passes arguments on as they arrive."""
        at = value.take(text, at)
        is_arguments = self._at is _At.VALUE and self._key in ARGUMENTS
        if is_arguments and value.text[:1] != '"':
            self._say(value.text[self._sent :])
            self._sent = len(value.text)
        if value.done:
            self._value = None
            self._take_whole(value.text)
        return at

    def _take_whole(self, text: str) -> None:
        """Handles a complete key or value."""
        if self._at is _At.KEY:
            first, self._key = not self._key, str(_parse_json(text))
            self._at = _At.COLON
            self.broken = self._name_first and first and self._key != NAME
            return
        self._at = _At.COMMA
        if self._key == NAME and not self.named:
            name = _parse_json(text)
            self.broken = not (isinstance(name, str) and name)
            if not self.broken:
                self.named = True
                self.parts.append(CallName(str(name)))
                self._say(self._kept)
        elif self._key in ARGUMENTS and text[:1] == '"':
            self._say(str(_parse_json(text)))  # the arguments are a JSON text inside a string

    def _say(self, text: str) -> None:
        """Passes on a piece of the arguments, or keeps it until the name is known."""
        if not self.named:
            self._kept += text
        elif text:
            self.parts.append(CallArguments(text))


def _parse_json(text: str) -> object:
    """Returns the value of a JSON text; None if the text is no JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return None
