"""The plan of one step, and the rows of its decode calls.

The functions write rows into the library's batch and free their cells. The protocols name the methods of
contexts and samplers that the decode loop calls, so tests can replace them.

`GuidedSequences` has the sequences with a constraint. For each of them, the workers of its `Guide` compute
the forced tokens, then the mask of the next token. It waits for these results, collects forced tokens, and
stores rows of logits whose masks have not arrived. It runs on the decode thread and draws no token.
"""

import time
from array import array
from collections.abc import Collection, Iterable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from antiphon.constraints.guide import to_callers_error
from antiphon.domain.values import Struct, field
from antiphon.engines.defects import guard
from antiphon.engines.llama.adapter_cache import AdapterCache
from antiphon.engines.llama.kv.layout import CacheChange, CopyCells
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
    def gives_logits(self) -> bool:
        """Whether the span includes the sequence's last token, whose row gives the logits for the next
        draw."""
        return self.stop == len(self.sequence.tokens)


class DecodeCall(Struct):
    """One call of llama_decode: first single rows, one for each sequence that draws a token, then spans of
    prompts."""

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

    def list_sequences(self) -> frozenset[TokenSequence]:
        """The sequences that have a row in this call."""
        singles = (sequence for sequence in self.rows if sequence is not None)
        return frozenset((*singles, *(span.sequence for span in self.spans)))

    @property
    def checks_adapter(self) -> bool:
        """Whether the last row of each span gives logits, to check that the adapter gives finite numbers."""
        return self.adapter is not None

    def list_abortable(self) -> frozenset[TokenSequence]:
        """Sequences whose cancellation should abort the call: those whose prompt the call computes, or the
        sequence that is alone in the call."""
        if len(self.rows) + len(self.spans) == 1:
            return self.list_sequences()
        return frozenset(span.sequence for span in self.spans)


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
        sequence = span.sequence
        tokens = sequence.tokens[span.start : span.stop]
        context.set_rows(
            row,
            tokens,
            span.start,
            sequence.running_id,
            span.gives_logits or call.checks_adapter,
            span.is_scored,
        )
        row += span.stop - span.start
    return row


def free_cells(context: DecodeContext, call: DecodeCall) -> None:
    """Frees the cells of a call that was not computed completely."""
    for sequence_id, position in zip(call.ids, call.positions, strict=True):
        context.remove(sequence_id, position)
    for span in call.spans:
        if span.sequence.id is not None:
            context.remove(span.sequence.id, span.start)


GUIDE_PATIENCE = 0.002
"""Seconds that a step waits for forced tokens and masks. Nearly all come sooner, and a step takes longer. A
sequence whose guide is not ready by then skips the step."""

SLOW_GUIDE = 0.02
"""Seconds after which a step no longer waits for a guide, so that a slow constraint does not delay other
sequences."""


