"""The plan of one step, and how the rows of its calls get into the library's batch and out of the cache.

The protocols say what the decode loop needs of a context and of a sampler, so that tests can replace them.
"""

from array import array
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from antiphon.engines.llama.adapters.cache import AdapterCache
from antiphon.engines.llama.kv.layout import Change, Copy
from antiphon.engines.llama.sequence import Sequence
from antiphon.engines.sampling import Drawing, Drawn
from antiphon.errors import AntiphonError


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


Logits = NDArray[np.float32]


class Computing(Protocol):
    """What the loop needs of a context; `NativeContext` says what each does."""

    @property
    def shelf(self) -> AdapterCache: ...
    def set_singles(self, tokens: list[int], positions: list[int], sequences: list[int]) -> None: ...
    def set_rows(
        self, at: int, tokens: "array[int]", position: int, sequence: int, output: bool, every: bool
    ) -> None: ...
    def decode(self, rows: int) -> int: ...
    def logits(self, rows: int) -> Logits: ...
    def remove(self, sequence: int, start: int = 0) -> None: ...
    def clear(self) -> None: ...
    def copy(self, source: int, target: int, length: int) -> None: ...
    def abort(self) -> None: ...
    def resume(self) -> None: ...


class Drawer(Protocol):
    """What the loop needs of a sampler; `Sampler` says what it does."""

    def draw(self, logits: Logits, drawings: list[Drawing | None]) -> list[Drawn | AntiphonError | None]: ...


def change(context: Computing, changes: list[Change]) -> None:
    """Carries out what a layout ordered."""
    for one in changes:
        if isinstance(one, Copy):
            context.copy(one.source, one.target, one.length)
        else:
            context.remove(one.id, one.start)


def fill(context: Computing, call: Call) -> int:
    """Writes the call's rows into the batch; how many they are."""
    at = len(call.ids)
    if at:
        context.set_singles(call.tokens, call.positions, call.ids)
    for span in call.spans:
        sequence = span.sequence
        tokens = sequence.tokens[span.start : span.stop]
        context.set_rows(at, tokens, span.start, sequence.seat, span.logits or call.watched, span.scored)
        at += span.stop - span.start
    return at


def empty(context: Computing, call: Call) -> None:
    """Frees what a call left in the cache that was not computed whole."""
    for seat, position in zip(call.ids, call.positions, strict=True):
        context.remove(seat, position)
    for span in call.spans:
        if span.sequence.id is not None:
            context.remove(span.sequence.id, span.start)
