"""Finds the largest logits of rows without sorting the rows, and computes log-probabilities.

A row has one logit for each id of the vocabulary. It is treated as a table with a fixed number of columns.
The column of an id is the id modulo the number of columns. One pass finds the maxima of all columns. The k-th
largest of these maxima is a bound: the k largest logits reach the bound, and few other logits do.
Log-probabilities describe the model's own distribution, before masks, bias, penalties and temperature.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from antiphon.domain.values import Struct
from antiphon.errors import EngineError

Floats = NDArray[np.float32]
Ids = NDArray[np.intp]
Rows = NDArray[np.intp]

COLUMNS, MANY_COLUMNS = 256, 1024
MANY = 1 << 14
"""The smallest vocabulary whose rows have MANY_COLUMNS."""

CROWDED_FACTOR = 8
"""If the number of logits that reach the bound is more than this factor times the requested count, the row is
partitioned instead."""

LOWEST = np.finfo(np.float32).min

ID_BITS, ORDER_BITS = 22, 32
ROWS = 1 << 8
"""The most rows of a block. Row, id and logit are packed into one sortable integer."""

CHUNK = 1 << 17
"""The most logits that are processed at once, so that they stay in the processor's cache."""

NO_NUMBER = "the model's output is not a number; its weights or the KV cache are damaged"

Pairs = tuple[tuple[int, float], ...]
"""Token ids with their log-probabilities."""


def count_columns(vocabulary: int) -> int:
    """Returns the number of columns of a row. In a vocabulary with fewer ids, each id has its own column."""
    return min(vocabulary, MANY_COLUMNS if vocabulary >= MANY else COLUMNS)


def find_column_maxima(rows: Floats) -> Floats:
    """Returns the maximum of each column of each row."""
    count, width = rows.shape
    columns = count_columns(width)
    aligned_width = width // columns * columns
    maxima: Floats = rows[:, :aligned_width].reshape(count, -1, columns).max(axis=1)
    if aligned_width < width:
        np.maximum(
            maxima[:, : width - aligned_width],
            rows[:, aligned_width:],
            out=maxima[:, : width - aligned_width],
        )
    return maxima


def sum_columns(rows: Floats) -> Floats:
    """Returns the sum of each column of each row."""
    count, width = rows.shape
    columns = count_columns(width)
    aligned_width = width // columns * columns
    sums: Floats = rows[:, :aligned_width].reshape(count, -1, columns).sum(axis=1)
    if aligned_width < width:
        sums[:, : width - aligned_width] += rows[:, aligned_width:]
    return sums


class TopLogits(Struct):
    """The largest logits of each row, in descending order. Of equal logits, the lower id comes first."""

    ids: Ids
    """(rows, count)"""
    values: Floats
    """(rows, count); -infinity for missing logits."""
    counts: NDArray[np.intp]
    """(rows,) the number of finite logits among these in each row."""


