"""A cache that keeps the tokens of every id, and a loop that carries out plans: what the decode loop and the
library do, without computing. It fails when a plan would compute a token upon others than its own."""

from collections.abc import Callable
from typing import Any

from antiphon.domain.request import Sampling
from antiphon.engines.base import KVLayout, PromptTokens, TokenRequest
from antiphon.engines.llama.batch import DecodeCall, StepPlan
from antiphon.engines.llama.kv.layout import CacheChange, CopyCells
from antiphon.engines.llama.kv.pool import PoolLayout
from antiphon.engines.llama.scheduler import Scheduler
from antiphon.engines.llama.sequence import SchedulingPolicy, SequencePhase, TokenSequence

BUDGET = 64
Entry = tuple[tuple[str | None, str], int, int, str]
"""The adapter and salt, the token, which computing made it (a shared cell is one entry in several ids), and
how."""


def policy(layout: str = "pool", sequences: int = 4, **changes: Any) -> SchedulingPolicy:
    """`layout`: pool, streams or exact."""
    sizes: dict[str, Any] = {
        "chunk": 16,
        "budget": BUDGET,
        "cells": 1000 if layout != "pool" else 4000,
        "row_counts": tuple(range(1, sequences + 1)),
        "layout": KVLayout.POOL if layout == "pool" else KVLayout.STREAMS,
        "ids": 16 if layout == "pool" else sequences,
    }
    return SchedulingPolicy(sequences, exact=layout == "exact", **(sizes | changes))


def sequence(prompt: int | tuple[int, ...] = 5, max_tokens: int = 100, **more: Any) -> TokenSequence:
    """A sequence with these tokens, or with so many, from 1 on."""
    tokens = tuple(range(1, prompt + 1)) if isinstance(prompt, int) else prompt
    context = more.pop("context", 1000)
    request = TokenRequest(PromptTokens(tokens), max_tokens, Sampling(0.0), **more)
    return TokenSequence(request, tokens, context)


def spans(call: DecodeCall) -> list[tuple[int | None, int, int]]:
    return [(span.sequence.id, span.start, span.stop) for span in call.spans]


