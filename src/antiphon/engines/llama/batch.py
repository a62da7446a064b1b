"""The plan of one step, the rows of its decode calls, and the functions that write them into the library's
batch and free their cells.

The protocols name the methods of contexts and samplers that the decode loop calls, so tests can replace them.
"""

from array import array
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from antiphon.domain.values import Struct, field
from antiphon.engines.llama.adapter_cache import AdapterCache
from antiphon.engines.llama.drafting import DraftSource
from antiphon.engines.llama.kv.layout import CacheChange, CopyCells
from antiphon.engines.llama.libllama.media import EncodedPart
from antiphon.engines.llama.media import MediaRun
from antiphon.engines.llama.sequence import TokenSequence
from antiphon.engines.sampling import SampledToken, SamplingState
from antiphon.errors import AntiphonError


class PromptSpan(Struct, frozen=True):
    """Consecutive tokens of one sequence, not yet computed, that one call computes."""

    sequence: TokenSequence
    start: int
    stop: int
    is_scored: bool = False
    """Whether each row of the span gives logits, to score the prompt."""

    @property
    def medium(self) -> MediaRun | None:
        """The medium to which all cells of the span belong; None if they are tokens."""
        return self.sequence.find_medium(self.start)

    @property
    def gives_logits(self) -> bool:
        """Whether the span includes the sequence's last token, whose row gives the logits for the next
        draw."""
        return self.stop == len(self.sequence.tokens)


class DraftSpan(Struct, frozen=True):
    """The last token of a sequence and the drafts that may follow it. One call computes them, each with
    logits."""

    sequence: TokenSequence
    start: int
    """The position of the last token."""
    source: DraftSource
    drafts: "array[int]"

    @property
    def row_count(self) -> int:
        return 1 + len(self.drafts)


class DecodeCall(Struct):
    """One call of llama_decode: first single rows, one for each sequence that draws a token, then spans of
    prompts or drafts. A call has no prompts together with drafts. A span of a medium has a call of its own,
    because its rows are embeddings."""

    rows: list[TokenSequence | None] = field(default_factory=list)
    """The sequence of each single row; None marks a padding row, whose result is dropped."""
    ids: list[int] = field(default_factory=list)
    """The KV cache id of each single row."""
    positions: list[int] = field(default_factory=list)
    """The position of each single row."""
    tokens: list[int] = field(default_factory=list)
    """The token of each single row."""
    spans: list[PromptSpan] = field(default_factory=list)
    adapter: str | None = None
    draft_spans: list[DraftSpan] = field(default_factory=list)
    abortable: frozenset[TokenSequence] | None = None
    """The result of `list_abortable`, which stays while the call is repeated."""

    def advance(self) -> None:
        """Makes this call, which has no spans, the one for the next token of each of its sequences."""
        self.positions = [
            position if row is None else row.computed - row.lost_positions
            for row, position in zip(self.rows, self.positions, strict=True)
        ]
        self.tokens = [0 if row is None else row.tokens[-1] for row in self.rows]

    def list_sequences(self) -> frozenset[TokenSequence]:
        """The sequences that have a row in this call."""
        singles = (sequence for sequence in self.rows if sequence is not None)
        drafting = (draft.sequence for draft in self.draft_spans)
        return frozenset((*singles, *(span.sequence for span in self.spans), *drafting))

    @property
    def checks_adapter(self) -> bool:
        """Whether the last row of each span gives logits, to check that the adapter gives finite numbers."""
        return self.adapter is not None

    def list_abortable(self) -> frozenset[TokenSequence]:
        """Sequences whose cancellation should abort the call: those whose prompt the call computes, or the
        sequence that is alone in the call."""
        if self.abortable is None:
            is_alone = len(self.rows) + len(self.spans) + len(self.draft_spans) == 1
            self.abortable = (
                self.list_sequences() if is_alone else frozenset(span.sequence for span in self.spans)
            )
        return self.abortable


class StepPlan(Struct):
    """The work of one step, in this order."""

    changes: list[CacheChange] = field(default_factory=list)
    admitted: list[TokenSequence] = field(default_factory=list)
    """Sequences that are admitted for the first time; a preempted sequence returns without an event."""
    calls: list[DecodeCall] = field(default_factory=list)


Logits = NDArray[np.float32]


class DecodeContext(Protocol):
    """The context methods that the decode loop calls; `NativeContext` documents each one."""

    @property
    def adapters(self) -> AdapterCache: ...
    def set_one_row_each(self, tokens: list[int], positions: list[int], sequences: list[int]) -> None: ...
    def set_rows(
        self,
        row: int,
        tokens: "array[int]",
        position: int,
        sequence: int,
        last_has_logits: bool,
        all_have_logits: bool,
    ) -> None: ...
    def set_medium(
        self, part: EncodedPart, start: int, stop: int, position: int, sequence: int, last_has_logits: bool
    ) -> None: ...
    def decode(self, rows: int) -> int: ...
    def read_logits(self, rows: int) -> Logits: ...
    def remove(self, sequence: int, start: int = 0) -> None: ...
    def clear(self) -> None: ...
    def copy(self, source: int, target: int, length: int) -> None: ...
    def abort(self) -> None: ...
    def resume(self) -> None: ...


class StepSampler(Protocol):
    """The sampler methods that the decode loop calls; `Sampler` documents them."""

    def draw(
        self, logits: Logits, states: list[SamplingState | None]
    ) -> list[SampledToken | AntiphonError | None]: ...


def apply_changes(context: DecodeContext, changes: list[CacheChange]) -> None:
    """Carries out the changes to the cells that a cache layout has ordered."""
    for change in changes:
        if isinstance(change, CopyCells):
            context.copy(change.source, change.target, change.length)
        else:
            context.remove(change.id, change.start)


def fill_batch(context: DecodeContext, call: DecodeCall) -> int:
    """Writes the call's rows into the batch. Returns the number of rows."""
    row = len(call.ids)
    if row:
        context.set_one_row_each(call.tokens, call.positions, call.ids)
    for span in call.spans:
        sequence, medium = span.sequence, span.medium
        if medium is not None:
            context.set_medium(
                medium.part,
                span.start - medium.start,
                span.stop - medium.start,
                medium.position,
                sequence.running_id,
                call.checks_adapter,
            )
            return span.stop - span.start
        tokens = sequence.tokens[span.start : span.stop]
        context.set_rows(
            row,
            tokens,
            sequence.get_position(span.start),
            sequence.running_id,
            span.gives_logits or call.checks_adapter,
            span.is_scored,
        )
        row += span.stop - span.start
    for draft in call.draft_spans:
        draft_tokens = draft.sequence.tokens[-1:] + draft.drafts
        position = draft.start - draft.sequence.lost_positions
        context.set_rows(row, draft_tokens, position, draft.sequence.running_id, True, True)
        row += draft.row_count
    return row


def free_cells(context: DecodeContext, call: DecodeCall) -> None:
    """Frees the cells of a call that was not computed completely. A medium with coordinates loses all its
    cells, because they have the same position."""
    for sequence_id, position in zip(call.ids, call.positions, strict=True):
        context.remove(sequence_id, position)
    starts = [(span.sequence, span.start) for span in call.spans]
    for sequence, start in (*starts, *((draft.sequence, draft.start) for draft in call.draft_spans)):
        if sequence.id is None:
            continue
        medium = sequence.find_medium(start)
        if medium is not None and medium.lost_positions:
            sequence.computed = medium.start
            context.remove(sequence.id, medium.position)
        else:
            context.remove(sequence.id, sequence.get_position(start))
