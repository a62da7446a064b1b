"""Draws the tokens of all rows of a step in one call.

Logit bias, penalties and masks come first, then temperature, then min-p, top-k, top-p and typical-p. Mirostat
replaces the four filters from min-p to typical-p. The sampler processes one block of rows at a time, so that
the block fits the cache. For most filters, the TOP_COUNT largest logits of a row are enough. No computation
combines two rows, so a row's token does not depend on the other rows.

For a large top-p, a large top-k or typical-p, the whole row is filtered. The weight of a token is exp((logit
- largest logit) / temperature), at most 1. A filter sets the excluded weights to 0, in place. Top-p and
typical-p keep the weights with the smallest integer keys, up to a sum. The boundary is found without sorting
more than SORTABLE keys. The filters sum the weights by the leading bits of the keys. Then they do so by the
next bits of the keys near the boundary, until few keys, or only equal keys, are left.
"""

from collections.abc import Iterator, Sequence
from math import log2
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from antiphon.domain.request import Sampling
from antiphon.domain.values import Struct
from antiphon.engines.defects import guard
from antiphon.engines.sampling.logits import (
    NO_NUMBER,
    Floats,
    Ids,
    LogitBlock,
    Pairs,
    Rows,
    TopLogits,
    compute_row_max_logprobs,
    count_chunk_rows,
    find_largest,
    list_likeliest,
    pick_logprobs,
    select_rows,
    sum_columns,
)
from antiphon.engines.sampling.sampling_state import (
    ESTIMATION_TOKENS,
    LONG_TOP_COUNT,
    TOP_COUNT,
    MirostatThreshold,
    SamplingState,
    draw_uniform,
)
from antiphon.engines.sampling.simple_rows import SimpleRows
from antiphon.errors import AntiphonError, EngineError, InvalidValue
from antiphon.telemetry.logs import describe_exception

SORTABLE = 512
"""The most keys that are sorted. For more keys, bins are faster."""

SHIFTS = (20, 10, 0)
"""The number of low bits of a key that each pass ignores. A key has 31 bits."""

BINCOUNT_CHUNK = 1 << 14
"""The most keys that are counted at once. Counting copies the keys, and the copies should fit the cache."""

MAX_SURPRISE = np.float32(1e30)
"""Replaces an infinite surprise, so that its product with a weight of 0 is 0."""

MIN_MASS = float(np.finfo(np.float64).tiny)
"""A number below any weight above 0. It replaces a mass of 0, which a top-p of 0 gives, so that one token is
kept."""

Doubles = NDArray[np.float64]
Keys = NDArray[np.int32]

SHARED_ALTERNATIVES = 64
"""Rows with up to this many alternatives share one search. A row with more alternatives has its own
search."""

NO_TOKEN = (
    "no token is left that may be drawn: "
    "the constraint, allowed_token_ids, bad_words and min_tokens exclude each other; leave one of them out"
)

NO_FILTERS = Sampling()

Flags = NDArray[np.bool_]


def apply_filters(sampling: Sampling, weights: Floats) -> None:
    """Applies min-p, top-k, top-p and typical-p in this order. Excluded weights become 0; at least one stays.

    `weights`: one row, the largest is 1.
    """
    if sampling.min_p > 0:
        weights *= weights >= np.float32(sampling.min_p)
    if 0 < sampling.top_k < len(weights):
        keep_only(weights, find_largest(weights, sampling.top_k))
    if sampling.top_p < 1:
        largest_first = 0x7FFFFFFF - weights.view(np.int32)
        keep_smallest(largest_first, weights, sampling.top_p * sum_weights(weights))
    if sampling.typical_p < 1:
        most_typical_first = compute_atypicality(weights).view(np.int32)
        keep_smallest(most_typical_first, weights, sampling.typical_p * sum_weights(weights))


def sum_weights(weights: Floats) -> float:
    """Returns the sum of a row, by pairwise summation."""
    return float(weights.sum())


