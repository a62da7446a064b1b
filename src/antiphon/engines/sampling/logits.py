"""Rows of logits as wide as the vocabulary: their largest numbers, found without sorting, and
log-probabilities.

A row is treated as a table whose number of columns is fixed; the column of an id is the id modulo that
number. Finding the maxima of the columns takes one pass. The k-th largest of these maxima is a bound: each of
the k largest numbers reaches it, and few other numbers reach it. Log-probabilities are those of the model's
own distribution, before masks, bias, penalties and temperature.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from antiphon.errors import EngineError

Floats = NDArray[np.float32]
Ids = NDArray[np.intp]
Rows = NDArray[np.intp]

COLUMNS, MANY_COLUMNS = 256, 1024
MANY = 1 << 14
"""The smallest vocabulary whose rows have MANY_COLUMNS."""

CROWDED_FACTOR = 8
"""If more numbers than this many times the requested count reach the bound, they are treated as equal, and
only some are kept."""

LOWEST = np.finfo(np.float32).min

ID_BITS, ORDER_BITS = 22, 32
ROWS = 1 << 8
"""The most rows of a block: row, id and number together make one sortable integer."""


def count_columns(vocabulary: int) -> int:
    """The number of columns of a row. If a row has fewer ids, each id has its own column."""
    return min(vocabulary, MANY_COLUMNS if vocabulary >= MANY else COLUMNS)


def find_column_maxima(rows: Floats) -> Floats:
    """The maximum of each column of each row."""
    count, width = rows.shape
    across = count_columns(width)
    aligned_width = width // across * across
    maxima: Floats = rows[:, :aligned_width].reshape(count, -1, across).max(axis=1)
    if aligned_width < width:
        np.maximum(
            maxima[:, : width - aligned_width],
            rows[:, aligned_width:],
            out=maxima[:, : width - aligned_width],
        )
    return maxima


def sum_columns(rows: Floats) -> Floats:
    """The sum of each column of each row."""
    count, width = rows.shape
    across = count_columns(width)
    aligned_width = width // across * across
    sums: Floats = rows[:, :aligned_width].reshape(count, -1, across).sum(axis=1)
    if aligned_width < width:
        sums[:, : width - aligned_width] += rows[:, aligned_width:]
    return sums


@dataclass(slots=True)
class TopLogits:
    """The largest numbers of each row, in descending order. Among equal numbers, the lower id comes first."""

    ids: Ids
    """(rows, count)"""
    values: Floats
    """(rows, count); -infinity for missing numbers."""
    found: NDArray[np.intp]
    """(rows,) the count of numbers found in each row."""


@dataclass(slots=True)
class LogitBlock:
    """Rows of logits with the maxima of their columns."""

    rows: Floats
    maxima: Floats
    tops: Floats
    """(rows,) the largest number of each row; NaN if the row contains NaN."""

    @classmethod
    def from_rows(cls, rows: Floats) -> "LogitBlock":
        """Makes a block of at most ROWS rows."""
        maxima = find_column_maxima(rows)
        return cls(rows, maxima, maxima.max(axis=1))

    def select(self, picked: Rows) -> "LogitBlock":
        """Selects these rows, in ascending order. Copies nothing if all rows are selected."""
        if len(picked) == len(self.rows):
            return self
        return LogitBlock(
            select_rows(self.rows, picked), select_rows(self.maxima, picked), select_rows(self.tops, picked)
        )

    def find_top(self, count: int) -> TopLogits:
        """The `count` largest finite numbers of each row."""
        height, width = self.rows.shape
        count = min(count, width)
        places = self._candidates(count)
        row, ids = np.divmod(places, width)
        counts = np.bincount(row, minlength=height)
        if len(places) == 0:
            empty = np.full((height, count), -np.inf, dtype=np.float32)
            return TopLogits(np.zeros((height, count), dtype=np.intp), empty, counts)
        keys = row << (ID_BITS + ORDER_BITS) | make_sort_keys(self.rows.take(places)) << ID_BITS | ids
        keys.sort()
        spots = np.arange(count)
        starts = counts.cumsum() - counts
        ids = keys.take(starts[:, None] + spots, mode="clip") & ((1 << ID_BITS) - 1)
        values = self.rows.take(ids + np.arange(0, height * width, width)[:, None])
        if counts.min() < count:
            values[spots >= counts[:, None]] = -np.inf
        return TopLogits(ids, values, np.minimum(counts, count))

    def _candidates(self, count: int) -> Ids:
        """Flat indices of all numbers that may be among the `count` largest finite ones of their rows."""
        height, across = self.maxima.shape
        bounds = np.full(height, LOWEST)
        if count <= across:
            bounds = np.partition(self.maxima, across - count, axis=1)[:, across - count].clip(min=LOWEST)
        reaching = self.rows >= bounds[:, None]
        places = np.flatnonzero(reaching)
        if len(places) <= CROWDED_FACTOR * count * height:
            return places
        crowded = np.flatnonzero(np.count_nonzero(reaching, axis=1) > CROWDED_FACTOR * count)
        for row in crowded:
            reaching[row] = False
            reaching[row, find_largest(self.rows[row], count)] = True
        return np.flatnonzero(reaching) if len(crowded) else places


def select_rows(numbers: Floats, picked: Rows) -> Floats:
    """The numbers of these rows, in ascending order of the rows. Copies nothing if all rows are selected."""
    return numbers if len(picked) == len(numbers) else numbers[picked]


def make_sort_keys(values: Floats) -> NDArray[np.int64]:
    """Makes 32-bit integers whose order is opposite to that of the numbers."""
    bits = (values + np.float32(0.0)).view(np.int32)  # adding 0.0 turns -0.0 into 0.0
    rising = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return np.int64(0x7FFFFFFF) - rising


def find_largest(row: Floats, count: int) -> Ids:
    """Indices of the `count` largest numbers, in ascending order of the indices. Among equal numbers, the
    first ones are taken."""
    threshold = np.partition(row, len(row) - count)[len(row) - count]
    above = np.flatnonzero(row > threshold)
    equal = np.flatnonzero(row == threshold)[: count - len(above)]
    return np.sort(np.concatenate((above, equal)))


CHUNK = 1 << 17
"""The most numbers that are processed at once, so that they stay in the processor's cache."""