class LogitBlock(Struct):
    """Rows of logits with the maxima of their columns."""

    rows: Floats
    column_maxima: Floats
    row_maxima: Floats
    """(rows,) the largest logit of each row; NaN if the row contains NaN."""

    @classmethod
    def from_rows(cls, rows: Floats) -> "LogitBlock":
        """Makes a block. `rows`: at most ROWS."""
        column_maxima = find_column_maxima(rows)
        return cls(rows, column_maxima, column_maxima.max(axis=1))

    def select(self, indices: Rows) -> "LogitBlock":
        """Returns a block of these rows. `indices`: ascending. Copies nothing if all rows are selected."""
        if len(indices) == len(self.rows):
            return self
        return LogitBlock(
            select_rows(self.rows, indices),
            select_rows(self.column_maxima, indices),
            select_rows(self.row_maxima, indices),
        )

    def find_top(self, count: int) -> TopLogits:
        """Returns the `count` largest finite logits of each row."""
        height, width = self.rows.shape
        count = min(count, width)
        indices = self._find_candidates(count)
        row, ids = np.divmod(indices, width)
        counts = np.bincount(row, minlength=height)
        if len(indices) == 0:
            empty = np.full((height, count), -np.inf, dtype=np.float32)
            return TopLogits(np.zeros((height, count), dtype=np.intp), empty, counts)
        keys = row << (ID_BITS + ORDER_BITS) | make_sort_keys(self.rows.take(indices)) << ID_BITS | ids
        keys.sort()
        ranks = np.arange(count)
        starts = counts.cumsum() - counts
        ids = keys.take(starts[:, None] + ranks, mode="clip") & ((1 << ID_BITS) - 1)
        values = self.rows.take(ids + np.arange(0, height * width, width)[:, None])
        if counts.min() < count:
            values[ranks >= counts[:, None]] = -np.inf
        return TopLogits(ids, values, np.minimum(counts, count))

    def _find_candidates(self, count: int) -> Ids:
        """Returns the flat indices of all logits that can be among the `count` largest finite logits of their
        rows."""
        height, columns = self.column_maxima.shape
        bounds = np.full(height, LOWEST)
        if count <= columns:
            partitioned = np.partition(self.column_maxima, columns - count, axis=1)
            bounds = partitioned[:, columns - count].clip(min=LOWEST)
        reaches_bound = self.rows >= bounds[:, None]
        indices = np.flatnonzero(reaches_bound)
        if len(indices) <= CROWDED_FACTOR * count * height:
            return indices
        crowded = np.flatnonzero(np.count_nonzero(reaches_bound, axis=1) > CROWDED_FACTOR * count)
        for row in crowded:
            reaches_bound[row] = False
            reaches_bound[row, find_largest(self.rows[row], count)] = True
        return np.flatnonzero(reaches_bound) if len(crowded) else indices


def select_rows(array: Floats, indices: Rows) -> Floats:
    """Returns these rows of an array. `indices`: ascending. Copies nothing if all rows are selected."""
    return array if len(indices) == len(array) else array[indices]


def make_sort_keys(values: Floats) -> NDArray[np.int64]:
    """Returns 32-bit integers that sort in the opposite order of the values."""
    bits = (values + np.float32(0.0)).view(np.int32)  # adding 0.0 turns -0.0 into 0.0
    rising = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return np.int64(0x7FFFFFFF) - rising


def find_largest(row: Floats, count: int) -> Ids:
    """Returns the indices of the `count` largest numbers, in ascending order of the indices. Of equal
    numbers, those with the lowest indices are taken."""
    threshold = np.partition(row, len(row) - count)[len(row) - count]
    above = np.flatnonzero(row > threshold)
    equal = np.flatnonzero(row == threshold)[: count - len(above)]
    return np.sort(np.concatenate((above, equal)))


