"""Calls whose function is named in a header, and whose arguments follow it as a JSON object: Mistral's newer
notation, DeepSeek's, harmony's."""

import re
from collections.abc import Sequence

from antiphon.rendering.toolcalls.objects import SPACE, CallArguments, CallName, JsonValue
from antiphon.rendering.toolcalls.reading import OutputPart, VisibleText, Span, ReasoningPart, find_partial_mark

LONGEST_HEADER = 400
"""Characters before the arguments; what is longer names no function."""

CHANNEL_MARK = re.compile(r"<\|\w+\|>")
"""A control token of a model with channels, whose text never stands beside them."""


class HeaderReader:
    """Calls begin with `head`, name the function where `name` finds it, and go on with an object. `noise` are
    the marks around them, which show as nothing."""

    def __init__(
        self,
        head: str,
        name: re.Pattern[str],
        noise: Sequence[str] = (),
        tail: str = "",
        thought: tuple[str, str] | None = None,
        last: str = "",
    ) -> None:
        """No mark begins with another. `name`: its first group is the function's name; matched after the
        head. `tail`: may follow the arguments, and is text elsewhere. `thought`: between these is what the
        model thinks. `last`: a mark of `noise` after which all is text."""
        self._head = head
        self._name = name
        self._thought = thought
        self._marks = (head, *noise, *(thought[:1] if thought is not None else ()))
        self._tail = tail
        self._buffer = ""
        self._shown = VisibleText()
        self._said: list[OutputPart] = []
        self._inside = False
        """Whether a header is read, from its mark on."""
        self._after = False
        """Whether arguments were just read."""
        self._last = last
        self._is_text = False
        """Whether the last mark was read."""
        self._thinks = False
        self._apart = False
        """Whether what is thought next has to be told from what was thought before."""
        self._value: JsonValue | None = None
        self._fed = 0
        """Characters that were read."""
        self.spans: list[Span] = []

    @property
    def whole(self) -> bool:
        return self._shown.called and self._value is None

    def add(self, text: str) -> list[OutputPart]:
        self._buffer += text
        self._fed += len(text)
        while self._buffer and self._advance():
            pass
        return self._take_said()

    def end(self, required: bool = False) -> list[OutputPart]:
        if self._thinks:
            self._think(self._buffer)
        elif self._is_notation(required):
            self._shown.cut()
        else:
            self._said += self._shown.add(self._buffer)
        self._buffer = ""
        self._said += self._shown.end()
        return self._take_said()

    def _is_notation(self, required: bool) -> bool:
        """Whether what was held back is no text. Channels hold text also where calls are required."""
        if self._thought is not None and CHANNEL_MARK.match(self._buffer):
            return True
        within = self._value is not None or self._inside or self._after
        return within or (required and self._thought is None)

    def _take_said(self) -> list[OutputPart]:
        said, self._said = self._said, []
        return said

    # Each step takes from the buffer, and says whether another may follow.

    def _advance(self) -> bool:
        if self._value is not None:
            return self._in_value(self._value)
        if self._thinks and self._thought is not None:
            return self._in_thought(self._thought[1])
        if self._is_text:
            self._show(len(self._buffer))
            return False
        return self._in_header() if self._inside else self._outside()

    def _outside(self) -> bool:
        if self._after and not self._past_tail():
            return False
        found = [(at, mark) for mark in self._marks if (at := self._buffer.find(mark)) >= 0]
        if not found:
            self._show(min(find_partial_mark(self._buffer, mark) for mark in self._marks))
            return False
        at, mark = min(found)
        self._show(at)
        if mark == self._head:
            self._inside = True
            return True
        self._is_text = mark == self._last
        self._thinks = self._thought is not None and mark == self._thought[0]
        if self._thinks:
            self.spans.append((self._fed - len(self._buffer), None))
            self._apart = len(self.spans) > 1
        self._buffer = self._buffer[len(mark) :]
        return True

    def _in_thought(self, end: str) -> bool:
        at = self._buffer.find(end)
        count = find_partial_mark(self._buffer, end) if at < 0 else at
        self._think(self._buffer[:count])
        self._buffer = self._buffer[count:]
        if at >= 0:
            self._thinks = False
            self.spans[-1] = (self.spans[-1][0], self._fed - len(self._buffer) + len(end))
        return at >= 0

    def _think(self, text: str) -> None:
        """What is thought in several messages is told as one, a line for each."""
        if text:
            self._said.append(ReasoningPart("\n" + text if self._apart else text))
            self._apart = False

    def _past_tail(self) -> bool:
        """Takes the rest of a call; whether that is decided."""
        rest = self._buffer.lstrip(SPACE)
        if self._tail and rest != self._tail and self._tail.startswith(rest):
            return False
        if self._tail and rest.startswith(self._tail):
            self._buffer = rest[len(self._tail) :]
        self._after = False
        return True

    def _show(self, count: int) -> None:
        self._said += self._shown.add(self._buffer[:count])
        self._buffer = self._buffer[count:]

    def _in_header(self) -> bool:
        at = self._buffer.find("{", len(self._head))
        if at < 0:
            again = self._buffer.find(self._head, len(self._head))
            if again < 0 and len(self._buffer) <= LONGEST_HEADER:
                return False
            return self._no_call(again if again >= 0 else len(self._buffer))
        match = self._name.match(self._buffer[len(self._head) : at])
        if match is None:
            return self._no_call(at)
        self._said.append(CallName(match[1]))
        self._shown.call()
        self._value, self._inside = JsonValue(), False
        self._buffer = self._buffer[at:]
        return True

    def _no_call(self, end: int) -> bool:
        """What looked like a header was text."""
        self._inside = False
        self._show(end)
        return True

    def _in_value(self, value: JsonValue) -> bool:
        at = value.take(self._buffer, 0)
        self._said += [CallArguments(self._buffer[:at])] if at else []
        self._buffer = self._buffer[at:]
        if value.done:
            self._value, self._after = None, True
        return value.done
