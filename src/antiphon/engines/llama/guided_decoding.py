"""Guided sequences, which are sequences with a constraint, in the decode loop. For each of them, the workers
of its `Guide` compute the forced tokens, then the mask of the next token. This module waits for these
results, collects forced tokens, and stores rows of logits whose masks have not arrived. It runs on the decode
thread and draws no token.
"""

import time
from collections.abc import Collection, Iterable

import numpy as np

from antiphon.constraints.guide import to_callers_error
from antiphon.engines.defects import guard
from antiphon.engines.llama.batch import Logits
from antiphon.engines.llama.sequence import TokenSequence
from antiphon.errors import AntiphonError

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
        """Lists the sequences whose constraint has failed or is too slow, each with the error. If the
        constraint is to blame, the error names the request field that contains it."""
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
    """Returns the name of the request field that contains the sequence's constraint; None without a
    constraint."""
    constraint = sequence.request.constraint
    return None if constraint is None else constraint.field