def keep_only(weights: Floats, indices: Ids) -> None:
    """Sets all weights to 0, except at `indices`."""
    kept_weights = weights[indices]
    weights.fill(0.0)
    weights[indices] = kept_weights


def compute_atypicality(weights: Floats) -> Floats:
    """Returns the distance of each token's surprise from the expected surprise, in nats (Meister and others,
    2022)."""
    with np.errstate(divide="ignore"):
        distances = np.log(weights)
    np.maximum(distances, -MAX_SURPRISE, out=distances)
    distances -= (weights * distances).sum() / weights.sum()
    return np.abs(distances, out=distances)


def keep_smallest(keys: Keys, weights: Floats, mass: float) -> None:
    """Keeps the weights with the smallest keys: as few as possible, but at least one, so that they sum to
    `mass`. Sets all other weights to 0. Of equal keys, those with the lowest indices are kept.

    `keys`: not negative.
    """
    sums = sum_by_bin(keys, weights).cumsum()
    boundary_bin = find_first_reaching(sums, mass)
    indices = np.flatnonzero(keys >> SHIFTS[0] == boundary_bin)
    remaining_mass = mass - float(sums[boundary_bin - 1]) if boundary_bin else mass
    indices = indices[find_smallest(keys[indices], weights[indices], remaining_mass)]
    kept_weights = weights[indices]
    weights *= keys < boundary_bin << SHIFTS[0]
    weights[indices] = kept_weights


def sum_by_bin(keys: Keys, weights: Floats) -> Doubles:
    """Returns the sum of the weights for each value of the keys' leading bits."""
    sums = np.zeros(1 << 31 - SHIFTS[0])
    for index in range(0, len(keys), BINCOUNT_CHUNK):
        bins = keys[index : index + BINCOUNT_CHUNK] >> SHIFTS[0]
        sums += np.bincount(bins, weights[index : index + BINCOUNT_CHUNK], minlength=len(sums))
    return sums


def find_typical(weights: Doubles, mass: float) -> Ids:
    """Returns the indices of the most typical tokens: as few as possible so that their weights sum to the
    fraction `mass` of the total. A token is typical if its surprise is near the expected surprise."""
    total_mass = float(weights.sum())
    probabilities = weights / total_mass
    with np.errstate(divide="ignore"):
        surprise = -np.log(probabilities)
    expected = float((probabilities * np.where(probabilities > 0, surprise, 0.0)).sum())
    atypicality = np.abs(surprise - expected).astype(np.float32)  # infinite where the weight is 0
    return find_smallest(atypicality.view(np.int32), weights, mass * total_mass)


def find_smallest(keys: Keys, weights: Floats | Doubles, mass: float) -> Ids:
    """Returns the indices of the smallest keys: as few as possible, but at least one, so that their weights
    sum to `mass`. Of equal keys, those with the lowest indices are taken.

    `keys`: not negative.
    """
    indices = np.arange(len(keys))
    included: list[Ids] = []
    for shift in SHIFTS:
        if len(indices) <= SORTABLE:
            break
        bins = keys[indices] >> shift
        bins -= bins.min()
        sums = np.bincount(bins, weights[indices]).cumsum()
        boundary_bin = find_first_reaching(sums, mass)
        included.append(indices[bins < boundary_bin])
        mass -= float(sums[boundary_bin - 1]) if boundary_bin else 0.0
        indices = indices[bins == boundary_bin]
    # The remaining keys are few, or all equal.
    if len(indices) <= SORTABLE:
        indices = indices[keys[indices].argsort(kind="stable")]
    sums = weights[indices].astype(np.float64).cumsum()
    return np.concatenate((*included, indices[: int(sums.searchsorted(mass)) + 1]))


