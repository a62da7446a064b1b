"""Reads calls that are a header with the function's name and a JSON object: those of Mistral from tokenizer
11 on, of DeepSeek and of harmony."""

import re
from collections.abc import Sequence

from antiphon.rendering.call_readers import (
    LONGEST_HEADER,
    SPACE,
    CallArguments,
    CallName,
    JsonValue,
    OutputPart,
    ReasoningPart,
    Span,
    VisibleText,
    find_partial_mark,
)

CHANNEL_MARK = re.compile(r"<\|\w+\|>")
"""A control token of a model with channels. Such a token is never part of a visible text."""


class HeaderReader:
    """Reads calls that are a mark (`head`), the function's name (`name`) and a JSON object. The marks in
    `hidden_marks` are not shown."""

    def __init__(
        self,
        head: str,
        name: re.Pattern[str],
        hidden_marks: Sequence[str] = (),
        tail: str = "",
        reasoning_marks: tuple[str, str] | None = None,
        final_mark: str = "",
    ) -> None:
        """No mark begins with another mark. `name`: a pattern that matches after the head; its first group is
        the function's name. `tail`: a mark that may follow the arguments; elsewhere it is text.
        `reasoning_marks`: the marks before and after reasoning. `final_mark`: the mark in `hidden_marks`
        after which everything is text."""
        self._head = head
        self._name = name
        self._reasoning_marks = reasoning_marks
        self._marks = (head, *hidden_marks, *(reasoning_marks[:1] if reasoning_marks is not None else ()))
        self._tail = tail
        self._buffer = ""
        self._visible_text = VisibleText()
        self._read_parts: list[OutputPart] = []
        self._is_in_header = False
        """Whether the buffer begins with a header."""
        self._is_after_arguments = False
        """Whether the buffer follows a call's arguments."""
        self._final_mark = final_mark
        self._is_final_text = False
        """Whether the final mark was read, so that the rest is text."""
        self._is_in_reasoning = False
        self._starts_new_line = False
        """Whether the next reasoning must be separated from the reasoning before it."""
        self._arguments: JsonValue | None = None
        self._added_length = 0
        """Number of characters that were added so far."""
        self.spans: list[Span] = []

    @property
    def has_complete_calls(self) -> bool:
        return self._visible_text.has_calls and self._arguments is None

    def add(self, text: str) -> list[OutputPart]:
        self._buffer += text
        self._added_length += len(text)
        while self._buffer and self._advance():
            pass
        return self._pop_parts()

    def end(self, calls_required: bool = False) -> list[OutputPart]:
        if self._is_in_reasoning:
            self._add_reasoning(self._buffer)
        elif self._is_notation(calls_required):
            self._visible_text.record_cut()
        else:
            self._read_parts += self._visible_text.add(self._buffer)
        self._buffer = ""
        self._read_parts += self._visible_text.end()
        return self._pop_parts()

    def _is_notation(self, calls_required: bool) -> bool:
        """Whether the buffer at the end of the text contains marks instead of text. A model with channels can
        write text even if calls are required."""
        if self._reasoning_marks is not None and CHANNEL_MARK.match(self._buffer):
            return True
        is_in_call = self._arguments is not None or self._is_in_header or self._is_after_arguments
        return is_in_call or (calls_required and self._reasoning_marks is None)

    def _pop_parts(self) -> list[OutputPart]:
        """Returns the identified parts, and clears them."""
        parts, self._read_parts = self._read_parts, []
        return parts

    # Each step removes text from the buffer, and returns whether another step can follow.

    def _advance(self) -> bool:
        """Reads the next step: arguments, reasoning, a header, or text."""
        if self._arguments is not None:
            return self._read_arguments(self._arguments)
        if self._is_in_reasoning and self._reasoning_marks is not None:
            return self._read_reasoning(self._reasoning_marks[1])
        if self._is_final_text:
            self._show(len(self._buffer))
            return False
        return self._read_header() if self._is_in_header else self._read_outside()

    def _read_outside(self) -> bool:
        """Shows the text before the next mark, and handles that mark."""
        if self._is_after_arguments and not self._skip_tail():
            return False
        marks_found = [(index, mark) for mark in self._marks if (index := self._buffer.find(mark)) >= 0]
        if not marks_found:
            self._show(min(find_partial_mark(self._buffer, mark) for mark in self._marks))
            return False
        index, mark = min(marks_found)
        self._show(index)
        if mark == self._head:
            self._is_in_header = True
            return True
        self._is_final_text = mark == self._final_mark
        self._is_in_reasoning = self._reasoning_marks is not None and mark == self._reasoning_marks[0]
        if self._is_in_reasoning:
            self.spans.append((self._added_length - len(self._buffer), None))
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
            self._is_in_reasoning = False
            self.spans[-1] = (self.spans[-1][0], self._added_length - len(self._buffer) + len(end))
        return at >= 0

    def _add_reasoning(self, text: str) -> None:
        """Adds reasoning. The reasoning of each message begins on a new line."""
        if text:
            self._read_parts.append(ReasoningPart("\n" + text if self._starts_new_line else text))
            self._starts_new_line = False

    def _skip_tail(self) -> bool:
        """Removes the mark after a call's arguments, if there is one. Returns whether enough text has arrived
        to know."""
        rest = self._buffer.lstrip(SPACE)
        if self._tail and rest != self._tail and self._tail.startswith(rest):
            return False
        if self._tail and rest.startswith(self._tail):
            self._buffer = rest[len(self._tail) :]
        self._is_after_arguments = False
        return True

    def _show(self, count: int) -> None:
        """Shows the first `count` characters of the buffer as text."""
        self._read_parts += self._visible_text.add(self._buffer[:count])
        self._buffer = self._buffer[count:]

    def _read_header(self) -> bool:
        """Reads a header, and adds the call that it names. Shows a header without a name as text."""
        header = self._buffer[: LONGEST_HEADER + 1]
        brace_index = header.find("{", len(self._head))
        next_head = header.find(self._head, len(self._head), brace_index if brace_index >= 0 else None)
        if next_head >= 0:
            return self._reject_header(next_head)
        if brace_index < 0:
            return False if len(self._buffer) <= LONGEST_HEADER else self._reject_header(len(header))
        match = self._name.match(self._buffer[len(self._head) : brace_index])
        if match is None:
            return self._reject_header(brace_index)
        self._read_parts.append(CallName(match[1]))
        self._visible_text.record_call()
        self._arguments, self._is_in_header = JsonValue(), False
        self._buffer = self._buffer[brace_index:]
        return True

    def _reject_header(self, end: int) -> bool:
        """Shows a header that names no function as text, up to `end`."""
        self._is_in_header = False
        self._show(end)
        return True

    def _read_arguments(self, arguments: JsonValue) -> bool:
        """Reads further text of a call's arguments."""
        at = arguments.take(self._buffer, 0)
        self._read_parts += [CallArguments(self._buffer[:at])] if at else []
        self._buffer = self._buffer[at:]
        if arguments.is_complete:
            self._arguments, self._is_after_arguments = None, True
        return arguments.is_complete