class GuidedSequences:
    """The guided sequences of one decode loop."""

    def __init__(self) -> None:
        self._waiting_rows: dict[TokenSequence, Logits] = {}
        """The row of logits of each sequence whose row was computed before its mask arrived."""

    def wait_for_masks(self, running: Collection[TokenSequence]) -> None:
        """Waits briefly for the forced tokens and masks without which sequences skip the next step. Waits
        longer if all running sequences would skip it."""
        waiting_sequences = [sequence for sequence in running if self._is_waiting(sequence)]
        is_idle = len(waiting_sequences) == len(running)
        if not is_idle:
            waiting_sequences = [
                sequence
                for sequence in waiting_sequences
                if sequence.guide is not None and sequence.guide.get_age() < SLOW_GUIDE
            ]
        deadline = time.monotonic() + (SLOW_GUIDE if is_idle else GUIDE_PATIENCE)
        while waiting_sequences and (seconds_left := deadline - time.monotonic()) > 0:
            guide = waiting_sequences[0].guide
            if guide is None:
                break
            guide.workers.result_ready.clear()
            waiting_sequences = [sequence for sequence in waiting_sequences if self._is_waiting(sequence)]
            if waiting_sequences:
                guide.workers.result_ready.wait(seconds_left)
        for sequence in running:
            if sequence.guide is not None:
                sequence.guide.record_settled()

    def _is_waiting(self, sequence: TokenSequence) -> bool:
        """Whether the sequence can compute nothing until its guide has computed a mask or forced tokens."""
        if sequence.guide is None:
            return False
        if sequence in self._waiting_rows:
            return not sequence.guide.is_ready
        return not sequence.guide.is_settled and sequence.computed == len(sequence.tokens) - 1

    def find_failures(self, running: Iterable[TokenSequence]) -> list[tuple[TokenSequence, AntiphonError]]:
        """Lists the sequences whose constraint has failed or is too slow, each with the error. An error that
        the constraint causes names the caller's field."""
        failures: list[tuple[TokenSequence, AntiphonError]] = []
        for sequence in running:
            guide = sequence.guide
            if guide is not None and (error := guide.find_failure(_get_field(sequence))) is not None:
                failures.append((sequence, error))
        return failures

    def collect_forced(self, running: Iterable[TokenSequence]) -> list[tuple[TokenSequence, tuple[int, ...]]]:
        """Lists the forced tokens of sequences that have nothing to compute before their next token. Leaves
        out sequences that report log-probabilities, and sequences whose settings may forbid a forced token:
        their tokens are drawn one by one."""
        forced: list[tuple[TokenSequence, tuple[int, ...]]] = []
        for sequence in running:
            if sequence.guide is None or sequence.request.logprobs is not None:
                continue
            if (
                sequence.computed != len(sequence.tokens) - 1
                or sequence.needs_scores
                or sequence.is_undecided
            ):
                continue
            try:
                tokens = sequence.guide.get_forced()
            except AntiphonError:
                continue  # a worker has just failed; the next step ends the sequence
            if tokens and not (
                sequence.sampling_state is not None and sequence.sampling_state.may_forbid(tokens)
            ):
                forced.append((sequence, sequence.guide.take_forced()))
        return forced

    def take_ready_rows(self) -> tuple[list[TokenSequence | None], Logits] | None:
        """Takes the stored rows whose mask has arrived. Drops the rows of preempted sequences, which are
        computed again."""
        for sequence in tuple(self._waiting_rows):
            if sequence.id is None or sequence.computed != len(sequence.tokens):
                del self._waiting_rows[sequence]
        ready = [
            sequence for sequence in self._waiting_rows if sequence.guide is None or sequence.guide.is_ready
        ]
        if not ready:
            return None
        rows = np.stack([self._waiting_rows.pop(sequence) for sequence in ready])
        return [*ready], rows

    def set_masks(
        self, owners: list[TokenSequence | None], logits: Logits
    ) -> tuple[list[TokenSequence | None], dict[TokenSequence, AntiphonError]]:
        """Sets the masks of sequences. Stores the rows whose mask has not arrived. Returns the sequences of
        the rows that can be drawn now, with None for every other row, and the errors of failed sequences."""
        drawable = list(owners)
        errors: dict[TokenSequence, AntiphonError] = {}
        for row, sequence in enumerate(owners):
            if sequence is None or sequence.guide is None or sequence.sampling_state is None:
                continue
            if not sequence.guide.is_ready:
                self._waiting_rows[sequence] = logits[row].copy()
                drawable[row] = None
                continue
            mask_result = guard(sequence.guide.get_mask)
            if isinstance(mask_result, AntiphonError):
                errors[sequence] = to_callers_error(mask_result, _get_field(sequence))
                drawable[row] = None
            else:
                sequence.sampling_state.mask, sequence.sampling_state.is_forced = mask_result
        return drawable, errors


def _get_field(sequence: TokenSequence) -> str | None:
    """Returns the caller's name for the sequence's constraint; None without a constraint."""
    constraint = sequence.request.constraint
    return None if constraint is None else constraint.field