NO_NUMBER = "the model's output is not a number; its weights or the KV cache are damaged"


def count_chunk_rows(vocabulary: int) -> int:
    """The number of rows that are processed at once, so that they stay in the processor's cache."""
    return max(1, min(ROWS, CHUNK // vocabulary))


def compute_top_logprobs(rows: Floats, tops: Floats, buffer: Floats) -> NDArray[np.float64]:
    """Returns the log-probability of each row's likeliest token, as (rows,). It uses as many rows of `buffer`
    for its computation and overwrites them."""
    shifted = np.subtract(rows, tops[:, None], out=buffer[: len(rows)])
    sums = np.exp(shifted, out=shifted).sum(axis=1)
    logprobs: NDArray[np.float64] = -np.log(sums.astype(np.float64))
    return logprobs


Pairs = tuple[tuple[int, float], ...]
"""Token ids with their log-probabilities."""


def list_likeliest(block: LogitBlock, best: NDArray[np.float64], count: int) -> list[Pairs]:
    """The likeliest (id, log-probability) pairs of each row, best first. `best` gives the log-probability of
    each row's likeliest token."""
    head = block.find_top(count)
    values = head.values - block.tops[:, None].astype(np.float64) + best[:, None]
    rows = zip(head.ids.tolist(), values.tolist(), head.found.tolist(), strict=True)
    return [tuple(zip(ids[:filled], logprobs[:filled], strict=True)) for ids, logprobs, filled in rows]


def pick_logprobs(block: LogitBlock, best: NDArray[np.float64], row: int, tokens: Sequence[int]) -> Pairs:
    """The log-probabilities of these tokens in a row."""
    values = block.rows[row, np.asarray(tokens, dtype=np.intp)].astype(np.float64)
    logprobs = values - float(block.tops[row]) + float(best[row])
    return tuple(zip(tokens, logprobs.tolist(), strict=True))


def score_prompt(
    logits: Floats, tokens: Sequence[int] | NDArray[np.int32], k: int
) -> tuple[bytes, bytes, bytes, bytes]:
    """Log-probabilities of the tokens that followed each row, those of the k likeliest, and the rank of each
    token: (float32, int32 ids, float32, int32), little-endian, row by row. Raises EngineError if logits are
    NaN.

    `logits`: (rows, vocabulary), only read.
    """
    size = count_chunk_rows(logits.shape[1])
    buffer = np.empty((min(size, len(logits)), logits.shape[1]), dtype=np.float32)
    token_ids = np.asarray(tokens, dtype=np.intp)
    parts = [
        _score(logits[at : at + size], token_ids[at : at + size], k, buffer)
        for at in range(0, len(logits), size)
    ]
    if not parts:
        return b"", b"", b"", b""
    joined = (np.concatenate(each) for each in zip(*parts, strict=True))
    logprobs, ids, values, ranks = (
        each.astype(kind).tobytes() for each, kind in zip(joined, ("<f4", "<i4", "<f4", "<i4"), strict=True)
    )
    return logprobs, ids, values, ranks


def _score(
    rows: Floats, tokens: NDArray[np.intp], k: int, buffer: Floats
) -> tuple[NDArray[np.float64], NDArray[np.intp], NDArray[np.float64], NDArray[np.intp]]:
    """Scores one block of rows. Returns the log-probabilities of the tokens, the ids and log-probabilities of
    the k likeliest tokens, and the ranks. Raises EngineError if a logit is not a number."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        block = LogitBlock.from_rows(rows)
        if not np.isfinite(block.tops).all():
            raise EngineError(NO_NUMBER)
        best, tops = compute_top_logprobs(rows, block.tops, buffer), block.tops.astype(np.float64)
        chosen = rows[np.arange(len(rows)), tokens]
        logprobs, ranks = chosen - tops + best, 1 + np.count_nonzero(rows > chosen[:, None], axis=1)
        if k == 0:
            return logprobs, np.empty((len(rows), 0), dtype=np.intp), np.empty((len(rows), 0)), ranks
        head = block.find_top(k)
        for row in np.flatnonzero(head.found < head.ids.shape[1]):
            fill_missing_ids(head, int(row), rows.shape[1])
        return logprobs, head.ids, head.values - tops[:, None] + best[:, None], ranks


def fill_missing_ids(head: TopLogits, row: int, vocabulary: int) -> None:
    """Fills the entries of a row for which no number was found with ids of zero probability."""
    filled, width = int(head.found[row]), head.ids.shape[1]
    others = np.setdiff1d(np.arange(min(vocabulary, 2 * width)), head.ids[row, :filled])
    head.ids[row, filled:] = others[: width - filled]