def find_first_reaching(sums: Doubles, mass: float) -> int:
    """Returns the index of the first positive running sum that reaches `mass`. If none reaches it, returns
    the index of the first sum that equals the total."""
    return int(sums.searchsorted(min(max(mass, MIN_MASS), float(sums[-1]))))


class SampledToken(NamedTuple):
    """A token and its log-probabilities. It is a tuple because tuples are created fastest."""

    token: int
    logprob: float | None = None
    alternatives: tuple[tuple[int, float], ...] = ()
    """(id, log-probability) of the likeliest tokens, the best first."""


class DrawnToken(NamedTuple):
    """The token of a row, before the row's state is updated."""

    sampled: SampledToken
    surprise: float | None
    """In bits, if Mirostat is on."""


RowResult = DrawnToken | AntiphonError | None
"""A row's token, or the error that ends its sequence; None if the row needs no token."""


class FilterSettings(Struct):
    """The filter settings of several rows, as arrays with one number for each row."""

    states: list[SamplingState]
    uniforms: Doubles
    """Random numbers in [0, 1): positions in the cumulative distribution."""
    inverse_temperatures: Floats
    """1 / temperature."""
    min_p: Doubles
    top_k: NDArray[np.intp]
    top_p: Doubles

    @classmethod
    def from_states(cls, states: list[SamplingState]) -> "FilterSettings":
        """Builds the arrays from the states of the rows. A row with Mirostat uses no other filter."""
        uniforms = draw_uniform([state.key for state in states], [state.position for state in states])
        filters = [NO_FILTERS if state.mirostat is not None else state.sampling for state in states]
        return cls(
            states,
            uniforms,
            np.array([state.inverse_temperature for state in states], dtype=np.float32),
            np.array([each.min_p for each in filters]),
            np.array([each.top_k for each in filters], dtype=np.intp),
            np.array([each.top_p for each in filters]),
        )


