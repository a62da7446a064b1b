"""Separates a choice's reasoning from its answer while the text arrives, and counts the tokens of reasoning.
The result does not depend on how the text is divided.

Reasoning is only at the beginning, and ends at the first closing mark. Without a closing mark, all text is
reasoning. Another reader reads the answer, so a call inside reasoning stays reasoning.
"""

from array import array
from collections.abc import Sequence

from antiphon.rendering.reasoning.notation import ReasoningNotation, ReasoningPosition
from antiphon.rendering.tools.call_readers import (
    OutputPart,
    OutputReader,
    ReasoningPart,
    Span,
    find_partial_mark,
    is_inside,
)
from antiphon.rendering.tools.json_call import SPACE


class ReasoningReader:
    """Separates reasoning and answer in the text of one choice."""

    def __init__(
        self,
        notation: ReasoningNotation,
        begin: ReasoningPosition,
        answer_reader: OutputReader,
        keeps_whitespace: bool = False,
    ) -> None:
        """`answer_reader`: reads the text after the reasoning. `keeps_whitespace`: whether only the
        notation's gap is removed before the answer, because the answer has a constraint. Without a
        constraint, all whitespace is removed."""
        self._notation = notation
        self._position = begin
        self._answer_reader = answer_reader
        self._keeps_whitespace = keeps_whitespace
        self._gap = "".join(mark for mark in notation.gap if not mark.strip())
        self._buffer = ""
        self._consumed_length = 0
        """Number of characters of the raw text before the buffer."""
        self._has_reasoning = False
        """Whether the reader has returned any reasoning."""
        self._trailing_space = ""
        """Whitespace that is shown only if more reasoning follows."""
        self._is_in_gap = False
        """Whether the closing mark was read, and the gap before the answer was not."""
        self.spans: list[Span] = [(0, None)] if begin is ReasoningPosition.INSIDE else []

    @property
    def has_complete_calls(self) -> bool:
        return self._answer_reader.has_complete_calls

    def add(self, text: str) -> list[OutputPart]:
        if self._position is ReasoningPosition.AFTER and not self._is_in_gap:
            return self._answer_reader.add(text)
        self._buffer += text
        parts: list[OutputPart] = []
        if self._position is ReasoningPosition.BEFORE:
            self._detect_opening()
        if self._position is ReasoningPosition.INSIDE:
            parts += self._read_reasoning()
        if self._position is ReasoningPosition.AFTER:
            parts += self._read_answer()
        return parts

    def end(self, calls_required: bool = False) -> list[OutputPart]:
        rest, self._buffer = self._buffer, ""
        if self._position is ReasoningPosition.INSIDE:
            return [*self._trim_reasoning(rest), *self._answer_reader.end(calls_required)]
        parts = [] if self._is_in_gap and not rest.strip() else self._answer_reader.add(rest)
        return [*parts, *self._answer_reader.end(calls_required)]

    # Each method removes the part that it has identified from the buffer.

    def _detect_opening(self) -> None:
        """Decides whether the text begins with reasoning, if the buffer is long enough."""
        rest = self._buffer if self._keeps_whitespace else self._buffer.lstrip(SPACE)
        if rest.startswith(self._notation.opening):
            self.spans.append((0, None))
            self._take(len(self._buffer) - len(rest) + len(self._notation.opening))
            self._position = ReasoningPosition.INSIDE
        elif not self._notation.opening.startswith(rest):
            self._position = ReasoningPosition.AFTER

    def _read_reasoning(self) -> list[OutputPart]:
        """Returns the reasoning in the buffer, without the possible beginning of a closing mark. Switches to
        the answer at the closing mark."""
        close = self._notation.close
        at = self._buffer.find(close)
        if at < 0:
            return self._trim_reasoning(self._take(find_partial_mark(self._buffer, close)))
        parts = self._trim_reasoning(self._take(at))
        self._take(len(close))
        self._position, self._is_in_gap = ReasoningPosition.AFTER, True
        return parts

    def _read_answer(self) -> list[OutputPart]:
        """Reads the answer after the gap."""
        if self._is_in_gap:
            if not self._skip_gap():
                return []
            span_start, _ = self.spans[-1]
            self.spans[-1] = (span_start, self._consumed_length)
            self._is_in_gap = False
        return self._answer_reader.add(self._take(len(self._buffer)))

    def _skip_gap(self) -> bool:
        """Removes the gap before the answer. Returns whether the gap is complete."""
        if not self._keeps_whitespace:
            self._take(len(self._buffer) - len(self._buffer.lstrip(SPACE)))
            return bool(self._buffer)
        if self._gap != self._buffer and self._gap.startswith(self._buffer):
            return False
        if self._buffer.startswith(self._gap):
            self._take(len(self._gap))
        return True

    def _take(self, count: int) -> str:
        """Removes and returns the first `count` characters of the buffer."""
        text, self._buffer = self._buffer[:count], self._buffer[count:]
        self._consumed_length += count
        return text

    def _trim_reasoning(self, text: str) -> list[OutputPart]:
        """Removes the whitespace around the reasoning, because it belongs to the marks. Holds back whitespace
        at the end until more reasoning follows."""
        text = self._trailing_space + text
        body = text.rstrip(SPACE)
        self._trailing_space = text[len(body) :]
        if not self._has_reasoning:
            body = body.lstrip(SPACE)
        if not body:
            self._trailing_space = self._trailing_space if self._has_reasoning else ""
            return []
        self._has_reasoning = True
        return [ReasoningPart(body)]


class ReasoningCounter:
    """Counts the reasoning tokens of one choice: all tokens whose text begins before the answer, including
    marks. The count uses positions in the raw text, so it does not depend on how the tokens arrive."""

    __slots__ = ("_length", "_spans", "_token_starts")

    def __init__(self, spans: Sequence[Span]) -> None:
        """`spans`: the reader's list of reasoning spans, to which the reader adds while it reads."""
        self._spans = spans
        self._length = 0
        self._token_starts = array("I")
        """For each token, the character where its text begins."""

    def add_token(self, size: int) -> None:
        """Adds the next token. `size`: the number of characters that the decoder returned for it."""
        self._token_starts.append(self._length)
        self._length += size

    @property
    def tokens(self) -> int:
        """Number of reasoning tokens so far."""
        return sum(is_inside(self._spans, begin) for begin in self._token_starts) if self._spans else 0
