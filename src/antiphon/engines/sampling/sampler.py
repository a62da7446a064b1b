"""Draws the tokens of a whole step in one call.

Logit bias, penalties and masks come first, then temperature, then min-p, top-k, top-p, typical-p, or Mirostat
instead of these four. It processes one block of rows at a time, small enough for the cache. A row's TOP_COUNT
largest logits decide most filters; if they do not suffice, that row is filtered as a whole. Everything is
computed row by row or number by number, so a row's token does not depend on the rows beside it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from math import log2
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from antiphon.engines.defects import guard
from antiphon.engines.sampling.filters import apply_filters, find_typical, keep_only
from antiphon.engines.sampling.logits import (
    NO_NUMBER,
    Floats,
    LogitBlock,
    Pairs,
    Rows,
    TopLogits,
    compute_top_logprobs,
    count_chunk_rows,
    find_largest,
    list_likeliest,
    pick_logprobs,
    select_rows,
    sum_columns,
)
from antiphon.engines.sampling.sampling_state import (
    ESTIMATION_TOKENS,
    MirostatThreshold,
    SamplingState,
    draw_uniform,
)
from antiphon.errors import AntiphonError, EngineError, InvalidValue

TOP_COUNT, LONG_TOP_COUNT = 64, 256
"""The number of a row's largest logits that are examined first; LONG_TOP_COUNT if top-k exceeds TOP_COUNT."""

SHARED_ALTERNATIVES = 64
"""The most alternatives of a row for which all rows of a block list as many as the largest request."""

NO_TOKEN = (
    "no token is left that may be drawn: "
    "the constraint, allowed_token_ids, bad_words and min_tokens exclude each other; leave one of them out"
)

Wide = NDArray[np.float64]
Flags = NDArray[np.bool_]


class SampledToken(NamedTuple):
    """A token and its log-probabilities. It is a tuple for speed, because one is made for each token."""

    token: int
    logprob: float | None = None
    alternatives: tuple[tuple[int, float], ...] = ()
    """The likeliest (id, log-probability), best first."""


RowResult = tuple[SampledToken, float | None] | AntiphonError | None
"""A row's token with its surprise in bits if Mirostat is on; or the error that ends its sequence."""


@dataclass(slots=True)
class FilterSettings:
    """The filter settings of a block's rows, one number for each row."""

    states: list[SamplingState]
    uniforms: Wide
    """In [0, 1): the random position in the cumulative distribution."""
    inverse_temperatures: Floats
    """One over the temperature."""
    min_p: Wide
    top_k: NDArray[np.intp]
    top_p: Wide

    @classmethod
    def collect(cls, drawings: list[SamplingState]) -> "FilterSettings":
        """Builds the arrays of filter options, one entry per row. Mirostat rows use no other filter."""
        options = [drawing.sampling for drawing in drawings]
        steered = [drawing.mirostat is not None for drawing in drawings]
        rows = list(zip(options, steered, strict=True))
        return cls(
            drawings,
            draw_uniform([drawing.key for drawing in drawings], [drawing.position for drawing in drawings]),
            np.array([1.0 / option.temperature for option in options], dtype=np.float32),
            np.array([0.0 if off else option.min_p for option, off in rows]),
            np.array([0 if off else option.top_k for option, off in rows], dtype=np.intp),
            np.array([1.0 if off else option.top_p for option, off in rows]),
        )


