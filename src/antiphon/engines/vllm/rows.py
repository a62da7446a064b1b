"""The rows of vLLM's batch whose tokens Antiphon's sampler draws. This module knows no vLLM.

vLLM asks for the logits of a row also while the row's prompt is incomplete, and then discards the token. So a
row's state moves on only when the token is in the list of committed tokens.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from antiphon.constraints.grammar_types import Grammar
from antiphon.constraints.guide import Guide
from antiphon.domain.sampling import Sampling
from antiphon.engines.defects import guard
from antiphon.engines.sampling import DrawnToken, Sampler, SamplingState
from antiphon.engines.vllm.row_request import RowRequest
from antiphon.errors import AntiphonError

MAX_STALL_S = 0.5
"""Seconds of CPU for one answer of a constraint. All rows of the batch wait for it."""

PAUSE_S = 0.02
"""Seconds after which the time of an answer is examined again."""

FILLER = 0
"""The token of a row that has failed; the engine host drops it."""


class GuideMaker(Protocol):
    """Makes guides; `constraints.mask_workers.MaskWorkers` does."""

    answer_ready: threading.Event

    def create_guide(self, grammar: Grammar) -> Guide: ...


@dataclass(slots=True, eq=False)
class Row:
    """One row of the batch."""

    request: RowRequest
    state: SamplingState
    output: Sequence[int]
    """The committed tokens: a list of vLLM's, which grows."""
    guide: Guide | None = None
    chosen: tuple[int, float | None] | None = None
    """The last chosen token, which may not be committed, and its surprise."""
    has_failed: bool = False

    @property
    def is_over(self) -> bool:
        """Whether the sequence is complete."""
        output = self.output
        return len(output) >= self.request.max_tokens or bool(output and self.request.ends_with(output[-1]))


@dataclass(slots=True)
class RowTable:
    """All rows, by their index in the batch."""

    vocabulary: int
    most: int
    """The most sequences that vLLM has at once."""
    report: Callable[[str, AntiphonError], None]
    """Tells why a sequence cannot go on."""
    get_guides: Callable[[], GuideMaker]
    """Returns the maker of guides, which the first call makes."""
    rows: dict[int, Row] = field(default_factory=dict)
    _preempted: dict[str, Row] = field(default_factory=dict)
    """Rows that left the batch and may come back, by the sequence, oldest first."""
    _sampler: Sampler | None = None

    # --- the batch changes

    def add(self, index: int, request: RowRequest, prompt: Sequence[int], output: Sequence[int]) -> None:
        """Adds a row, in the place of any other. A row that comes back keeps its state."""
        self.rows.pop(index, None)
        row = self._preempted.pop(request.sequence, None)
        if row is None:
            made = guard(self._make, request, prompt, output)
            if isinstance(made, AntiphonError):
                self.report(request.sequence, made)
                state = SamplingState(Sampling(), 0, None, (), (), (), self.vocabulary)
                made = Row(request, state, output, has_failed=True)
            row = made
        row.output = output
        self.rows[index] = row

    def _make(self, request: RowRequest, prompt: Sequence[int], output: Sequence[int]) -> Row:
        state = SamplingState(
            request.sampling,
            request.choice,
            None,
            prompt=prompt,
            ends=request.ends,
            stops=request.stops,
            vocabulary=self.vocabulary,
        )
        guide = None if request.grammar is None else self.get_guides().create_guide(request.grammar)
        return Row(request, state, output, guide)

    def remove(self, index: int) -> None:
        """Removes a row, which may come back if its sequence is not over."""
        row = self.rows.pop(index, None)
        if row is None:
            return
        row.state.mask = None
        if row.is_over:
            self._drop(row)
            return
        self._preempted[row.request.sequence] = row
        while len(self._preempted) > self.most:
            self._drop(self._preempted.pop(next(iter(self._preempted))))

    def move(self, index: int, other: int, is_swap: bool) -> None:
        """Moves a row to another index; with `is_swap`, the other row takes its place."""
        row, there = self.rows.pop(index, None), self.rows.pop(other, None)
        if row is not None:
            self.rows[other] = row
        if is_swap and there is not None:
            self.rows[index] = there

    def _drop(self, row: Row) -> None:
        if row.guide is not None:
            row.guide.abandon()

    # --- a step

    def catch_up(self) -> None:
        """Notes the tokens that were committed since the last step. Guides then compute beside the model."""
        for row in self.rows.values():
            if not row.has_failed:
                error = guard(self._catch_up, row)
                if error is not None:
                    self._fail(row, error)

    def _catch_up(self, row: Row) -> None:
        while (position := row.state.position) < len(row.output):
            token = row.output[position]
            surprise = row.chosen[1] if row.chosen is not None and row.chosen[0] == token else None
            row.chosen = None
            row.state.accept(token, surprise)
            if row.guide is not None and not row.request.ends_with(token):
                self._await_answer(row.guide, row)
                row.guide.advance(token)

    def choose(self, logits: NDArray[np.float32], rows: Sequence[Row]) -> list[int]:
        """Chooses the token of each row. `logits`: the model's own, one row for each, only read."""
        for row in rows:
            if row.guide is not None and not row.has_failed:
                error = guard(self._set_mask, row)
                if error is not None:
                    self._fail(row, error)
        if self._sampler is None:
            self._sampler = Sampler(self.vocabulary)
        results = self._sampler.draw_without_accepting(
            logits, [None if row.has_failed else row.state for row in rows]
        )
        tokens: list[int] = []
        for row, result in zip(rows, results, strict=True):
            if isinstance(result, AntiphonError):
                self._fail(row, result)
            if isinstance(result, DrawnToken):
                row.chosen = (result.sampled.token, result.surprise)
                tokens.append(result.sampled.token)
            else:
                tokens.append(FILLER)
        return tokens

    def _set_mask(self, row: Row) -> None:
        """Waits for the mask of a row, and sets it. Raises the error of the constraint."""
        if row.guide is not None:
            self._await_answer(row.guide, row)
            row.state.mask, row.state.is_forced = row.guide.get_mask()

    def _await_answer(self, guide: Guide, row: Row) -> None:
        """Waits for the answer of a guide. Raises the error of the constraint."""
        ready = self.get_guides().answer_ready
        while True:
            ready.clear()
            if (error := guide.find_failure(row.request.field, MAX_STALL_S)) is not None:
                guide.abandon()
                raise error
            if guide.is_ready:
                return
            ready.wait(PAUSE_S)

    def _fail(self, row: Row, error: AntiphonError) -> None:
        """Reports the error of a row once. The row then gets fillers, until the host ends its sequence."""
        if not row.has_failed:
            row.has_failed = True
            self.report(row.request.sequence, error)
