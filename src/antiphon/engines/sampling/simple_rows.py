"""Draws steps whose rows need nothing but a temperature and the filters min-p, top-k and top-p, or are
greedy.

Nearly every step is of this kind. The time between two decodes is a large part of a step of a small model, or
of a model on a GPU. What counts there is how much code and memory a draw touches, because the weights of the
model have flushed the processor's cache. So a row is drawn with a dozen calls of numpy, and then in Python
over at most TOP_COUNT numbers. Many rows are drawn together, with settings that stay between steps.

The numbers and the order of their additions are those of `_FilterGroup` in `sampler`, so both ways give the
same tokens, bit for bit. A function returns None for a row that it cannot decide, such as one with NaN. Then
`Sampler` draws all rows in its general way.
"""

import logging
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from math import isfinite, nextafter

import numpy as np
from numpy.typing import NDArray

from antiphon.domain.values import Struct
from antiphon.engines.sampling.logits import (
    CROWDED_FACTOR,
    LOWEST,
    MANY,
    ROWS,
    Floats,
    LogitBlock,
    Rows,
    count_columns,
    sum_columns,
)
from antiphon.engines.sampling.sampling_state import TOP_COUNT, SamplingState, draw_one_uniform, draw_uniform

log = logging.getLogger(__name__)

Doubles = NDArray[np.float64]
Flags = NDArray[np.bool_]

FEW_ROWS = 3
"""Up to this many rows are drawn one after another. For more rows, drawing them together is faster."""

CHECK_INTERVAL = 4096
"""One of so many draws is compared with the general way."""


class SimpleRows:
    """Draws the simple rows of one vocabulary. Only one thread may use an object of this class."""

    def __init__(self, buffer: Floats) -> None:
        """`buffer`: (rows, vocabulary), space for the weights of a few rows."""
        self._buffer = buffer
        self._settings: RowSettings | None = None
        """The settings of the rows that were drawn together last."""
        self._is_off = False
        self._draw_count = 0

    def draw(self, logits: Floats, states: Sequence[SamplingState | None]) -> dict[int, int] | None:
        """Returns the token of each row that has a state, or None if the rows must be drawn in the general
        way. Does not change the states."""
        rows: list[int] = []
        for row, state in enumerate(states):
            if state is not None:
                if not state.is_simple or state.mask is not None:
                    return None
                rows.append(row)
        if self._is_off:
            return None
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            tokens = self._draw_rows(logits, states, rows)
        return None if tokens is None else dict(zip(rows, tokens, strict=True))

    def is_check_due(self) -> bool:
        """Counts a draw. Returns whether the caller should compare it with the general way."""
        self._draw_count += 1
        return self._draw_count % CHECK_INTERVAL == 0

    def turn_off(self, defect: str) -> None:
        """Leaves all further rows to the general way, and logs why."""
        self._is_off = True
        log.error("the fast ways to draw are off until the engine starts again: %s", defect)

    def _draw_rows(
        self, logits: Floats, states: Sequence[SamplingState | None], rows: list[int]
    ) -> list[int] | None:
        """Draws for these rows. All their states are simple."""
        if len(rows) > FEW_ROWS:
            filtered = [state for state in states if state is not None and state.has_filter]
            if not len(filtered) == len(rows) <= ROWS:
                return None
            if self._settings is None or self._settings.states != filtered:
                self._settings = RowSettings.from_states(filtered)
            block = logits if len(rows) == len(logits) else logits[rows]
            return draw_together(block, self._settings, self._buffer)
        tokens = []
        for row in rows:
            state, row_logits = states[row], logits[row]
            if state is None:
                continue
            if state.is_greedy:
                likeliest = int(row_logits.argmax())
                token = likeliest if isfinite(row_logits[likeliest]) else None
            elif state.has_filter:
                token = draw_filtered(row_logits, state, self._buffer[0])
            else:
                token = draw_unfiltered(row_logits, state, self._buffer[0])
            if token is None:
                return None
            tokens.append(token)
        return tokens


