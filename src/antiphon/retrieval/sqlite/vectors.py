"""The vectors of one table in memory, and the search for the nearest ones.

For a small table, all vectors are in single precision, and the search is exact (`ExactVectors`). For a larger
table, the memory has one bit for each dimension: the sign (`CodedVectors`). The signs choose candidates. The
candidates are scored by their vectors in half precision. These are in memory too, or the caller reads them
from the file.

One thread at a time adds and removes vectors. Any number of threads can search at the same time. Stored
vectors have length 1, half precision and little-endian bytes.
"""

from collections.abc import Iterable, Sequence
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from antiphon.domain.values import Struct, replace
from antiphon.retrieval.stored_form import Floats, Halves, decode_halves, read_halves

Ids = npt.NDArray[np.int64]
RowNumbers = npt.NDArray[np.intp]

FEWEST_CANDIDATES = 2000
"""The least number of candidates. With 41,620 real chunks, 2,000 candidates contained 0.9995 of the ten
nearest."""

CANDIDATE_SHARE = 40
"""In a large table, one of this many vectors is a candidate."""

READ_SHARE = 5
"""In a large table, one of this many candidates is read from the file. They are chosen by the product of the
query's numbers with the candidates' signs, which is more exact than a comparison of signs."""

BLOCK = 65_536
"""The number of rows that are computed at a time, so that the intermediate values fit the processor's
cache."""

HALF_BYTES = 2
SIGN = 0x8000
WORD_BITS = 64


class VectorRow(Struct, frozen=True):
    """One vector to add."""

    id: int
    document: int
    value: bytes
    """Half precision."""


class Nearest(Struct, frozen=True):
    """The result of a search by vector."""

    ids: Ids
    """The nearest first. Without similarities, these are candidates in no order."""
    similarities: Floats | None
    """None for candidates that still must be scored."""


class VectorRows(Protocol):
    """The vectors of one table."""

    keeps_halves: bool
    """Whether the vectors in half precision are in memory too."""

    @property
    def size(self) -> int:
        """Number of rows, including removed rows."""

    @property
    def bytes(self) -> int:
        """Bytes of all arrays."""

    def add(self, rows: Sequence[VectorRow]) -> None:
        """Adds vectors."""

    def remove(self, ids: Sequence[int]) -> None:
        """Removes vectors. Unknown ids are ignored."""

    def find(self, query: Floats, limit: int, documents: Sequence[int]) -> Nearest:
        """Finds the nearest vectors. `query`: has length 1. `documents`: numbers of the documents to search;
        empty for all."""


S = TypeVar("S", bound=np.generic)


class _RowState(Struct, Generic[S], frozen=True):
    """The arrays of the vectors at one time. The rows before `size` never change, except in `is_alive`, so a
    search can read them during a write. Rows from `size` on can change."""

    size: int
    ids: Ids
    documents: Ids
    is_alive: npt.NDArray[np.bool_]
    """Whether each row is not removed."""
    values: npt.NDArray[S]
    """ExactVectors: one vector in each row. CodedVectors: the signs of one vector in each column."""
    halves: Halves
    """One vector in each row, in half precision. The array has no columns if these vectors are not kept."""


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
        self._state = _commit_rows(state, rows)

    def remove(self, ids: Sequence[int]) -> None:
        self._state = _remove_ids(self._state, ids, axis=0)

    def find(self, query: Floats, limit: int, documents: Sequence[int]) -> Nearest:
        state = self._state
        row_numbers = _find_rows(state, documents)
        if row_numbers is None:
            scores = state.values[: state.size] @ query
            scores[~state.is_alive[: state.size]] = -np.inf
            best = _choose_best(scores, min(limit, int(state.is_alive[: state.size].sum())))
            return Nearest(state.ids[best], scores[best])
        scores = state.values[row_numbers] @ query
        best = _choose_best(scores, min(limit, len(row_numbers)))
        return Nearest(state.ids[row_numbers[best]], scores[best])