class Sampler:
    """Draws tokens of one vocabulary. Only one thread may use a sampler."""

    def __init__(self, vocabulary: int) -> None:
        self._block_rows = count_chunk_rows(vocabulary)
        self._changed_logits = np.empty((self._block_rows, vocabulary), dtype=np.float32)
        self._weights = np.empty((self._block_rows, vocabulary), dtype=np.float32)
        self._simple_rows = SimpleRows(self._weights)

    def draw(
        self, logits: Floats, states: Sequence[SamplingState | None]
    ) -> list[SampledToken | AntiphonError | None]:
        """Draws the token of each row, and adds the token to the row's state. Returns the token of each row,
        or the error that ends the row's sequence.

        `logits`: (rows, vocabulary), the model's own, only read. `states`: None for a row that needs no
        token. Raises nothing. A defect in one row becomes an InternalError for this row; the other rows keep
        their tokens.
        """
        try:
            tokens = self._simple_rows.draw(logits, states)
        except Exception as defect:  # noqa: BLE001 - a defect of this code: the general way shows in which row
            self._simple_rows.turn_off(describe_exception(defect))
            tokens = None
        if tokens is None or self._simple_rows.is_check_due():
            results = self.draw_without_accepting(logits, states)
            drawn = {
                row: each.sampled.token for row, each in enumerate(results) if isinstance(each, DrawnToken)
            }
            if tokens is not None and tokens != drawn:
                self._simple_rows.turn_off("they gave other tokens than the general way")
            return [accept_result(state, result) for state, result in zip(states, results, strict=True)]
        for state in states:
            if state is not None:
                state.position += 1  # nothing else of a simple state changes with a token
        return [None if state is None else SampledToken(tokens[row]) for row, state in enumerate(states)]

    def draw_without_accepting(
        self, logits: Floats, states: Sequence[SamplingState | None]
    ) -> list[RowResult]:
        """Computes the results of `draw` without changing the states. So the caller can discard a token, and
        draw the same token again."""
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            try:
                return self._draw_all(logits, states)
            except Exception:  # noqa: BLE001 - a defect of this code: drawing row by row shows in which row
                return [
                    unwrap_single(guard(self._draw_all, logits[row : row + 1], [state]))
                    for row, state in enumerate(states)
                ]

    def _draw_all(self, logits: Floats, states: Sequence[SamplingState | None]) -> list[RowResult]:
        """Computes the results of all rows. Does not change the states."""
        if all(state is None or state.needs_only_argmax for state in states):
            return _choose_likeliest(logits, states)
        results: list[RowResult] = []
        for index in range(0, len(states), self._block_rows):
            results += self._draw_block(
                logits[index : index + self._block_rows], states[index : index + self._block_rows]
            )
        return results

    def _draw_block(self, logits: Floats, states: Sequence[SamplingState | None]) -> list[RowResult]:
        """Draws the tokens of one block. A row with NaN or without a possible token gets an error."""
        raw = LogitBlock.from_rows(logits)
        is_finite = np.isfinite(raw.row_maxima)
        drawing = {row: state for row, state in enumerate(states) if state is not None and is_finite[row]}
        reporting = {row: state for row, state in drawing.items() if state.logprobs is not None}
        changing = {row: state for row, state in drawing.items() if state.changes_logits}
        logprobs = self._compute_logprobs(raw, reporting)
        tokens = self._draw_tokens(self._change_logits(raw, changing), drawing)
        results: list[RowResult] = []
        for row, state in enumerate(states):
            if row not in tokens:
                error = InvalidValue(NO_TOKEN) if is_finite[row] else EngineError(NO_NUMBER)
                results.append(None if state is None else error)
                continue
            token, surprise = tokens[row]
            if row in logprobs:
                row_max_logprob, alternatives = logprobs[row]
                logprob = float(logits[row, token]) - float(raw.row_maxima[row]) + row_max_logprob
                results.append(DrawnToken(SampledToken(token, logprob, alternatives), surprise))
            else:
                results.append(DrawnToken(SampledToken(token), surprise))
        return results

    def _compute_logprobs(
        self, raw: LogitBlock, states: dict[int, SamplingState]
    ) -> dict[int, tuple[float, Pairs]]:
        """Returns the log-probability of the likeliest token, and the alternatives to report, for each row of
        `states`."""
        if not states:
            return {}
        block = raw.select(np.array([*states], dtype=np.intp))
        row_max_logprobs = compute_row_max_logprobs(block.rows, block.row_maxima, self._weights)
        alternatives = list_alternatives(block, row_max_logprobs, list(states.values()))
        return dict(zip(states, zip(row_max_logprobs.tolist(), alternatives, strict=True), strict=True))

    def _change_logits(self, raw: LogitBlock, states: dict[int, SamplingState]) -> LogitBlock:
        """Applies bias, penalties and masks to the rows of `states`. Returns a copy if there are such
        rows."""
        if not states:
            return raw
        rows = self._changed_logits[: len(raw.rows)]
        np.copyto(rows, raw.rows)
        for row, state in states.items():
            state.apply_to(rows[row])
        return LogitBlock.from_rows(rows)

    def _draw_tokens(
        self, block: LogitBlock, states: dict[int, SamplingState]
    ) -> dict[int, tuple[int, float | None]]:
        """Returns the token of each row that allows a token, with the token's surprise if Mirostat is on."""
        drawn: dict[int, tuple[int, float | None]] = {}
        groups: dict[int, list[int]] = {}
        for row, state in states.items():
            if block.row_maxima[row] == -np.inf:
                continue
            if state.is_greedy or state.is_forced:
                drawn[row] = int(block.rows[row].argmax()), None
            else:
                groups.setdefault(choose_top_count(state), []).append(row)
        for count, rows in groups.items():
            settings = FilterSettings.from_states([states[row] for row in rows])
            group = _FilterGroup(block.select(np.array(rows, dtype=np.intp)), settings, self._weights)
            tokens = group.draw_from_top(count) if count else group.draw_unfiltered()
            drawn.update(zip(rows, tokens, strict=True))
        return drawn