class Simulation:
    """A scheduler and the cache that it believes in."""

    def __init__(
        self,
        policy: SchedulingPolicy,
        draw: Callable[[TokenSequence], int] = lambda _: 0,
        tick: float = 0.0,
        repeats: bool = True,
    ) -> None:
        """`tick`: seconds that a step takes. `repeats`: whether calls are repeated instead of planned again,
        as the decode loop does."""
        self.scheduler = Scheduler(policy)
        self.cache: dict[int, list[Entry]] = {}
        self.computed = 0
        """Rows that were computed, less padding."""
        self._ways: dict[TokenSequence, list[str]] = {}
        """In which call the cells of each sequence were computed: alone, or as which part."""
        self.given: list[TokenSequence] = []
        """Who got a token in the last step."""
        self.now = 0.0
        self._tick = tick
        self._repeats = repeats
        self.repeated = 0
        """Steps that repeated the last call."""
        self._draw = draw

    def add(self, *sequences: TokenSequence) -> None:
        for one in sequences:
            assert self.scheduler.add(one, self.now) is None

    def step(self, budget: int = BUDGET) -> StepPlan:
        plan = self.plan(budget)
        self.carry_out(plan)
        self.now += self._tick
        return plan

    def plan(self, budget: int = BUDGET) -> StepPlan:
        call = self.scheduler.repeat(self.now) if self._repeats else None
        if call is None:
            return self.scheduler.plan(budget, self.now)
        self.repeated += 1
        return StepPlan(calls=[call])

    def run(self, steps: int = 10_000) -> None:
        """Until nobody is left."""
        while self.scheduler.running or self.scheduler.waiting:
            self.step()
            steps -= 1
            assert steps, "somebody starves"

    def change(self, changes: list[CacheChange]) -> None:
        for change in changes:
            if isinstance(change, CopyCells):
                assert not self.cache.get(change.target)
                assert len(self.cache[change.source]) >= change.length
                self.cache[change.target] = self.cache[change.source][: change.length]
            else:
                self.cache[change.id] = self.cache.get(change.id, [])[: change.start]

    def carry_out(self, plan: StepPlan) -> None:
        self.change(plan.changes)
        self.given = []
        for call in plan.calls:
            drawing = []
            for one, seat, position in zip(call.rows, call.ids, call.positions, strict=True):
                assert len(self.cache.get(seat, [])) == position
                if one is not None:
                    assert seat == one.id and position == one.computed
                    self._compute(one, position + 1, call, "row")
                    one.computed = position + 1
                    if one.computed == len(one.tokens):
                        drawing.append(one)
            for span in call.spans:
                assert span.start == span.sequence.computed
                self._compute(span.sequence, span.stop, call, f"{span.start} to {span.stop}")
                span.sequence.note_span(span.start, span.stop)
                if span.is_scored:
                    span.sequence.scored_tokens = span.stop
                elif span.gives_logits:
                    drawing.append(span.sequence)
            for one in drawing:
                if one.accept(self._draw(one), frozenset()):
                    self.scheduler.drop(one)
            self.given += drawing
            self._verify_drafts(call)
        self.check()

    def _verify_drafts(self, call: DecodeCall) -> None:
        """Draws for sequences with drafts until a token differs from its draft, as the decode loop does."""
        for span in call.draft_spans:
            one = span.sequence
            assert span.start == one.computed == len(one.tokens) - 1
            assert len(one.tokens) + len(span.drafts) < one.max_length
            self._compute(one, len(one.tokens), call, "row")
            cells = self.cache[one.running_id]
            cells += [(one.key, token, -1, "draft") for token in span.drafts]
        if call.draft_spans:
            entries = [(seat, *cell) for seat, cells in self.cache.items() for cell in cells]
            shared = {cell[1:] for cell in entries if cell[-2] >= 0}
            assert len(shared) + sum(cell[-2] < 0 for cell in entries) <= self.scheduler.layout.total
        for span in call.draft_spans:
            one, right, is_right, is_over = span.sequence, 0, True, False
            while is_right and not is_over:
                token = self._draw(one)
                is_over = one.accept(token, frozenset()) is not None
                is_right = right < len(span.drafts) and span.drafts[right] == token
                right += is_right
            one.computed = min(span.start + 1 + right, len(one.tokens) - 1)
            cells = self.cache[one.running_id]
            cells[span.start + 1 :] = []
            for token in one.tokens[span.start + 1 : one.computed]:
                self.computed += 1
                cells.append((one.key, token, self.computed, "row"))
            if is_over:
                self.scheduler.drop(one)
            self.given.append(one)

    def _compute(self, one: TokenSequence, stop: int, call: DecodeCall, way: str) -> None:
        assert call.adapter == one.request.adapter
        cells = self.cache.setdefault(one.running_id, [])
        # A step of long sequences has thousands of cells, so they are compared as whole lists.
        assert [cell[1] for cell in cells] == list(one.tokens[: one.computed]), (
            "it goes on from its own tokens"
        )
        assert [cell[0] for cell in cells].count(one.key) == len(cells), "computed under its own adapter"
        for token in one.tokens[one.computed : stop]:
            self.computed += 1
            cells.append((one.key, token, self.computed, way))
        if self.scheduler.policy.exact:
            before, now = self._ways.get(one, []), [cell[-1] for cell in cells]
            assert before[: len(now)] == now[: len(before)], "what is computed again has the same bits"
            self._ways[one] = max(before, now, key=len)

    def check(self) -> None:
        """The scheduler's accounts against the cache."""
        self.change(self.scheduler.take_changes())
        cells, running = self.scheduler.layout, self.scheduler.list_running()
        seats = [one.running_id for one in running]
        assert len(set(seats)) == len(seats) <= self.scheduler.policy.sequences
        if isinstance(cells, PoolLayout):
            used = {computing for seat in seats for _, _, computing, _ in self.cache.get(seat, [])}
            everything = {computing for entries in self.cache.values() for _, _, computing, _ in entries}
            assert cells.used_cells == len(used)
            assert cells.cached_cells == len(everything - used)
            assert len(everything) <= cells.total
        else:
            assert cells.used_cells == sum(len(self.cache.get(seat, [])) for seat in seats)
            assert cells.cached_cells == sum(map(len, self.cache.values())) - cells.used_cells
        assert all(one.phase in (SequencePhase.PREFILL, SequencePhase.DECODE) for one in running)
