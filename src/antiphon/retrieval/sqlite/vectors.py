"""The vectors of one table in memory, and the search for the nearest ones.

A small table has all vectors in single precision, and its search is exact (`ExactVectors`). A larger one has
one bit for each dimension, its sign (`CodedVectors`). The bits choose candidates. These are scored by their
vectors, which are in memory too, in half precision, or in the file, where the caller reads them.

One thread adds and removes at a time. Any number may search meanwhile: they see a state before or after.
Vectors are kept in half precision with length 1. Bytes of vectors are little-endian.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from antiphon.retrieval.halves import Floats, Halves, decode_halves, read_halves

Ids = npt.NDArray[np.int64]
Places = npt.NDArray[np.intp]

FEWEST_CANDIDATES = 2000
"""Candidates of a small table: of 41,620 real chunks these had 0.9995 of the ten nearest."""

CANDIDATE_SHARE = 40
"""One in so many chunks of a large table is a candidate."""

READ_SHARE = 5
"""One in so many candidates of a large table is read from the file: the best by the query's own numbers
against the candidates' signs. That tells them apart better than the signs of both."""

BLOCK = 65_536
"""Rows that are computed at a time, so that the intermediate values stay in the cache."""

HALF_BYTES = 2
SIGN = 0x8000
WORD_BITS = 64


@dataclass(frozen=True, slots=True)
class VectorRow:
    """One vector to add."""

    id: int
    document: int
    value: bytes
    """Half precision."""


@dataclass(frozen=True, slots=True)
class Nearest:
    """Chunks that a search by vectors found."""

    ids: Ids
    """The nearest first where there are similarities; otherwise candidates in no order."""
    similarities: Floats | None
    """None for candidates, which must be scored."""


class VectorRows(Protocol):
    """The vectors of one table."""

    keeps_halves: bool
    """Whether the vectors in half precision are kept beside codes."""

    @property
    def size(self) -> int:
        """Rows in use, removed ones included."""

    @property
    def bytes(self) -> int:
        """Memory of all arrays."""

    def add(self, rows: Sequence[VectorRow]) -> None:
        """Adds vectors."""

    def remove(self, ids: Sequence[int]) -> None:
        """Removes vectors; unknown ids change nothing."""

    def find(self, query: Floats, most: int, documents: Sequence[int]) -> Nearest:
        """Finds the nearest vectors in these documents; no documents means all. `query` has length 1."""


S = TypeVar("S", bound=np.generic)


@dataclass(frozen=True, slots=True)
class _RowState(Generic[S]):
    """The arrays at one moment. Rows after `size` may change; of earlier rows only `is_alive` does."""

    size: int
    ids: Ids
    documents: Ids
    is_alive: npt.NDArray[np.bool_]
    values: npt.NDArray[S]
    """One vector in each column for codes, in each row for exact values."""
    halves: Halves
    """One vector in each row, in half precision; without columns where they are not kept."""


class ExactVectors:
    """All vectors in single precision."""

    keeps_halves = False

    def __init__(self, dimensions: int) -> None:
        self._dimensions = dimensions
        self._state = _make_state(np.empty((0, dimensions), np.float32))

    @property
    def size(self) -> int:
        return self._state.size

    @property
    def bytes(self) -> int:
        return _count_bytes(self._state)

    def add(self, rows: Sequence[VectorRow]) -> None:
        halves = read_halves(b"".join(row.value for row in rows)).reshape(-1, self._dimensions)
        state = _grow(self._state, len(rows), axis=0)
        state.values[state.size : state.size + len(rows)] = decode_halves(halves)
        self._state = _append_ids(state, rows)

    def remove(self, ids: Sequence[int]) -> None:
        self._state = _drop_ids(self._state, ids, axis=0)

    def find(self, query: Floats, most: int, documents: Sequence[int]) -> Nearest:
        state = self._state
        places = _find_places(state, documents)
        if places is None:
            scores = state.values[: state.size] @ query
            scores[~state.is_alive[: state.size]] = -np.inf
            best = _choose_best(scores, min(most, int(state.is_alive[: state.size].sum())))
            return Nearest(state.ids[best], scores[best])
        scores = state.values[places] @ query
        best = _choose_best(scores, min(most, len(places)))
        return Nearest(state.ids[places[best]], scores[best])