def draw_filtered(row: Floats, state: SamplingState, buffer: Floats) -> int | None:
    """Draws the token of one row with filters. Returns None if its largest logits do not decide the draw.
    `buffer`: space for one row."""
    width = len(row)
    columns = count_columns(width)
    length = min(TOP_COUNT, width)
    aligned_width = width // columns * columns
    # The maxima of the columns, as `find_column_maxima`. No logit below `bound` is among the largest ones.
    maxima = row[:aligned_width].reshape(-1, columns).max(axis=0)
    if aligned_width < width:
        rest = maxima[: width - aligned_width]
        np.maximum(rest, row[aligned_width:], out=rest)
    row_maximum = maxima.max()
    if not isfinite(row_maximum):
        return None
    bound = LOWEST
    if length <= columns:
        bound = max(np.partition(maxima, columns - length)[columns - length], LOWEST)
    if width < MANY:
        ids = (row >= bound).nonzero()[0]
    else:  # the ids in the few columns that reach the bound, and those after the last whole table row
        reaching = (maxima >= bound).nonzero()[0]
        candidates = row[:aligned_width].reshape(-1, columns).take(reaching, axis=1)
        table_rows, places = (candidates >= bound).nonzero()
        ids = table_rows * columns + reaching[places]
        if aligned_width < width:
            ids = np.concatenate((ids, (row[aligned_width:] >= bound).nonzero()[0] + aligned_width))
    if len(ids) > CROWDED_FACTOR * length:
        return None
    logits = row[ids]
    order = (-logits).argsort(kind="stable")[:length]
    distances = logits[order]
    distances -= row_maximum
    distances *= state.inverse_temperature
    weights: list[float] = np.exp(distances, out=distances).tolist()

    sampling = state.sampling
    min_p, top_k, top_p = sampling.min_p, sampling.top_k, sampling.top_p
    # Whether min-p and top-k keep no token outside the largest ones.
    is_bounded = len(weights) < length or length == width or top_k > 0 or weights[-1] < min_p
    if top_k:
        del weights[top_k:]
    kept = [weight if weight >= min_p else 0.0 for weight in weights] if min_p else weights
    sums = list(accumulate(kept))
    if top_p < 1:
        mass = sums[-1] if is_bounded else compute_column_masses(row, row_maximum, state, buffer)[-1]
        needed = top_p * mass
        if not is_bounded and (min_p or sums[-1] < needed):
            return None
        likeliest = kept[0]
        kept = [
            kept_weight if total - weight < needed else 0.0
            for total, weight, kept_weight in zip(sums, weights, kept, strict=True)
        ]
        kept[0] = likeliest
        sums = list(accumulate(kept))
    elif not is_bounded:
        return None
    target = min(draw_one_uniform(state.key, state.position) * sums[-1], nextafter(sums[-1], 0.0))
    return int(ids[order[bisect_right(sums, target)]])


def draw_unfiltered(row: Floats, state: SamplingState, buffer: Floats) -> int | None:
    """Draws the token of one row without filters, as `sampler.draw_by_columns`. Returns None for logits that
    are not numbers. `buffer`: space for one row."""
    row_maximum = row.max()
    if not isfinite(row_maximum):
        return None
    sums = compute_column_masses(row, row_maximum, state, buffer)
    total = float(sums[-1])
    target = min(draw_one_uniform(state.key, state.position) * total, nextafter(total, 0.0))
    column = int(sums.searchsorted(target, side="right"))
    columns = len(sums)
    column_sums = list(accumulate(buffer[column::columns].tolist()))
    remaining = target - (float(sums[column - 1]) if column else 0.0)
    remaining = min(remaining, nextafter(column_sums[-1], 0.0))
    return column + columns * bisect_right(column_sums, remaining)