class Sampler:
    """Draws for one size of vocabulary; only one thread may use it."""

    def __init__(self, vocabulary: int) -> None:
        self._size = count_chunk_rows(vocabulary)
        self._copied = np.empty((self._size, vocabulary), dtype=np.float32)
        self._weights = np.empty((self._size, vocabulary), dtype=np.float32)

    def draw(
        self, logits: Floats, drawings: Sequence[SamplingState | None]
    ) -> list[SampledToken | AntiphonError | None]:
        """Draws the token of each row, or returns the error that ends its sequence. The states note their
        tokens.

        `logits`: (rows, vocabulary), the model's own, only read. A state is None for a row whose token is not
        needed. Raises nothing: a defect in one row becomes an InternalError that names its place, and the
        other rows keep their tokens.
        """
        results = self.choose(logits, drawings)
        return [note_draw(*each) for each in zip(drawings, results, strict=True)]

    def choose(self, logits: Floats, drawings: Sequence[SamplingState | None]) -> list[RowResult]:
        """Computes the results of `draw` without changing the states: the caller may discard a token, and
        choose it again."""
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            try:
                return self._draw_all(logits, drawings)
            except Exception:  # noqa: BLE001 - a defect of ours, to be found row by row
                return [
                    unwrap_single(guard(self._draw_all, logits[row : row + 1], [state]))
                    for row, state in enumerate(drawings)
                ]

    def _draw_all(self, logits: Floats, drawings: Sequence[SamplingState | None]) -> list[RowResult]:
        """Computes the results of `draw`; the states are not changed yet."""
        if all(drawing is None or drawing.is_plain for drawing in drawings):
            return _take_likeliest(logits, drawings)
        starts = range(0, len(drawings), self._size)
        return [
            *chain.from_iterable(
                self._draw(logits[at : at + self._size], drawings[at : at + self._size]) for at in starts
            )
        ]

    def _draw(self, logits: Floats, drawings: Sequence[SamplingState | None]) -> list[RowResult]:
        """Draws one token per row. A row without finite logits, or without a possible token, gets an
        error."""
        raw = LogitBlock.from_rows(logits)
        sound = np.isfinite(raw.tops)
        states = {row: state for row, state in enumerate(drawings) if state is not None and sound[row]}
        logprobs = self._get_logprobs(
            raw, {row: state for row, state in states.items() if state.logprobs is not None}
        )
        block = self._apply_changes(
            raw, {row: state for row, state in states.items() if state.changes_logits}
        )
        tokens = self._draw_tokens(block, states)
        results: list[RowResult] = []
        for row, drawing in enumerate(drawings):
            if row not in tokens:
                error = InvalidValue(NO_TOKEN) if sound[row] else EngineError(NO_NUMBER)
                results.append(None if drawing is None else error)
                continue
            token, surprise = tokens[row]
            if row in logprobs:
                best, alternatives = logprobs[row]
                below = float(logits[row, token]) - float(raw.tops[row])
                results.append((SampledToken(token, below + best, alternatives), surprise))
            else:
                results.append((SampledToken(token), surprise))
        return results

    def _get_logprobs(
        self, raw: LogitBlock, states: dict[int, SamplingState]
    ) -> dict[int, tuple[float, Pairs]]:
        """For each row that reports log-probabilities, that of its likeliest token and the alternatives."""
        if not states:
            return {}
        block = raw.select(np.array([*states], dtype=np.intp))
        best = compute_top_logprobs(block.rows, block.tops, self._weights)
        parts = list_alternatives(block, best, list(states.values()))
        return dict(zip(states, zip(best.tolist(), parts, strict=True), strict=True))

    def _apply_changes(self, raw: LogitBlock, states: dict[int, SamplingState]) -> LogitBlock:
        """The block with bias, penalties and masks: a copy if there are any."""
        if not states:
            return raw
        rows = self._copied[: len(raw.rows)]
        np.copyto(rows, raw.rows)
        for row, drawing in states.items():
            drawing.apply_to(rows[row])
        return LogitBlock.from_rows(rows)

    def _draw_tokens(
        self, block: LogitBlock, states: dict[int, SamplingState]
    ) -> dict[int, tuple[int, float | None]]:
        """Draws the token of each row that has an allowed one, with its surprise if Mirostat is on."""
        drawn: dict[int, tuple[int, float | None]] = {}
        groups: dict[int, list[int]] = {}
        for row, drawing in states.items():
            if block.tops[row] == -np.inf:
                continue
            if drawing.is_greedy or drawing.is_forced:
                drawn[row] = int(block.rows[row].argmax()), None
            else:
                groups.setdefault(choose_top_count(drawing), []).append(row)
        for length, rows in groups.items():
            picked = np.array(rows, dtype=np.intp)
            filters = FilterSettings.collect([states[row] for row in rows])
            group = _FilterGroup(block.select(picked), filters, self._weights)
            tokens = group.draw_from_top(length) if length else group.draw_from_all()
            drawn.update(zip(rows, tokens, strict=True))
        return drawn


def list_alternatives(block: LogitBlock, best: Wide, states: Sequence[SamplingState]) -> Iterator[Pairs]:
    """The alternatives to report for each row. `best`: the log-probabilities of the likeliest tokens."""
    counts = [0 if state.listed_tokens else state.logprobs or 0 for state in states]
    width = max((count for count in counts if count <= SHARED_ALTERNATIVES), default=0)
    lists = list_likeliest(block, best, width) if width else None
    for row, (state, count) in enumerate(zip(states, counts, strict=True)):
        if state.listed_tokens:
            yield pick_logprobs(block, best, row, state.listed_tokens)
        elif count > SHARED_ALTERNATIVES:
            alone = np.array([row], dtype=np.intp)
            yield list_likeliest(block.select(alone), best[alone], count)[0]
        else:
            yield lists[row][:count] if lists is not None else ()


