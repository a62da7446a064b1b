"""How a family of models marks what it thinks before it answers."""

from dataclasses import dataclass
from enum import StrEnum


class Begin(StrEnum):
    """Where a choice's text begins."""

    FREE = "free"
    """Before any reasoning: the model may begin it."""
    INSIDE = "inside"
    """In reasoning: the prompt ends with the mark that begins it."""
    AFTER = "after"
    """In the answer: the prompt holds reasoning that has ended, or a mark that there is none."""


@dataclass(frozen=True, slots=True)
class ReasoningNotation:
    """One family's notation: `open`, the reasoning, `close`, `gap`, the answer."""

    open: tuple[str, ...]
    """Texts, or names of control tokens, in order."""
    close: str
    """A text, or the name of a control token."""
    gap: tuple[str, ...] = ()
    """What the model writes between the mark that ends reasoning and its answer."""
    channels: bool = False
    """Whether reasoning is a channel of harmony's; its reader is then that of calls."""
    efforts: tuple[str, ...] | None = None
    """The efforts that the model was taught; None is what its template makes of them."""

    @property
    def opening(self) -> str:
        """`open` as it reads."""
        return "".join(self.open)

    @property
    def marks(self) -> tuple[str, ...]:
        """What a reader has to see."""
        return (*self.open, self.close)

    def begin(self, end: str, said: str = "", is_text: bool = True) -> Begin:
        """Where a choice begins. `end`: the end of the prompt, with control tokens as their names. `said`:
        the beginning of the answer that the prompt already holds. `is_text`: whether the marks are text, so
        that it may hold them."""
        if said and (self.channels or not is_text):
            return Begin.AFTER
        if self.channels:
            return Begin.FREE
        if self.opening in said or self.close in said:
            return Begin.INSIDE if said.rfind(self.opening) > said.rfind(self.close) else Begin.AFTER
        tail = end.rstrip()
        if tail.endswith(self.opening.rstrip()):
            return Begin.INSIDE
        return Begin.AFTER if tail.endswith(self.close.rstrip()) or said else Begin.FREE