def count_chunk_rows(vocabulary: int) -> int:
    """Returns the number of rows that are processed at once, so that they stay in the processor's cache."""
    return max(1, min(ROWS, CHUNK // vocabulary))


def compute_row_max_logprobs(rows: Floats, row_maxima: Floats, buffer: Floats) -> NDArray[np.float64]:
    """Returns the log-probability of each row's likeliest token, as (rows,). Overwrites the first rows of
    `buffer`."""
    shifted = np.subtract(rows, row_maxima[:, None], out=buffer[: len(rows)])
    sums = np.exp(shifted, out=shifted).sum(axis=1)
    logprobs: NDArray[np.float64] = -np.log(sums.astype(np.float64))
    return logprobs


def list_likeliest(block: LogitBlock, row_max_logprobs: NDArray[np.float64], count: int) -> list[Pairs]:
    """Returns the likeliest (id, log-probability) pairs of each row, the best first. `row_max_logprobs`: the
    log-probability of each row's likeliest token."""
    top = block.find_top(count)
    values = top.values - block.row_maxima[:, None].astype(np.float64) + row_max_logprobs[:, None]
    rows = zip(top.ids.tolist(), values.tolist(), top.counts.tolist(), strict=True)
    return [
        tuple(zip(ids[:finite_count], logprobs[:finite_count], strict=True))
        for ids, logprobs, finite_count in rows
    ]


def pick_logprobs(
    block: LogitBlock, row_max_logprobs: NDArray[np.float64], row: int, tokens: Sequence[int]
) -> Pairs:
    """Returns the log-probabilities of these tokens in a row. `row_max_logprobs`: as in `list_likeliest`."""
    values = block.rows[row, np.asarray(tokens, dtype=np.intp)].astype(np.float64)
    logprobs = values - float(block.row_maxima[row]) + float(row_max_logprobs[row])
    return tuple(zip(tokens, logprobs.tolist(), strict=True))


class EncodedScores(NamedTuple):
    """The scores of a prompt's tokens, row by row, as little-endian numbers."""

    logprobs: bytes
    """float32: the log-probability of the token that follows each row."""
    likeliest_ids: bytes
    """int32: the ids of the k likeliest tokens."""
    likeliest_logprobs: bytes
    """float32: the log-probabilities of the k likeliest tokens."""
    ranks: bytes
    """int32: the rank of the token that follows each row; the likeliest token has rank 1."""


def score_prompt(logits: Floats, tokens: Sequence[int] | NDArray[np.int32], k: int) -> EncodedScores:
    """Scores the tokens of a prompt. Raises EngineError if logits are NaN.

    `logits`: (rows, vocabulary), only read. `tokens`: the token that follows each row.
    """
    size = count_chunk_rows(logits.shape[1])
    buffer = np.empty((min(size, len(logits)), logits.shape[1]), dtype=np.float32)
    token_ids = np.asarray(tokens, dtype=np.intp)
    blocks = [
        _score_block(logits[index : index + size], token_ids[index : index + size], k, buffer)
        for index in range(0, len(logits), size)
    ]
    if not blocks:
        return EncodedScores(b"", b"", b"", b"")
    logprobs, ids, likeliest_logprobs, ranks = (
        np.concatenate(arrays) for arrays in zip(*blocks, strict=True)
    )
    return EncodedScores(
        logprobs.astype("<f4").tobytes(),
        ids.astype("<i4").tobytes(),
        likeliest_logprobs.astype("<f4").tobytes(),
        ranks.astype("<i4").tobytes(),
    )


def _score_block(
    rows: Floats, tokens: NDArray[np.intp], k: int, buffer: Floats
) -> tuple[NDArray[np.float64], NDArray[np.intp], NDArray[np.float64], NDArray[np.intp]]:
    """Scores one block of rows. Returns the fields of EncodedScores in their order. Raises EngineError if a
    logit is not a number."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        block = LogitBlock.from_rows(rows)
        if not np.isfinite(block.row_maxima).all():
            raise EngineError(NO_NUMBER)
        row_max_logprobs = compute_row_max_logprobs(rows, block.row_maxima, buffer)
        row_maxima = block.row_maxima.astype(np.float64)
        chosen = rows[np.arange(len(rows)), tokens]
        logprobs = chosen - row_maxima + row_max_logprobs
        ranks = 1 + np.count_nonzero(rows > chosen[:, None], axis=1)
        if k == 0:
            return logprobs, np.empty((len(rows), 0), dtype=np.intp), np.empty((len(rows), 0)), ranks
        top = block.find_top(k)
        for row in np.flatnonzero(top.counts < top.ids.shape[1]):
            fill_missing_ids(top, int(row), rows.shape[1])
        return logprobs, top.ids, top.values - row_maxima[:, None] + row_max_logprobs[:, None], ranks


def fill_missing_ids(top: TopLogits, row: int, vocabulary: int) -> None:
    """Fills the missing entries of a row that has fewer finite logits than requested, with ids of
    probability 0."""
    finite_count, width = int(top.counts[row]), top.ids.shape[1]
    filler_ids = np.setdiff1d(np.arange(min(vocabulary, 2 * width)), top.ids[row, :finite_count])
    top.ids[row, finite_count:] = filler_ids[: width - finite_count]
