"""The decode loop's dealings with guides: who waits for an answer, whose tokens are forced, and which rows of
logits are kept until their mask has come. Runs on the decode thread; decides, and draws nothing."""

import time
from collections.abc import Collection, Iterable

import numpy as np

from antiphon.constraints.guide import PATIENCE as PATIENCE_OF_ALL
from antiphon.constraints.matching import is_callers
from antiphon.engines.defects import guard
from antiphon.engines.llama.batch import Logits
from antiphon.engines.llama.sequence import Sequence
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


class Guiding:
    """Every guided sequence of one decode loop."""

    def __init__(self) -> None:
        self._parked: dict[Sequence, Logits] = {}
        """Rows whose mask had not come when they were computed."""

    def await_answers(self, running: Collection[Sequence]) -> None:
        """Waits a moment for those without which a sequence sits the next step out, once for each; for longer
        when there is nothing else to do."""
        waiting = [one for one in running if self._waits(one)]
        idle = len(waiting) == len(running)
        if not idle:
            waiting = [one for one in waiting if one.guide is not None and one.guide.age() < SLOW]
        until = time.monotonic() + (SLOW if idle else PATIENCE)
        while waiting and (left := until - time.monotonic()) > 0:
            guide = waiting[0].guide
            if guide is None:
                break
            guide.desk.news.clear()
            waiting = [one for one in waiting if self._waits(one)]
            if waiting:
                guide.desk.news.wait(left)
        for sequence in running:
            if sequence.guide is not None:
                sequence.guide.look()

    def _waits(self, sequence: Sequence) -> bool:
        if sequence.guide is None:
            return False
        if sequence in self._parked:
            return not sequence.guide.ready
        return not sequence.guide.settled and sequence.computed == len(sequence.tokens) - 1

    def find_failed(self, running: Iterable[Sequence]) -> list[tuple[Sequence, AntiphonError]]:
        """Sequences whose constraint cannot be followed any further, or not in time. What lies in the
        constraint names its field."""
        found: list[tuple[Sequence, AntiphonError]] = []
        for sequence in running:
            guide = sequence.guide
            if guide is None:
                continue
            if guide.error is not None:
                found.append((sequence, _to_callers_error(sequence, guide.error)))
            elif guide.overdue():
                found.append((sequence, InvalidValue(TOO_LONG, param=_field(sequence))))
            elif guide.is_starved():
                found.append((sequence, EngineBusy(BUSY, retry_after=RETRY_AFTER, cause=STARVED)))
        return found

    def collect_forced(self, running: Iterable[Sequence]) -> list[tuple[Sequence, tuple[int, ...]]]:
        """Tokens that come without a draw, of sequences that have nothing else to compute. Where
        log-probabilities are wanted each is drawn, as the only one allowed; and where one of them may be
        excluded, by the caller or before `min_tokens`, so that none of these comes by force."""
        found: list[tuple[Sequence, tuple[int, ...]]] = []
        for one in running:
            if one.guide is None or one.request.logprobs is not None:
                continue
            if one.computed != len(one.tokens) - 1 or one.scores or one.held:
                continue
            try:
                tokens = one.guide.get_forced()
            except AntiphonError:
                continue  # a worker has just found that it cannot go on: the next step ends it
            if tokens and not (one.drawing is not None and one.drawing.may_forbid(tokens)):
                found.append((one, one.guide.take_forced()))
        return found

    def take_ready_rows(self) -> tuple[list[Sequence | None], Logits] | None:
        """Rows whose mask has come since; those of sequences that were put back are computed again."""
        for sequence in tuple(self._parked):
            if sequence.id is None or sequence.computed != len(sequence.tokens):
                del self._parked[sequence]
        ready = [one for one in self._parked if one.guide is None or one.guide.ready]
        if not ready:
            return None
        rows = np.stack([self._parked.pop(one) for one in ready])
        return [*ready], rows

    def set_masks(
        self, owners: list[Sequence | None], logits: Logits
    ) -> tuple[list[Sequence | None], dict[Sequence, AntiphonError]]:
        """Who is to draw now, with its mask set; rows that have none yet are kept. And who fails."""
        drawing = list(owners)
        errors: dict[Sequence, AntiphonError] = {}
        for place, sequence in enumerate(owners):
            if sequence is None or sequence.guide is None or sequence.drawing is None:
                continue
            if not sequence.guide.ready:
                self._parked[sequence] = logits[place].copy()
                drawing[place] = None
                continue
            found = guard(sequence.guide.next)
            if isinstance(found, AntiphonError):
                errors[sequence] = _to_callers_error(sequence, found)
                drawing[place] = None
            else:
                sequence.drawing.mask, sequence.drawing.pinned = found
        return drawing, errors


def _to_callers_error(sequence: Sequence, error: AntiphonError) -> AntiphonError:
    """An error of a guide; one that lies in the constraint as the caller's."""
    if is_callers(error):
        return InvalidValue(error.message, param=_field(sequence), cause=error.cause)
    return error


def _field(sequence: Sequence) -> str | None:
    constraint = sequence.request.constraint
    return None if constraint is None else constraint.field