class CodedVectors:
    """The signs of all vectors: one bit for each dimension, in words of 64. A word of all rows is contiguous,
    so a search reads one word of all rows after the other."""

    def __init__(self, dimensions: int, *, keeps_halves: bool) -> None:
        """`keeps_halves`: whether the vectors in half precision are kept too."""
        self._words = -(-dimensions // WORD_BITS)
        self._dimensions = dimensions
        self.keeps_halves = keeps_halves
        columns = dimensions if keeps_halves else 0
        self._state = _make_state(np.empty((self._words, 0), np.uint64), columns)

    @property
    def size(self) -> int:
        return self._state.size

    @property
    def bytes(self) -> int:
        return _count_bytes(self._state)

    def add(self, rows: Sequence[VectorRow]) -> None:
        halves = read_halves(b"".join(row.value for row in rows)).reshape(-1, self._dimensions)
        state = _grow(self._state, len(rows), axis=1)
        state.values[:, state.size : state.size + len(rows)] = self._encode(halves < SIGN).T
        if self.keeps_halves:
            state.halves[state.size : state.size + len(rows)] = halves
        self._state = _append_ids(state, rows)

    def remove(self, ids: Sequence[int]) -> None:
        self._state = _drop_ids(self._state, ids, axis=1)

    def find(self, query: Floats, most: int, documents: Sequence[int]) -> Nearest:
        state = self._state
        chosen = self._choose_candidates(state, query, most, documents)
        if not self.keeps_halves:
            return Nearest(state.ids[self._refine(state, chosen, query, most)], None)
        return _score_halves(state.ids[chosen], state.halves[chosen], query, most)

    def _choose_candidates(
        self, state: _RowState[np.uint64], query: Floats, most: int, documents: Sequence[int]
    ) -> Places:
        """Returns the places of the rows that are worth a score."""
        candidates = max(FEWEST_CANDIDATES, 2 * most, state.size // CANDIDATE_SHARE)
        places = _find_places(state, documents)
        if places is not None and len(places) <= candidates:
            return places
        distances = self._measure(state, self._encode(query[np.newaxis] >= 0)[0])
        distances[~state.is_alive[: state.size]] = self._dimensions + 1
        if places is None:
            return _choose_lowest(distances, candidates, self._dimensions)
        return places[_choose_lowest(distances[places], candidates, self._dimensions)]

    def _refine(self, state: _RowState[np.uint64], places: Places, query: Floats, most: int) -> Places:
        """Returns the candidates that are worth reading."""
        wanted = max(FEWEST_CANDIDATES, 2 * most, len(places) // READ_SHARE)
        if len(places) <= wanted:
            return places
        codes = np.ascontiguousarray(state.values[:, places].T).view(np.uint8)
        signs = np.unpackbits(codes, axis=1, count=self._dimensions)
        return places[_choose_best(signs.astype(np.float32) @ query, wanted)]

    def _encode(self, signs: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint64]:
        """Returns the words of each row. Missing dimensions are 0 in all rows, so they change no distance."""
        padded = np.zeros((len(signs), self._words * WORD_BITS), np.bool_)
        padded[:, : self._dimensions] = signs
        return np.packbits(padded, axis=1).view(np.uint64)

    def _measure(self, state: _RowState[np.uint64], code: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint16]:
        """Returns the number of different bits of each row."""
        distances = np.zeros(state.size, np.uint16)
        for start in range(0, state.size, BLOCK):
            block = distances[start : start + BLOCK]
            for word in range(self._words):
                row = state.values[word, start : min(start + BLOCK, state.size)]
                block += np.bitwise_count(row ^ code[word])
        return distances


def score_candidates(ids: Sequence[int], values: Iterable[bytes], query: Floats, most: int) -> Nearest:
    """Returns the nearest of some candidates by their vectors. `values`: in the order of `ids`."""
    halves = read_halves(b"".join(values)).reshape(-1, len(query))
    return _score_halves(np.asarray(ids, np.int64), halves, query, most)


def _score_halves(ids: Ids, halves: Halves, query: Floats, most: int) -> Nearest:
    scores = np.concatenate(
        [decode_halves(halves[start : start + BLOCK]) @ query for start in range(0, len(halves), BLOCK)]
        or [np.empty(0, np.float32)]
    )
    best = _choose_best(scores, min(most, len(scores)))
    return Nearest(ids[best], scores[best])


def _make_state(values: npt.NDArray[S], columns: int = 0) -> _RowState[S]:
    """Makes the state without rows. `columns`: of the vectors in half precision."""
    none = np.empty(0, np.int64)
    return _RowState(0, none, none, np.empty(0, np.bool_), values, np.empty((0, columns), np.uint16))


def _count_bytes(state: _RowState[S]) -> int:
    arrays = (state.ids, state.documents, state.is_alive, state.values, state.halves)
    return sum(array.nbytes for array in arrays)


def _grow(state: _RowState[S], more: int, axis: int) -> _RowState[S]:
    """Returns the state with room for more rows: the same arrays if they have it, or larger copies."""
    capacity = len(state.ids)
    if state.size + more <= capacity:
        return state
    wanted = max(state.size + more, capacity + capacity // 2)
    return _copy_state(state, np.arange(state.size), wanted, axis)


def _copy_state(state: _RowState[S], places: Places, capacity: int, axis: int) -> _RowState[S]:
    """Copies the rows at these places into new arrays of a capacity."""
    size = len(places)
    shape = list(state.values.shape)
    shape[axis] = capacity
    ids, documents = np.zeros(capacity, np.int64), np.zeros(capacity, np.int64)
    is_alive, values = np.zeros(capacity, np.bool_), np.zeros(shape, state.values.dtype)
    halves = np.zeros((capacity, state.halves.shape[1]), np.uint16)
    np.take(state.halves, places, axis=0, out=halves[:size])
    ids[:size], documents[:size] = state.ids[places], state.documents[places]
    is_alive[:size] = state.is_alive[places]
    target = values[:size] if axis == 0 else values[:, :size]
    np.take(state.values, places, axis=axis, out=target)
    return _RowState(size, ids, documents, is_alive, values, halves)


def _append_ids(state: _RowState[S], rows: Sequence[VectorRow]) -> _RowState[S]:
    """Returns the state with the rows whose values are already there."""
    size = state.size + len(rows)
    state.ids[state.size : size] = [row.id for row in rows]
    state.documents[state.size : size] = [row.document for row in rows]
    state.is_alive[state.size : size] = True
    return replace(state, size=size)


def _drop_ids(state: _RowState[S], ids: Sequence[int], axis: int) -> _RowState[S]:
    """Returns the state without these rows. Where a quarter of all is gone, the rest is copied."""
    state.is_alive[: state.size] &= ~np.isin(state.ids[: state.size], np.asarray(ids, np.int64))
    alive = np.flatnonzero(state.is_alive[: state.size])
    if len(alive) > state.size - state.size // 4:
        return state
    return _copy_state(state, alive, len(alive), axis)


def _find_places(state: _RowState[S], documents: Sequence[int]) -> Places | None:
    """Returns the places of the documents' rows; None where all documents are meant."""
    if not documents:
        return None
    wanted = np.isin(state.documents[: state.size], np.asarray(documents, np.int64))
    return np.flatnonzero(wanted & state.is_alive[: state.size])


def _choose_best(scores: Floats, most: int) -> Places:
    """Returns the places of the highest scores, the best first; among equals the first one."""
    if most < len(scores):
        chosen = np.sort(np.argpartition(-scores, most)[:most]) if most else np.empty(0, np.intp)
    else:
        chosen = np.arange(len(scores))
    return chosen[np.argsort(-scores[chosen], kind="stable")]


def _choose_lowest(distances: npt.NDArray[np.uint16], most: int, highest: int) -> Places:
    """Returns the places of the `most` lowest distances; among equals the first ones. Higher distances than
    `highest` are left out."""
    counts = np.bincount(distances, minlength=highest + 2)[: highest + 1].cumsum()
    bound = min(int(np.searchsorted(counts, most)), highest)
    lower = np.flatnonzero(distances < bound)
    return np.concatenate([lower, np.flatnonzero(distances == bound)[: most - len(lower)]])