def choose_top_count(drawing: SamplingState) -> int:
    """The number of a row's largest logits to examine; 0 if nothing is filtered."""
    sampling = drawing.sampling
    if drawing.mirostat is not None:
        return ESTIMATION_TOKENS if drawing.mirostat.version == 1 else TOP_COUNT
    filters = (sampling.min_p > 0, sampling.top_k, sampling.top_p < 1, sampling.typical_p < 1)
    if not any(filters):
        return 0
    return LONG_TOP_COUNT if TOP_COUNT < sampling.top_k <= LONG_TOP_COUNT else TOP_COUNT


class _FilterGroup:
    """Rows of a block that examine the same number of largest logits."""

    def __init__(self, block: LogitBlock, filters: FilterSettings, buffer: Floats) -> None:
        self._block = block
        self._settings = filters
        self._buffer = buffer

    def draw_from_all(self) -> list[tuple[int, float | None]]:
        """Draws for rows without filters."""
        weights, sums = self._compute_weights(np.arange(len(self._block.rows)))
        return [(token, None) for token in draw_by_columns(weights, sums, self._settings.uniforms).tolist()]

    def draw_from_top(self, length: int) -> list[tuple[int, float | None]]:
        """Draws for filtered rows, with the surprise in bits where Mirostat is on."""
        head = self._block.find_top(length)
        falls = (head.values - self._block.tops[:, None]) * self._settings.inverse_temperatures[:, None]
        weights = np.exp(falls).astype(np.float64)
        kept_mask, closed = self._apply_bounds(head, weights)
        masses: Wide = np.where(kept_mask, weights, 0.0).cumsum(axis=1)[:, -1]
        opened = np.flatnonzero(~closed)
        if len(opened):
            wide, sums = self._compute_weights(opened)
            masses[opened] = sums[:, -1]
        decided = self._cut_to_nucleus(kept_mask, closed, weights, masses)
        self._filter_row_by_row(kept_mask, decided, weights, masses)
        spots = find_drawn_index(np.where(kept_mask, weights, 0.0), self._settings.uniforms)
        rows = np.arange(len(spots))
        tokens, drawn = head.ids[rows, spots], weights[rows, spots]
        wider = np.flatnonzero(~decided[opened])
        if len(wider):
            rows = opened[wider]
            tokens[rows], drawn[rows] = self._draw_from_whole(rows, select_rows(wide, wider), masses[rows])
        numbers = zip(self._settings.states, drawn.tolist(), masses.tolist(), strict=True)
        surprises = [
            None if state.mirostat is None else log2(mass / weight) for state, weight, mass in numbers
        ]
        return list(zip(tokens.tolist(), surprises, strict=True))

    def _apply_bounds(self, head: TopLogits, weights: Wide) -> tuple[Flags, Flags]:
        """Applies min-p and top-k to each row's head. Returns the kept tokens, and the rows for which no
        token outside the head is kept."""
        filters, length = self._settings, weights.shape[1]
        counts = np.where(filters.top_k > 0, np.minimum(filters.top_k, head.found), head.found)
        kept_mask = (np.arange(length) < counts[:, None]) & (weights >= filters.min_p[:, None])
        exhausted = (head.found < length) | (length == self._block.rows.shape[1])
        bounded = (filters.top_k > 0) & (filters.top_k <= length)
        return kept_mask, exhausted | bounded | (weights[:, -1] < filters.min_p)

    def _cut_to_nucleus(self, kept_mask: Flags, closed: Flags, weights: Wide, masses: Wide) -> Flags:
        """Cuts the kept tokens to the nucleus. Returns the rows for which no token outside the head is
        kept."""
        filters = self._settings
        sums = np.where(kept_mask, weights, 0.0).cumsum(axis=1)
        needed = filters.top_p * masses
        narrow = filters.top_p < 1
        kept_mask &= (sums - weights < needed[:, None]) | ~narrow[:, None]
        kept_mask[:, 0] = True
        unbounded = (filters.min_p == 0) & (filters.top_k == 0)
        decided: Flags = closed | (narrow & unbounded & (sums[:, -1] >= needed))
        return decided

    def _filter_row_by_row(self, kept_mask: Flags, decided: Flags, weights: Wide, masses: Wide) -> None:
        """Applies typical-p and Mirostat, row by row."""
        for row, drawing in enumerate(self._settings.states):
            steering, typical = drawing.mirostat, drawing.sampling.typical_p
            if steering is not None:
                decided[row] |= self._apply_mirostat(
                    steering, kept_mask[row], weights[row], float(masses[row])
                )
            elif typical < 1 and decided[row]:
                candidates = np.flatnonzero(kept_mask[row])
                kept_mask[row] = False
                kept_mask[row, candidates[find_typical(weights[row, candidates], typical)]] = True

    def _apply_mirostat(
        self, steering: MirostatThreshold, kept_mask: Flags, weights: Wide, mass: float
    ) -> bool:
        """Cuts a row's head by Mirostat. Returns whether the cut is within the head."""
        if steering.version == 1:
            count = steering.count_kept(weights, self._block.rows.shape[1])
            kept_mask[count:] = False
            return count <= len(weights)
        least = steering.find_min_weight(mass)
        kept_mask &= weights >= least
        kept_mask[0] = True
        return bool(weights[-1] < least)

    def _draw_from_whole(self, rows: Rows, weights: Floats, masses: Wide) -> tuple[Rows, Floats]:
        """Draws tokens of the rows whose heads do not decide the filters; also returns their weights. It
        filters the rows' `weights` in place."""
        for row, each, mass in zip(rows.tolist(), weights, masses.tolist(), strict=True):
            drawing = self._settings.states[row]
            if drawing.mirostat is None:
                apply_filters(drawing.sampling, each)
            elif drawing.mirostat.version == 1:
                best = -np.sort(-each[find_largest(each, min(ESTIMATION_TOKENS, len(each)))]).astype(
                    np.float64
                )
                keep_only(each, find_largest(each, drawing.mirostat.count_kept(best, len(each))))
            else:
                np.multiply(each, each >= drawing.mirostat.find_min_weight(mass), out=each)
        sums = sum_columns(weights).cumsum(axis=1, dtype=np.float64)
        tokens = draw_by_columns(weights, sums, self._settings.uniforms[rows])
        return tokens, weights[np.arange(len(rows)), tokens]

    def _compute_weights(self, picked: Rows) -> tuple[Floats, Wide]:
        """The weights of these rows, 1 for the likeliest token, and the running sums of their columns."""
        block = self._block.select(picked)
        weights = np.subtract(block.rows, block.tops[:, None], out=self._buffer[: len(picked)])
        weights *= select_rows(self._settings.inverse_temperatures, picked)[:, None]
        np.exp(weights, out=weights)
        return weights, sum_columns(weights).cumsum(axis=1, dtype=np.float64)