def list_alternatives(
    block: LogitBlock, row_max_logprobs: Doubles, states: Sequence[SamplingState]
) -> Iterator[Pairs]:
    """Yields the alternatives to report for each row. `row_max_logprobs`: the log-probability of each row's
    likeliest token."""
    counts = [0 if state.listed_tokens else state.logprobs or 0 for state in states]
    width = max((count for count in counts if count <= SHARED_ALTERNATIVES), default=0)
    lists = list_likeliest(block, row_max_logprobs, width) if width else None
    for row, (state, count) in enumerate(zip(states, counts, strict=True)):
        if state.listed_tokens:
            yield pick_logprobs(block, row_max_logprobs, row, state.listed_tokens)
        elif count > SHARED_ALTERNATIVES:
            only_row = np.array([row], dtype=np.intp)
            yield list_likeliest(block.select(only_row), row_max_logprobs[only_row], count)[0]
        else:
            yield lists[row][:count] if lists is not None else ()


def choose_top_count(state: SamplingState) -> int:
    """Returns the number of a row's largest logits to examine; 0 if no filter applies."""
    sampling = state.sampling
    if state.mirostat is not None:
        return ESTIMATION_TOKENS if state.mirostat.version == 1 else TOP_COUNT
    filters = (sampling.min_p > 0, sampling.top_k, sampling.top_p < 1, sampling.typical_p < 1)
    if not any(filters):
        return 0
    return LONG_TOP_COUNT if TOP_COUNT < sampling.top_k <= LONG_TOP_COUNT else TOP_COUNT


