"""What the scheduler has the decode loop do in one step."""

from dataclasses import dataclass, field

from antiphon.engines.llama.cells import Change
from antiphon.engines.llama.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive tokens of one sequence's prompt that one call computes."""

    sequence: Sequence
    start: int
    stop: int
    scored: bool = False
    """Whether each row gives logits, for the scores of the prompt."""

    @property
    def logits(self) -> bool:
        """Whether its last token is the sequence's last, so that a token can be drawn."""
        return self.stop == len(self.sequence.tokens)


@dataclass(slots=True)
class Call:
    """One call of decode: single rows with logits first, then spans."""

    rows: list[Sequence | None] = field(default_factory=list)
    """Whose next token each single row gives; None is a row that is computed and thrown away."""
    ids: list[int] = field(default_factory=list)
    """Of the single rows, as the next two."""
    positions: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    adapter: str | None = None

    def sequences(self) -> frozenset[Sequence]:
        """Sequences that have a row in it."""
        singles = (sequence for sequence in self.rows if sequence is not None)
        return frozenset((*singles, *(span.sequence for span in self.spans)))

    @property
    def watched(self) -> bool:
        """Whether the end of each span gives logits, for a look at whether the adapter gives numbers."""
        return self.adapter is not None

    def abortable(self) -> frozenset[Sequence]:
        """Sequences whose leaving is worth an abort: those whose prompt it computes, or the only one."""
        if len(self.rows) + len(self.spans) == 1:
            return self.sequences()
        return frozenset(span.sequence for span in self.spans)


@dataclass(slots=True)
class Plan:
    """What to do in one step, in this order."""

    changes: list[Change] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    """For the first time; one that was preempted comes back silently."""
    calls: list[Call] = field(default_factory=list)
