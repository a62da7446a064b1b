"""The decode loop's dealings with guides: who waits for an answer, whose tokens are forced, and which rows of
logits are kept until their mask has come. Runs on the decode thread; decides, and draws nothing."""

import time
from collections.abc import Collection, Iterable

import numpy as np

from antiphon.constraints.guide import PATIENCE as PATIENCE_OF_ALL
from antiphon.constraints.matching import is_callers_fault
from antiphon.engines.defects import guard
from antiphon.engines.llama.batch import Logits
from antiphon.engines.llama.sequence import TokenSequence
from antiphon.errors import AntiphonError, EngineBusy, InvalidValue

PATIENCE = 0.002
"""Seconds that a step waits for answers: more than nearly all take, less than a step. Who has none by then
sits the step out."""

SLOW = 0.02
"""Seconds after which others wait no more for an answer."""

TOO_LONG = "the constraint takes too long to follow here; make it simpler"
BUSY = "the machine is too busy to follow the constraint; try again"
STARVED = f"no worker had an answer for a constraint within {PATIENCE_OF_ALL:g} s"
RETRY_AFTER = 5.0
"""Seconds that callers are told to wait when the machine is too busy."""


class GuidedSequences:
    """The guided sequences of one decode loop."""

    def __init__(self) -> None:
        self._parked: dict[TokenSequence, Logits] = {}
        """Rows whose mask had not come when they were computed."""

    def await_answers(self, running: Collection[TokenSequence]) -> None:
        """Waits a moment for answers without which a sequence misses the next step; longer when there is
        nothing else to do."""
        waiting = [one for one in running if self._is_waiting(one)]
        idle = len(waiting) == len(running)
        if not idle:
            waiting = [one for one in waiting if one.guide is not None and one.guide.get_age() < SLOW]
        until = time.monotonic() + (SLOW if idle else PATIENCE)
        while waiting and (left := until - time.monotonic()) > 0:
            guide = waiting[0].guide
            if guide is None:
                break
            guide.workers.answered.clear()
            waiting = [one for one in waiting if self._is_waiting(one)]
            if waiting:
                guide.workers.answered.wait(left)
        for sequence in running:
            if sequence.guide is not None:
                sequence.guide.note_settled()

    def _is_waiting(self, sequence: TokenSequence) -> bool:
        if sequence.guide is None:
            return False
        if sequence in self._parked:
            return not sequence.guide.is_ready
        return not sequence.guide.is_settled and sequence.computed == len(sequence.tokens) - 1

    def find_failed(self, running: Iterable[TokenSequence]) -> list[tuple[TokenSequence, AntiphonError]]:
        """Sequences whose constraint cannot be followed any further, or not in time. An error of the
        constraint names its field."""
        found: list[tuple[TokenSequence, AntiphonError]] = []
        for sequence in running:
            guide = sequence.guide
            if guide is None:
                continue
            if guide.error is not None:
                found.append((sequence, _to_callers_error(sequence, guide.error)))
            elif guide.is_overdue():
                found.append((sequence, InvalidValue(TOO_LONG, param=_get_field(sequence))))
            elif guide.is_starved():
                found.append((sequence, EngineBusy(BUSY, retry_after=RETRY_AFTER, cause=STARVED)))
        return found

    def collect_forced(self, running: Iterable[TokenSequence]) -> list[tuple[TokenSequence, tuple[int, ...]]]:
        """Forced tokens of sequences that have nothing else to compute. They are drawn one by one where
        log-probabilities are wanted, or where one of them may be excluded by the caller or by
        `min_tokens`."""
        found: list[tuple[TokenSequence, tuple[int, ...]]] = []
        for one in running:
            if one.guide is None or one.request.logprobs is not None:
                continue
            if one.computed != len(one.tokens) - 1 or one.needs_scores or one.is_undecided:
                continue
            try:
                tokens = one.guide.get_forced()
            except AntiphonError:
                continue  # a worker has just found that it cannot go on: the next step ends it
            if tokens and not (one.sampling_state is not None and one.sampling_state.may_forbid(tokens)):
                found.append((one, one.guide.take_forced()))
        return found

    def take_ready_rows(self) -> tuple[list[TokenSequence | None], Logits] | None:
        """Rows whose mask has come since; rows of sequences that were put back are computed again."""
        for sequence in tuple(self._parked):
            if sequence.id is None or sequence.computed != len(sequence.tokens):
                del self._parked[sequence]
        ready = [one for one in self._parked if one.guide is None or one.guide.is_ready]
        if not ready:
            return None
        rows = np.stack([self._parked.pop(one) for one in ready])
        return [*ready], rows

    def set_masks(
        self, owners: list[TokenSequence | None], logits: Logits
    ) -> tuple[list[TokenSequence | None], dict[TokenSequence, AntiphonError]]:
        """Sets the masks of the rows that can be drawn now, and keeps the rows that have none yet. Also
        returns the sequences that fail."""
        drawing = list(owners)
        errors: dict[TokenSequence, AntiphonError] = {}
        for place, sequence in enumerate(owners):
            if sequence is None or sequence.guide is None or sequence.sampling_state is None:
                continue
            if not sequence.guide.is_ready:
                self._parked[sequence] = logits[place].copy()
                drawing[place] = None
                continue
            found = guard(sequence.guide.get_mask)
            if isinstance(found, AntiphonError):
                errors[sequence] = _to_callers_error(sequence, found)
                drawing[place] = None
            else:
                sequence.sampling_state.mask, sequence.sampling_state.is_forced = found
        return drawing, errors


def _to_callers_error(sequence: TokenSequence, error: AntiphonError) -> AntiphonError:
    """The error of a guide, as the caller's error where the constraint causes it."""
    if is_callers_fault(error):
        return InvalidValue(error.message, param=_get_field(sequence), cause=error.cause)
    return error


def _get_field(sequence: TokenSequence) -> str | None:
    constraint = sequence.request.constraint
    return None if constraint is None else constraint.field
