"""The plan of one step, and how the rows of its calls get into the library's batch and out of the cache.

The protocols say what the decode loop needs of a context and of a sampler, so that tests can replace them.
"""

from array import array
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from antiphon.engines.llama.adapters.cache import AdapterCache
from antiphon.engines.llama.kv.layout import CacheChange, CopyCells
from antiphon.engines.llama.sequence import TokenSequence
from antiphon.engines.sampling import SampledToken, SamplingState
from antiphon.errors import AntiphonError


@dataclass(frozen=True, slots=True)
class PromptSpan:
    """Consecutive tokens of one sequence's prompt that one call computes."""

    sequence: TokenSequence
    start: int
    stop: int
    scored: bool = False
    """Whether each row gives logits, for the scores of the prompt."""

    @property
    def gives_logits(self) -> bool:
        """Whether its last token is the sequence's last, so that a token can be drawn."""
        return self.stop == len(self.sequence.tokens)


@dataclass(slots=True)
class DecodeCall:
    """One call of decode: first single rows with logits, then spans of prompts."""

    rows: list[TokenSequence | None] = field(default_factory=list)
    """Whose next token each single row gives; None is a row that is computed and thrown away."""
    ids: list[int] = field(default_factory=list)
    """Of the single rows, as the next two."""
    positions: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    spans: list[PromptSpan] = field(default_factory=list)
    adapter: str | None = None

    def list_sequences(self) -> frozenset[TokenSequence]:
        """Sequences that have a row in it."""
        singles = (sequence for sequence in self.rows if sequence is not None)
        return frozenset((*singles, *(span.sequence for span in self.spans)))

    @property
    def checks_adapter(self) -> bool:
        """Whether the end of each span gives logits, to see whether the adapter gives numbers."""
        return self.adapter is not None

    def list_abortable(self) -> frozenset[TokenSequence]:
        """Sequences whose end is worth an abort: those whose prompt the call computes, or the only one."""
        if len(self.rows) + len(self.spans) == 1:
            return self.list_sequences()
        return frozenset(span.sequence for span in self.spans)


@dataclass(slots=True)
class StepPlan:
    """What to do in one step, in this order."""

    changes: list[CacheChange] = field(default_factory=list)
    admitted: list[TokenSequence] = field(default_factory=list)
    """For the first time; one that was preempted comes back silently."""
    calls: list[DecodeCall] = field(default_factory=list)


Logits = NDArray[np.float32]


class DecodeContext(Protocol):
    """What the decode loop needs of a context; `NativeContext` documents each method."""

    @property
    def adapters(self) -> AdapterCache: ...
    def set_single_rows(self, tokens: list[int], positions: list[int], sequences: list[int]) -> None: ...
    def set_rows(
        self, at: int, tokens: "array[int]", position: int, sequence: int, output: bool, every: bool
    ) -> None: ...
    def decode(self, rows: int) -> int: ...
    def read_logits(self, rows: int) -> Logits: ...
    def remove(self, sequence: int, start: int = 0) -> None: ...
    def clear(self) -> None: ...
    def copy(self, source: int, target: int, length: int) -> None: ...
    def abort(self) -> None: ...
    def resume(self) -> None: ...


class StepSampler(Protocol):
    """What the decode loop needs of a sampler; `Sampler` documents it."""

    def draw(
        self, logits: Logits, drawings: list[SamplingState | None]
    ) -> list[SampledToken | AntiphonError | None]: ...


def apply_changes(context: DecodeContext, changes: list[CacheChange]) -> None:
    """Applies the changes that a layout ordered."""
    for one in changes:
        if isinstance(one, CopyCells):
            context.copy(one.source, one.target, one.length)
        else:
            context.remove(one.id, one.start)


def fill_batch(context: DecodeContext, call: DecodeCall) -> int:
    """Writes the call's rows into the batch; returns how many."""
    at = len(call.ids)
    if at:
        context.set_single_rows(call.tokens, call.positions, call.ids)
    for span in call.spans:
        sequence = span.sequence
        tokens = sequence.tokens[span.start : span.stop]
        context.set_rows(
            at, tokens, span.start, sequence.running_id, span.gives_logits or call.checks_adapter, span.scored
        )
        at += span.stop - span.start
    return at


def free_cells(context: DecodeContext, call: DecodeCall) -> None:
    """Frees the cells of a call that was not computed completely."""
    for seat, position in zip(call.ids, call.positions, strict=True):
        context.remove(seat, position)
    for span in call.spans:
        if span.sequence.id is not None:
            context.remove(span.sequence.id, span.start)
