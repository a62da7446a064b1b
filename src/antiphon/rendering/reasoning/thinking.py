"""From a choice's text, as it comes, to its reasoning and what follows that. However the text is cut, the
outcome is the same. What follows goes to another reader, so what looks like a call in reasoning is reasoning.

Reasoning stands at the beginning alone and ends with the first mark that ends it; without one it is all there
is.
"""

from antiphon.rendering.reasoning.notation import Begin, ReasoningNotation
from antiphon.rendering.toolcalls.objects import SPACE
from antiphon.rendering.toolcalls.reading import OutputReader, OutputPart, Span, ReasoningPart, find_partial_mark


class ReasoningReader:
    """Reads one choice of a model that reasons."""

    def __init__(self, notation: ReasoningNotation, begin: Begin, inner: OutputReader, kept: bool = False) -> None:
        """`inner` reads the answer. `kept`: whether the answer is held to something, so that only the gap is
        taken from its beginning, and no other whitespace."""
        self._notation = notation
        self._begin = begin
        self._inner = inner
        self._kept = kept
        self._gap = "".join(mark for mark in notation.gap if not mark.strip())
        self._buffer = ""
        self._taken = 0
        """Characters of the raw text before the buffer."""
        self._any = False
        """Whether reasoning was said."""
        self._space = ""
        """Whitespace that is said only if more reasoning follows."""
        self._closed = False
        """Whether reasoning has ended and the answer has not begun."""
        self.spans: list[Span] = [(0, None)] if begin is Begin.INSIDE else []

    @property
    def whole(self) -> bool:
        return self._inner.whole

    def add(self, text: str) -> list[OutputPart]:
        if self._begin is Begin.AFTER and not self._closed:
            return self._inner.add(text)
        self._buffer += text
        said: list[OutputPart] = []
        if self._begin is Begin.FREE:
            self._decide()
        if self._begin is Begin.INSIDE:
            said += self._inside()
        if self._begin is Begin.AFTER:
            said += self._after()
        return said

    def end(self, required: bool = False) -> list[OutputPart]:
        rest, self._buffer = self._buffer, ""
        if self._begin is Begin.INSIDE:
            return [*self._trim_thought(rest), *self._inner.end(required)]
        said = [] if self._closed and not rest.strip() else self._inner.add(rest)
        return [*said, *self._inner.end(required)]

    # Each step takes from the buffer what is certain.

    def _decide(self) -> None:
        rest = self._buffer if self._kept else self._buffer.lstrip(SPACE)
        if rest.startswith(self._notation.opening):
            self.spans.append((0, None))
            self._take(len(self._buffer) - len(rest) + len(self._notation.opening))
            self._begin = Begin.INSIDE
        elif not self._notation.opening.startswith(rest):
            self._begin = Begin.AFTER

    def _inside(self) -> list[OutputPart]:
        close = self._notation.close
        at = self._buffer.find(close)
        if at < 0:
            return self._trim_thought(self._take(find_partial_mark(self._buffer, close)))
        said = self._trim_thought(self._take(at))
        self._take(len(close))
        self._begin, self._closed = Begin.AFTER, True
        return said

    def _after(self) -> list[OutputPart]:
        """The answer, once the gap before it is through."""
        if self._closed:
            if not self._past_gap():
                return []
            begun, _ = self.spans[-1]
            self.spans[-1] = (begun, self._taken)
            self._closed = False
        return self._inner.add(self._take(len(self._buffer)))

    def _past_gap(self) -> bool:
        """Takes what stands before the answer; whether that is decided."""
        if not self._kept:
            self._take(len(self._buffer) - len(self._buffer.lstrip(SPACE)))
            return bool(self._buffer)
        if self._gap != self._buffer and self._gap.startswith(self._buffer):
            return False
        if self._buffer.startswith(self._gap):
            self._take(len(self._gap))
        return True

    def _take(self, count: int) -> str:
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        self._taken += count
        return taken

    def _trim_thought(self, text: str) -> list[OutputPart]:
        """Reasoning without the whitespace around it, which belongs to the marks."""
        text = self._space + text
        body = text.rstrip(SPACE)
        self._space = text[len(body) :]
        if not self._any:
            body = body.lstrip(SPACE)
        if not body:
            self._space = self._space if self._any else ""
            return []
        self._any = True
        return [ReasoningPart(body)]
