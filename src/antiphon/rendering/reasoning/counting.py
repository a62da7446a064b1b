"""Which tokens of a choice are reasoning: those whose text begins before the answer does, marks included.
Told by places in the raw text, so that it does not depend on how tokens come together."""

from array import array
from collections.abc import Sequence

from antiphon.rendering.toolcalls.reading import Span, is_inside


class ReasoningCounter:
    """The reasoning of one choice."""

    __slots__ = ("_at", "_begins", "_spans")

    def __init__(self, spans: Sequence[Span]) -> None:
        """`spans`: what the reader of the choice finds, as it grows."""
        self._spans = spans
        self._at = 0
        self._begins = array("I")
        """Of each token the character that its text begins at."""

    def note(self, size: int) -> None:
        """The next token made so many characters certain."""
        self._begins.append(self._at)
        self._at += size

    @property
    def tokens(self) -> int:
        """Tokens of reasoning so far."""
        return sum(is_inside(self._spans, begin) for begin in self._begins) if self._spans else 0