class _FilterGroup:
    """Rows for which the same number of largest logits is examined.

    A row is decided if no filter keeps a token outside these largest logits. For other rows, the whole row is
    filtered. In a mask, each flag tells whether the filters keep one of the largest logits.
    """

    def __init__(self, block: LogitBlock, settings: FilterSettings, buffer: Floats) -> None:
        self._block = block
        self._settings = settings
        self._buffer = buffer

    def draw_unfiltered(self) -> list[tuple[int, float | None]]:
        """Draws for rows without filters."""
        weights, sums = self._compute_weights(np.arange(len(self._block.rows)))
        return [(token, None) for token in draw_by_columns(weights, sums, self._settings.uniforms).tolist()]

    def draw_from_top(self, count: int) -> list[tuple[int, float | None]]:
        """Draws for filtered rows. Returns tokens, with the surprise in bits if Mirostat is on."""
        top = self._block.find_top(count)
        distances = top.values - self._block.row_maxima[:, None]
        weights = np.exp(distances * self._settings.inverse_temperatures[:, None]).astype(np.float64)
        kept_mask, is_bounded = self._apply_bounds(top, weights)
        masses: Doubles = np.where(kept_mask, weights, 0.0).cumsum(axis=1)[:, -1]
        unbounded_rows = np.flatnonzero(~is_bounded)
        if len(unbounded_rows):
            whole_weights, sums = self._compute_weights(unbounded_rows)
            masses[unbounded_rows] = sums[:, -1]
        is_decided = self._apply_top_p(kept_mask, is_bounded, weights, masses)
        self._filter_row_by_row(kept_mask, is_decided, weights, masses)
        indices = find_drawn_index(np.where(kept_mask, weights, 0.0), self._settings.uniforms)
        rows = np.arange(len(indices))
        tokens, drawn = top.ids[rows, indices], weights[rows, indices]
        undecided = np.flatnonzero(~is_decided[unbounded_rows])
        if len(undecided):
            rows = unbounded_rows[undecided]
            undecided_weights = select_rows(whole_weights, undecided)
            tokens[rows], drawn[rows] = self._draw_from_whole_rows(rows, undecided_weights, masses[rows])
        draws = zip(self._settings.states, drawn.tolist(), masses.tolist(), strict=True)
        surprises = [None if state.mirostat is None else log2(mass / weight) for state, weight, mass in draws]
        return list(zip(tokens.tolist(), surprises, strict=True))

    def _apply_bounds(self, top: TopLogits, weights: Doubles) -> tuple[Flags, Flags]:
        """Applies min-p and top-k to the largest logits. Returns which of these logits are kept, and for
        which rows min-p and top-k keep no token outside them."""
        settings, length = self._settings, weights.shape[1]
        counts = np.where(settings.top_k > 0, np.minimum(settings.top_k, top.counts), top.counts)
        kept_mask = (np.arange(length) < counts[:, None]) & (weights >= settings.min_p[:, None])
        has_no_further_tokens = (top.counts < length) | (length == self._block.rows.shape[1])
        is_within_top_k = (settings.top_k > 0) & (settings.top_k <= length)
        return kept_mask, has_no_further_tokens | is_within_top_k | (weights[:, -1] < settings.min_p)

    def _apply_top_p(self, kept_mask: Flags, is_bounded: Flags, weights: Doubles, masses: Doubles) -> Flags:
        """Removes tokens beyond top-p from `kept_mask`. Returns which rows are decided. `is_bounded`: the
        rows for which min-p and top-k keep no token outside the largest logits."""
        settings = self._settings
        sums = np.where(kept_mask, weights, 0.0).cumsum(axis=1)
        needed = settings.top_p * masses
        has_top_p = settings.top_p < 1
        kept_mask &= (sums - weights < needed[:, None]) | ~has_top_p[:, None]
        kept_mask[:, 0] = True
        has_only_top_p = has_top_p & (settings.min_p == 0) & (settings.top_k == 0)
        is_decided: Flags = is_bounded | (has_only_top_p & (sums[:, -1] >= needed))
        return is_decided

    def _filter_row_by_row(
        self, kept_mask: Flags, is_decided: Flags, weights: Doubles, masses: Doubles
    ) -> None:
        """Applies typical-p and Mirostat. Updates `kept_mask` and `is_decided`."""
        for row, state in enumerate(self._settings.states):
            mirostat, typical_p = state.mirostat, state.sampling.typical_p
            if mirostat is not None:
                is_decided[row] |= self._apply_mirostat(
                    mirostat, kept_mask[row], weights[row], float(masses[row])
                )
            elif typical_p < 1 and is_decided[row]:
                candidates = np.flatnonzero(kept_mask[row])
                kept_mask[row] = False
                kept_mask[row, candidates[find_typical(weights[row, candidates], typical_p)]] = True

    def _apply_mirostat(
        self, mirostat: MirostatThreshold, kept_mask: Flags, weights: Doubles, mass: float
    ) -> bool:
        """Removes tokens beyond Mirostat's threshold from a row of `kept_mask`. Returns whether the row is
        decided."""
        if mirostat.version == 1:
            count = mirostat.count_kept(weights, self._block.rows.shape[1])
            kept_mask[count:] = False
            return count <= len(weights)
        min_weight = mirostat.find_min_weight(mass)
        kept_mask &= weights >= min_weight
        kept_mask[0] = True
        return bool(weights[-1] < min_weight)

    def _draw_from_whole_rows(self, rows: Rows, weights: Floats, masses: Doubles) -> tuple[Rows, Floats]:
        """Draws for rows that their largest logits do not decide. Returns the tokens and their weights.
        Filters `weights`, the whole rows, in place."""
        for row, row_weights, mass in zip(rows.tolist(), weights, masses.tolist(), strict=True):
            state = self._settings.states[row]
            if state.mirostat is None:
                apply_filters(state.sampling, row_weights)
            elif state.mirostat.version == 1:
                largest = find_largest(row_weights, min(ESTIMATION_TOKENS, len(row_weights)))
                descending = -np.sort(-row_weights[largest]).astype(np.float64)
                count = state.mirostat.count_kept(descending, len(row_weights))
                keep_only(row_weights, find_largest(row_weights, count))
            else:
                is_kept = row_weights >= state.mirostat.find_min_weight(mass)
                np.multiply(row_weights, is_kept, out=row_weights)
        sums = sum_columns(weights).cumsum(axis=1, dtype=np.float64)
        tokens = draw_by_columns(weights, sums, self._settings.uniforms[rows])
        return tokens, weights[np.arange(len(rows)), tokens]

    def _compute_weights(self, indices: Rows) -> tuple[Floats, Doubles]:
        """Returns the weights of these rows, and the running sums of the rows' columns. The weight of the
        likeliest token is 1."""
        block = self._block.select(indices)
        weights = np.subtract(block.rows, block.row_maxima[:, None], out=self._buffer[: len(indices)])
        weights *= select_rows(self._settings.inverse_temperatures, indices)[:, None]
        np.exp(weights, out=weights)
        return weights, sum_columns(weights).cumsum(axis=1, dtype=np.float64)


