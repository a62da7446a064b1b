"""Reads calls that have a header with the function's name before the arguments: the newer notation of
Mistral, and those of DeepSeek and harmony."""

import re
from collections.abc import Sequence

from antiphon.rendering.tools.call_readers import (
    OutputPart,
    ReasoningPart,
    Span,
    VisibleText,
    find_partial_mark,
)
from antiphon.rendering.tools.json_call import SPACE, CallArguments, CallName, JsonValue

LONGEST_HEADER = 400
"""The most characters of a header. A longer header is text."""

CHANNEL_MARK = re.compile(r"<\|\w+\|>")
"""A control token of a model with channels. Such a token is never part of a visible text."""


class HeaderReader:
    """Reads calls that are a mark (`head`), the function's name (`name`) and an object. The marks in `noise`
    are not shown."""

    def __init__(
        self,
        head: str,
        name: re.Pattern[str],
        noise: Sequence[str] = (),
        tail: str = "",
        thought: tuple[str, str] | None = None,
        last: str = "",
    ) -> None:
        """No mark begins with another mark. `name`: a pattern that matches after the head; its first group is
        the function's name. `tail`: a mark that may follow the arguments; elsewhere it is text. `thought`:
        the marks around reasoning. `last`: the mark in `noise` after which everything is text."""
        self._head = head
        self._name = name
        self._thought = thought
        self._marks = (head, *noise, *(thought[:1] if thought is not None else ()))
        self._tail = tail
        self._buffer = ""
        self._visible_text = VisibleText()
        self._read_parts: list[OutputPart] = []
        self._inside = False
        """Whether a header is being read."""
        self._after = False
        """Whether arguments have just ended."""
        self._last = last
        self._is_text = False
        """Whether the last mark was read."""
        self._thinks = False
        self._starts_new_line = False
        """Whether the next reasoning must be separated from the reasoning before it."""
        self._value: JsonValue | None = None
        self._fed = 0
        """Number of characters that were added so far."""
        self.spans: list[Span] = []

    @property
    def is_complete(self) -> bool:
        return self._visible_text.called and self._value is None

    def add(self, text: str) -> list[OutputPart]:
        self._buffer += text
        self._fed += len(text)
        while self._buffer and self._advance():
            pass
        return self._pop_parts()

    def end(self, required: bool = False) -> list[OutputPart]:
        if self._thinks:
            self._add_reasoning(self._buffer)
        elif self._is_notation(required):
            self._visible_text.record_cut()
        else:
            self._read_parts += self._visible_text.add(self._buffer)
        self._buffer = ""
        self._read_parts += self._visible_text.end()
        return self._pop_parts()

    def _is_notation(self, required: bool) -> bool:
        """Whether the rest of the buffer is marks and no text. A channel can contain text even if calls are
        required."""
        if self._thought is not None and CHANNEL_MARK.match(self._buffer):
            return True
        within = self._value is not None or self._inside or self._after
        return within or (required and self._thought is None)

    def _pop_parts(self) -> list[OutputPart]:
        """Returns the identified parts, and clears them."""
        parts, self._read_parts = self._read_parts, []
        return parts

    # Each step removes text from the buffer, and returns whether another step can follow.

    def _advance(self) -> bool:
        """Reads the next step: arguments, reasoning, a header, or text."""
        if self._value is not None:
            return self._read_value(self._value)
        if self._thinks and self._thought is not None:
            return self._read_reasoning(self._thought[1])
        if self._is_text:
            self._show(len(self._buffer))
            return False
        return self._read_header() if self._inside else self._read_outside()

    def _read_outside(self) -> bool:
        """Shows the text before the next mark, and handles that mark."""
        if self._after and not self._skip_tail():
            return False
        marks_found = [(at, mark) for mark in self._marks if (at := self._buffer.find(mark)) >= 0]
        if not marks_found:
            self._show(min(find_partial_mark(self._buffer, mark) for mark in self._marks))
            return False
        at, mark = min(marks_found)
        self._show(at)
        if mark == self._head:
            self._inside = True
            return True
        self._is_text = mark == self._last
        self._thinks = self._thought is not None and mark == self._thought[0]
        if self._thinks:
            self.spans.append((self._fed - len(self._buffer), None))
            self._starts_new_line = len(self.spans) > 1
        self._buffer = self._buffer[len(mark) :]
        return True

    def _read_reasoning(self, end: str) -> bool:
        """Reads reasoning up to the mark `end`."""
        at = self._buffer.find(end)
        count = find_partial_mark(self._buffer, end) if at < 0 else at
        self._add_reasoning(self._buffer[:count])
        self._buffer = self._buffer[count:]
        if at >= 0:
            self._thinks = False
            self.spans[-1] = (self.spans[-1][0], self._fed - len(self._buffer) + len(end))
        return at >= 0

    def _add_reasoning(self, text: str) -> None:
        """Adds reasoning. The reasoning of each message begins on a new line."""
        if text:
            self._read_parts.append(ReasoningPart("\n" + text if self._starts_new_line else text))
            self._starts_new_line = False

    def _skip_tail(self) -> bool:
        """Removes the rest of a call's marks. Returns whether the call is complete."""
        rest = self._buffer.lstrip(SPACE)
        if self._tail and rest != self._tail and self._tail.startswith(rest):
            return False
        if self._tail and rest.startswith(self._tail):
            self._buffer = rest[len(self._tail) :]
        self._after = False
        return True

    def _show(self, count: int) -> None:
        """Shows the first `count` characters of the buffer as text."""
        self._read_parts += self._visible_text.add(self._buffer[:count])
        self._buffer = self._buffer[count:]

    def _read_header(self) -> bool:
        """Reads a header, and adds the call that it names. Shows a header without a name as text."""
        at = self._buffer.find("{", len(self._head))
        if at < 0:
            again = self._buffer.find(self._head, len(self._head))
            if again < 0 and len(self._buffer) <= LONGEST_HEADER:
                return False
            return self._reject_header(again if again >= 0 else len(self._buffer))
        match = self._name.match(self._buffer[len(self._head) : at])
        if match is None:
            return self._reject_header(at)
        self._read_parts.append(CallName(match[1]))
        self._visible_text.record_call()
        self._value, self._inside = JsonValue(), False
        self._buffer = self._buffer[at:]
        return True

    def _reject_header(self, end: int) -> bool:
        """Shows a header that names no function as text, up to `end`."""
        self._inside = False
        self._show(end)
        return True

    def _read_value(self, value: JsonValue) -> bool:
        """Reads further arguments of a call."""
        at = value.take(self._buffer, 0)
        self._read_parts += [CallArguments(self._buffer[:at])] if at else []
        self._buffer = self._buffer[at:]
        if value.is_complete:
            self._value, self._after = None, True
        return value.is_complete
