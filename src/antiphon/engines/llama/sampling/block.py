"""Rows of numbers as wide as the vocabulary, and their largest, found without sorting a row.

A row is seen as a table of so many columns, id modulo columns. The columns' maxima cost one pass; the k-th
largest of them is a bound below which none of the k largest numbers lies, and hardly more than k numbers
reach it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ids = NDArray[np.intp]
Rows = NDArray[np.intp]

COLUMNS, MANY_COLUMNS = 256, 1024
MANY = 1 << 14
"""Vocabulary from which a row has MANY_COLUMNS."""

CROWD = 8
"""Times the wanted number that may reach the bound before ties are taken for what they are, and cut."""

LOWEST = np.finfo(np.float32).min

ID_BITS, ORDER_BITS = 22, 32
ROWS = 1 << 8
"""Rows of a block: with an id and a number they make one sortable integer."""


def columns(vocabulary: int) -> int:
    """Columns of a row; a row of fewer ids has one for each."""
    return min(vocabulary, MANY_COLUMNS if vocabulary >= MANY else COLUMNS)


def column_maxima(rows: Floats) -> Floats:
    """The maximum of each column of each row."""
    count, width = rows.shape
    across = columns(width)
    whole = width // across * across
    maxima: Floats = rows[:, :whole].reshape(count, -1, across).max(axis=1)
    if whole < width:
        np.maximum(maxima[:, : width - whole], rows[:, whole:], out=maxima[:, : width - whole])
    return maxima


def column_sums(rows: Floats) -> Floats:
    """The sum of each column of each row."""
    count, width = rows.shape
    across = columns(width)
    whole = width // across * across
    sums: Floats = rows[:, :whole].reshape(count, -1, across).sum(axis=1)
    if whole < width:
        sums[:, : width - whole] += rows[:, whole:]
    return sums


@dataclass(slots=True)
class Head:
    """The largest numbers of each row, in descending order, of equal ones the lower id first."""

    ids: Ids
    """(rows, count)"""
    values: Floats
    """(rows, count); -infinity where a row has no more numbers."""
    found: NDArray[np.intp]
    """(rows,) how many of them there are."""


@dataclass(slots=True)
class Block:
    """Rows with the maxima of their columns."""

    rows: Floats
    maxima: Floats
    tops: Floats
    """(rows,) the largest number of each; NaN where a row holds one."""

    @classmethod
    def of(cls, rows: Floats) -> "Block":
        """At most ROWS of them."""
        maxima = column_maxima(rows)
        return cls(rows, maxima, maxima.max(axis=1))

    def part(self, picked: Rows) -> "Block":
        """These rows, in ascending order; nothing is copied when they are all."""
        if len(picked) == len(self.rows):
            return self
        return Block(part(self.rows, picked), part(self.maxima, picked), part(self.tops, picked))

    def head(self, count: int) -> Head:
        """The `count` largest finite numbers of each row."""
        height, width = self.rows.shape
        count = min(count, width)
        places = self._candidates(count)
        row, ids = np.divmod(places, width)
        found = np.bincount(row, minlength=height)
        if len(places) == 0:
            empty = np.full((height, count), -np.inf, dtype=np.float32)
            return Head(np.zeros((height, count), dtype=np.intp), empty, found)
        keys = row << (ID_BITS + ORDER_BITS) | descending(self.rows.take(places)) << ID_BITS | ids
        keys.sort()
        spots = np.arange(count)
        starts = found.cumsum() - found
        ids = keys.take(starts[:, None] + spots, mode="clip") & ((1 << ID_BITS) - 1)
        values = self.rows.take(ids + np.arange(0, height * width, width)[:, None])
        if found.min() < count:
            values[spots >= found[:, None]] = -np.inf
        return Head(ids, values, np.minimum(found, count))

    def _candidates(self, count: int) -> Ids:
        """Flat places of all numbers that may be among the `count` largest finite ones of their rows."""
        height, across = self.maxima.shape
        bounds = np.full(height, LOWEST)
        if count <= across:
            bounds = np.partition(self.maxima, across - count, axis=1)[:, across - count].clip(min=LOWEST)
        reaching = self.rows >= bounds[:, None]
        places = np.flatnonzero(reaching)
        if len(places) <= CROWD * count * height:
            return places
        crowded = np.flatnonzero(np.count_nonzero(reaching, axis=1) > CROWD * count)
        for row in crowded:
            reaching[row] = False
            reaching[row, largest(self.rows[row], count)] = True
        return np.flatnonzero(reaching) if len(crowded) else places


def part(numbers: Floats, picked: Rows) -> Floats:
    """These rows' numbers, in ascending order; not copied when they are all."""
    return numbers if len(picked) == len(numbers) else numbers[picked]


def descending(values: Floats) -> NDArray[np.int64]:
    """Integers of 32 bits that are the smaller the larger a number is."""
    bits = (values + np.float32(0.0)).view(np.int32)  # adding makes one zero of the two
    rising = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return np.int64(0x7FFFFFFF) - rising


def largest(row: Floats, count: int) -> Ids:
    """Places of the `count` largest, ascending; of equal ones the first."""
    threshold = np.partition(row, len(row) - count)[len(row) - count]
    above = np.flatnonzero(row > threshold)
    equal = np.flatnonzero(row == threshold)[: count - len(above)]
    return np.sort(np.concatenate((above, equal)))