def draw_by_columns(weights: Floats, sums: Wide, fractions: Wide) -> NDArray[np.intp]:
    """Returns an id per row: the first, column by column, at which the running sum exceeds the row's
    fraction of the total. `sums`: running sums of the columns."""
    width, columns = weights.shape[1], sums.shape[1]
    targets = np.minimum(fractions * sums[:, -1], np.nextafter(sums[:, -1], 0.0))
    column = (sums <= targets[:, None]).sum(axis=1)
    ids = column[:, None] + np.arange(0, width, columns)
    rows = np.arange(len(weights))[:, None]
    column_weights = np.where(ids < width, weights[rows, np.minimum(ids, width - 1)], 0.0).astype(np.float64)
    before = np.where(column > 0, sums[rows[:, 0], column - 1], 0.0)
    totals = column_weights.cumsum(axis=1)
    remaining = np.minimum(targets - before, np.nextafter(totals[:, -1], 0.0))
    offsets = (totals <= remaining[:, None]).sum(axis=1)
    tokens: NDArray[np.intp] = ids[rows[:, 0], offsets]
    return tokens


def find_drawn_index(weights: Wide, fractions: Wide) -> NDArray[np.intp]:
    """For each row, the index at which the running sum exceeds this fraction of the total."""
    sums = weights.cumsum(axis=1)
    targets = np.minimum(fractions * sums[:, -1], np.nextafter(sums[:, -1], 0.0))
    spots: NDArray[np.intp] = (sums <= targets[:, None]).sum(axis=1)
    return spots


def _take_likeliest(logits: Floats, drawings: Sequence[SamplingState | None]) -> list[RowResult]:
    """Takes the greedy tokens of rows that need nothing else."""
    tokens = logits.argmax(axis=1)
    sound = np.isfinite(logits[np.arange(len(tokens)), tokens]).tolist()
    results: list[RowResult] = []
    for drawing, token, good in zip(drawings, tokens.tolist(), sound, strict=True):
        if drawing is None:
            results.append(None)
        else:
            results.append((SampledToken(token), None) if good else EngineError(NO_NUMBER))
    return results


def note_draw(drawing: SamplingState | None, result: RowResult) -> SampledToken | AntiphonError | None:
    """Adds the token to the state. Returns the token or the error."""
    if drawing is None or not isinstance(result, tuple):
        return None if isinstance(result, tuple) else result
    drawn, surprise = result
    error = guard(drawing.accept, drawn.token, surprise)
    return drawn if error is None else error


def unwrap_single(results: list[RowResult] | AntiphonError) -> RowResult:
    """The result of a single row."""
    return results if isinstance(results, AntiphonError) else results[0]