def draw_by_columns(weights: Floats, sums: Doubles, fractions: Doubles) -> NDArray[np.intp]:
    """Returns the drawn id of each row: the first id, column by column, where the running sum of the weights
    exceeds a fraction of the total.

    `sums`: running sums of the columns. `fractions`: one for each row.
    """
    width, columns = weights.shape[1], sums.shape[1]
    targets = np.minimum(fractions * sums[:, -1], np.nextafter(sums[:, -1], 0.0))
    column = (sums <= targets[:, None]).sum(axis=1)
    ids = column[:, None] + np.arange(0, width, columns)
    rows = np.arange(len(weights))[:, None]
    column_weights = np.where(ids < width, weights[rows, np.minimum(ids, width - 1)], 0.0).astype(np.float64)
    sum_before = np.where(column > 0, sums[rows[:, 0], column - 1], 0.0)
    totals = column_weights.cumsum(axis=1)
    remaining = np.minimum(targets - sum_before, np.nextafter(totals[:, -1], 0.0))
    offsets = (totals <= remaining[:, None]).sum(axis=1)
    tokens: NDArray[np.intp] = ids[rows[:, 0], offsets]
    return tokens


def find_drawn_index(weights: Doubles, fractions: Doubles) -> NDArray[np.intp]:
    """Returns for each row the first index where the running sum exceeds a fraction of the total."""
    sums = weights.cumsum(axis=1)
    targets = np.minimum(fractions * sums[:, -1], np.nextafter(sums[:, -1], 0.0))
    indices: NDArray[np.intp] = (sums <= targets[:, None]).sum(axis=1)
    return indices


def _choose_likeliest(logits: Floats, states: Sequence[SamplingState | None]) -> list[RowResult]:
    """Returns the likeliest token of each row, for rows without filters, changes and log-probabilities."""
    tokens = logits.argmax(axis=1)
    finite = np.isfinite(logits[np.arange(len(tokens)), tokens]).tolist()
    results: list[RowResult] = []
    for state, token, is_finite in zip(states, tokens.tolist(), finite, strict=True):
        if state is None:
            results.append(None)
        else:
            results.append(DrawnToken(SampledToken(token), None) if is_finite else EngineError(NO_NUMBER))
    return results


def accept_result(state: SamplingState | None, result: RowResult) -> SampledToken | AntiphonError | None:
    """Adds the token of a row to the row's state. Returns the token, or the error of the row."""
    if not isinstance(result, DrawnToken):
        return result
    if state is None:
        return None
    error = guard(state.accept, result.sampled.token, result.surprise)
    return result.sampled if error is None else error


def unwrap_single(results: list[RowResult] | AntiphonError) -> RowResult:
    """Returns the result of the only row."""
    return results if isinstance(results, AntiphonError) else results[0]