class CodedVectors:
    """The signs of all vectors: one bit for each dimension, in words of 64 bits. The first words of all rows
    are contiguous, then the second words, and so on, because a search reads them in this order."""

    def __init__(self, dimensions: int, *, keeps_halves: bool) -> None:
        """`keeps_halves`: whether to keep the vectors in half precision too."""
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
        state.values[:, state.size : state.size + len(rows)] = self._pack_signs(halves < SIGN).T
        if self.keeps_halves:
            state.halves[state.size : state.size + len(rows)] = halves
        self._state = _commit_rows(state, rows)

    def remove(self, ids: Sequence[int]) -> None:
        self._state = _remove_ids(self._state, ids, axis=1)

    def find(self, query: Floats, limit: int, documents: Sequence[int]) -> Nearest:
        state = self._state
        candidates = self._choose_candidates(state, query, limit, documents)
        if not self.keeps_halves:
            return Nearest(state.ids[self._choose_rows_to_read(state, candidates, query, limit)], None)
        return _score_halves(state.ids[candidates], state.halves[candidates], query, limit)

    def _choose_candidates(
        self, state: _RowState[np.uint64], query: Floats, limit: int, documents: Sequence[int]
    ) -> RowNumbers:
        """Returns the row numbers of the candidates."""
        candidate_count = max(FEWEST_CANDIDATES, 2 * limit, state.size // CANDIDATE_SHARE)
        row_numbers = _find_rows(state, documents)
        if row_numbers is not None and len(row_numbers) <= candidate_count:
            return row_numbers
        distances = self._count_differences(state, self._pack_signs(query[np.newaxis] >= 0)[0])
        distances[~state.is_alive[: state.size]] = self._dimensions + 1
        if row_numbers is None:
            return _choose_lowest(distances, candidate_count, self._dimensions)
        return row_numbers[_choose_lowest(distances[row_numbers], candidate_count, self._dimensions)]

    def _choose_rows_to_read(
        self, state: _RowState[np.uint64], candidates: RowNumbers, query: Floats, limit: int
    ) -> RowNumbers:
        """Returns the row numbers of the candidates whose vectors must be read from the file."""
        read_count = max(FEWEST_CANDIDATES, 2 * limit, len(candidates) // READ_SHARE)
        if len(candidates) <= read_count:
            return candidates
        codes = np.ascontiguousarray(state.values[:, candidates].T).view(np.uint8)
        signs = np.unpackbits(codes, axis=1, count=self._dimensions)
        return candidates[_choose_best(signs.astype(np.float32) @ query, read_count)]

    def _pack_signs(self, signs: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint64]:
        """Packs the signs of each row into words. Bits after the last dimension are 0 in all rows, so they
        change no distance."""
        padded = np.zeros((len(signs), self._words * WORD_BITS), np.bool_)
        padded[:, : self._dimensions] = signs
        return np.packbits(padded, axis=1).view(np.uint64)

    def _count_differences(
        self, state: _RowState[np.uint64], code: npt.NDArray[np.uint64]
    ) -> npt.NDArray[np.uint16]:
        """Returns for each row the number of bits that differ from the code."""
        distances = np.zeros(state.size, np.uint16)
        for start in range(0, state.size, BLOCK):
            block = distances[start : start + BLOCK]
            for word in range(self._words):
                row = state.values[word, start : min(start + BLOCK, state.size)]
                block += np.bitwise_count(row ^ code[word])
        return distances


def score_candidates(ids: Sequence[int], values: Iterable[bytes], query: Floats, limit: int) -> Nearest:
    """Scores candidates by their vectors, and returns the nearest. `values`: the vectors in half precision,
    in the order of `ids`."""
    halves = read_halves(b"".join(values)).reshape(-1, len(query))
    return _score_halves(np.asarray(ids, np.int64), halves, query, limit)


def _score_halves(ids: Ids, halves: Halves, query: Floats, limit: int) -> Nearest:
    scores = np.concatenate(
        [decode_halves(halves[start : start + BLOCK]) @ query for start in range(0, len(halves), BLOCK)]
        or [np.empty(0, np.float32)]
    )
    best = _choose_best(scores, min(limit, len(scores)))
    return Nearest(ids[best], scores[best])


def _make_state(values: npt.NDArray[S], columns: int = 0) -> _RowState[S]:
    """Returns a state without rows. `columns`: dimensions of the vectors in half precision."""
    no_ids = np.empty(0, np.int64)
    return _RowState(0, no_ids, no_ids, np.empty(0, np.bool_), values, np.empty((0, columns), np.uint16))


def _count_bytes(state: _RowState[S]) -> int:
    arrays = (state.ids, state.documents, state.is_alive, state.values, state.halves)
    return sum(array.nbytes for array in arrays)


def _grow(state: _RowState[S], added_rows: int, axis: int) -> _RowState[S]:
    """Returns the state with arrays that can contain `added_rows` more rows. Copies the arrays only if they
    are too small. `axis`: the axis of the rows in `values`."""
    capacity = len(state.ids)
    if state.size + added_rows <= capacity:
        return state
    new_capacity = max(state.size + added_rows, capacity + capacity // 2)
    return _copy_state(state, np.arange(state.size), new_capacity, axis)


def _copy_state(state: _RowState[S], row_numbers: RowNumbers, capacity: int, axis: int) -> _RowState[S]:
    """Copies these rows into new arrays for `capacity` rows. `axis`: the axis of the rows in `values`."""
    size = len(row_numbers)
    shape = list(state.values.shape)
    shape[axis] = capacity
    ids, documents = np.zeros(capacity, np.int64), np.zeros(capacity, np.int64)
    is_alive, values = np.zeros(capacity, np.bool_), np.zeros(shape, state.values.dtype)
    halves = np.zeros((capacity, state.halves.shape[1]), np.uint16)
    np.take(state.halves, row_numbers, axis=0, out=halves[:size])
    ids[:size], documents[:size] = state.ids[row_numbers], state.documents[row_numbers]
    is_alive[:size] = state.is_alive[row_numbers]
    target = values[:size] if axis == 0 else values[:, :size]
    np.take(state.values, row_numbers, axis=axis, out=target)
    return _RowState(size, ids, documents, is_alive, values, halves)


def _commit_rows(state: _RowState[S], rows: Sequence[VectorRow]) -> _RowState[S]:
    """Writes the ids, documents and alive flags of rows whose vectors are already written. Returns the state
    with these rows."""
    size = state.size + len(rows)
    state.ids[state.size : size] = [row.id for row in rows]
    state.documents[state.size : size] = [row.document for row in rows]
    state.is_alive[state.size : size] = True
    return replace(state, size=size)


def _remove_ids(state: _RowState[S], ids: Sequence[int], axis: int) -> _RowState[S]:
    """Returns the state without the vectors of these ids. Copies the remaining rows if a quarter of all rows
    is removed. `axis`: the axis of the rows in `values`."""
    state.is_alive[: state.size] &= ~np.isin(state.ids[: state.size], np.asarray(ids, np.int64))
    remaining_rows = np.flatnonzero(state.is_alive[: state.size])
    if len(remaining_rows) > state.size - state.size // 4:
        return state
    return _copy_state(state, remaining_rows, len(remaining_rows), axis)


def _find_rows(state: _RowState[S], documents: Sequence[int]) -> RowNumbers | None:
    """Returns the row numbers of the documents' vectors. Returns None if `documents` is empty, which means
    all documents."""
    if not documents:
        return None
    is_selected = np.isin(state.documents[: state.size], np.asarray(documents, np.int64))
    return np.flatnonzero(is_selected & state.is_alive[: state.size])


def _choose_best(scores: Floats, limit: int) -> RowNumbers:
    """Returns the row numbers of the `limit` highest scores, the highest first. Of equal scores, the lower
    row number comes first."""
    if limit < len(scores):
        row_numbers = np.sort(np.argpartition(-scores, limit)[:limit]) if limit else np.empty(0, np.intp)
    else:
        row_numbers = np.arange(len(scores))
    return row_numbers[np.argsort(-scores[row_numbers], kind="stable")]


def _choose_lowest(distances: npt.NDArray[np.uint16], limit: int, highest: int) -> RowNumbers:
    """Returns the row numbers of the `limit` lowest distances. Of equal distances, the lower row numbers are
    chosen. Distances above `highest` are ignored."""
    counts = np.bincount(distances, minlength=highest + 2)[: highest + 1].cumsum()
    bound = min(int(np.searchsorted(counts, limit)), highest)
    lower = np.flatnonzero(distances < bound)
    return np.concatenate([lower, np.flatnonzero(distances == bound)[: limit - len(lower)]])