def compute_column_masses(
    row: Floats, row_maximum: np.float32, state: SamplingState, buffer: Floats
) -> Doubles:
    """Returns the running sums of the columns' weights. Leaves the weights in `buffer`."""
    weights = np.subtract(row, row_maximum, out=buffer)
    weights *= state.inverse_temperature
    np.exp(weights, out=weights)
    masses: Doubles = sum_columns(weights[None])[0].cumsum(dtype=np.float64)
    return masses


class RowSettings(Struct):
    """The settings of rows that are drawn together, step after step."""

    states: list[SamplingState]
    keys: NDArray[np.uint64]
    inverse_temperatures: Floats
    """(rows, 1)"""
    min_p: Doubles
    """(rows, 1)"""
    top_k: NDArray[np.intp]
    """(rows, 1) the most kept tokens; TOP_COUNT without top-k."""
    top_p: Doubles
    """(rows, 1)"""
    has_top_k: Flags
    """(rows,)"""
    has_only_top_p: Flags
    """(rows,)"""

    @classmethod
    def from_states(cls, states: list[SamplingState]) -> "RowSettings":
        """Builds the arrays from the states of the rows."""
        samplings = [state.sampling for state in states]
        top_k = np.array([each.top_k for each in samplings], dtype=np.intp)
        top_p = np.array([each.top_p for each in samplings])
        min_p = np.array([each.min_p for each in samplings])
        return cls(
            states,
            np.array([state.key for state in states], dtype=np.uint64),
            np.array([state.inverse_temperature for state in states], dtype=np.float32)[:, None],
            min_p[:, None],
            np.where(top_k > 0, top_k, TOP_COUNT)[:, None],
            top_p[:, None],
            top_k > 0,
            (top_p < 1) & (min_p == 0) & (top_k == 0),
        )


def draw_together(logits: Floats, settings: RowSettings, buffer: Floats) -> list[int] | None:
    """Draws the tokens of several rows with filters. Returns None if the largest logits of a row do not
    decide its draw. `buffer`: space for a few rows."""
    block = LogitBlock.from_rows(logits)
    if not isfinite(block.row_maxima.sum(dtype=np.float64)):
        return None
    top = block.find_top(TOP_COUNT)
    distances = top.values - block.row_maxima[:, None]
    distances *= settings.inverse_temperatures
    weights = np.exp(distances).astype(np.float64)
    length = weights.shape[1]
    kept = np.arange(length) < np.minimum(settings.top_k, top.counts[:, None])
    kept &= weights >= settings.min_p
    kept_weights = weights * kept
    sums = kept_weights.cumsum(axis=1)
    masses = sums[:, -1].copy()
    if not settings.has_top_k.all():
        # Whether min-p and top-k keep no token outside the largest ones.
        is_bounded = settings.has_top_k | (top.counts < length) | (length == logits.shape[1])
        is_bounded |= weights[:, -1] < settings.min_p[:, 0]
        unbounded = (~is_bounded).nonzero()[0]
        for start in range(0, len(unbounded), len(buffer)):
            part = unbounded[start : start + len(buffer)]
            whole = np.subtract(logits[part], block.row_maxima[part, None], out=buffer[: len(part)])
            whole *= settings.inverse_temperatures[part]
            np.exp(whole, out=whole)
            masses[part] = sum_columns(whole).cumsum(axis=1, dtype=np.float64)[:, -1]
        reaches_top_p = settings.has_only_top_p & (sums[:, -1] >= settings.top_p[:, 0] * masses)
        if not (is_bounded | reaches_top_p).all():
            return None
    keeps = sums - weights < settings.top_p * masses[:, None]
    keeps |= settings.top_p >= 1
    keeps[:, 0] = True
    kept_weights *= keeps
    sums = kept_weights.cumsum(axis=1)
    totals = sums[:, -1]
    uniforms = draw_uniform(settings.keys, [state.position for state in settings.states])
    targets = np.minimum(uniforms * totals, np.nextafter(totals, 0.0))
    drawn: Rows = (sums <= targets[:, None]).sum(axis=1)
    tokens: list[int] = top.ids[np.arange(len(drawn)), drawn].tolist()
    return tokens
