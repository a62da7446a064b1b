"""Vectors in memory: nearest ones, exact and by codes, while rows come and go."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import InvalidValue
from antiphon.retrieval.sqlite import vectors
from antiphon.retrieval.sqlite.vectors import (
    CodedVectors,
    ExactVectors,
    VectorRow,
    VectorRows,
    score_candidates,
)
from antiphon.retrieval.stored_form import Floats, decode_halves, normalize, read_halves

Kind = Callable[[int], VectorRows]


def make_coded(dimensions: int) -> VectorRows:
    return CodedVectors(dimensions, keeps_halves=False)


def make_coded_with_halves(dimensions: int) -> VectorRows:
    return CodedVectors(dimensions, keeps_halves=True)


KINDS = pytest.mark.parametrize("kind", [ExactVectors, make_coded, make_coded_with_halves])


def make_rows(count: int, dimensions: int, seed: int = 0) -> list[VectorRow]:
    """Random vectors with ids from 1, in documents of ten."""
    random = np.random.default_rng(seed)
    values = random.standard_normal((count, dimensions)).astype("<f4")
    return [
        VectorRow(number + 1, number // 10, normalize(value.tobytes(), dimensions, "vector"))
        for number, value in enumerate(values)
    ]


def decode(row: VectorRow) -> Floats:
    return decode_halves(read_halves(row.value))


def find(
    rows: VectorRows, all_rows: dict[int, VectorRow], query: Floats, most: int, documents: list[int]
) -> list[int]:
    """The ids of the nearest rows, as a search finds them."""
    nearest = rows.find(query, most, documents)
    if nearest.similarities is None:
        ids = nearest.ids.tolist()
        nearest = score_candidates(ids, (all_rows[id_].value for id_ in ids), query, most)
    return [int(id_) for id_ in nearest.ids]


def find_plainly(rows: list[VectorRow], query: Floats, most: int, documents: list[int]) -> list[int]:
    chosen = [row for row in rows if not documents or row.document in documents]
    return [row.id for row in sorted(chosen, key=lambda row: -float(decode(row) @ query))[:most]]


@KINDS
@pytest.mark.parametrize("dimensions", [1, 3, 100])
def test_the_nearest_are_found(kind: Kind, dimensions: int) -> None:
    all_rows = make_rows(500, dimensions)
    rows = kind(dimensions)
    rows.add(all_rows)
    query = decode(make_rows(1, dimensions, seed=9)[0])
    by_id = {row.id: row for row in all_rows}
    if dimensions > 1:  # otherwise all similarities are 1 or -1
        assert find(rows, by_id, query, 10, []) == find_plainly(all_rows, query, 10, [])
    assert find(rows, by_id, decode(all_rows[77]), 500, [7])[:1] == [78] or dimensions == 1
    assert len(find(rows, by_id, query, 1000, [])) == 500
    assert find(rows, by_id, query, 5, [999]) == []


@KINDS
@given(data=st.data())
def test_rows_come_and_go(kind: Kind, data: st.DataObject) -> None:
    """After any sequence of changes, exactly the rows that are there are found, the nearest first."""
    pool, rows, there = make_rows(200, 24), kind(24), dict[int, VectorRow]()
    for _ in range(data.draw(st.integers(1, 8))):
        absent = [row for row in pool if row.id not in there]
        added = data.draw(st.lists(st.sampled_from(absent), unique=True, max_size=60)) if absent else []
        rows.add(added)
        there |= {row.id: row for row in added}
        removed = data.draw(st.lists(st.integers(1, 200), unique=True, max_size=60))
        rows.remove(removed)
        for id_ in removed:
            there.pop(id_, None)
        query, documents = (
            decode(pool[data.draw(st.integers(0, 199))]),
            data.draw(st.sampled_from([[], [3], [1, 5]])),
        )
        most = data.draw(st.integers(1, 20))
        found = find(rows, there, query, most, documents)
        wanted = find_plainly(list(there.values()), query, most, documents)
        assert found == wanted or sorted(found) == sorted(wanted)  # equals may change places


@KINDS
def test_memory_is_given_back(kind: Kind) -> None:
    rows = kind(64)
    rows.add(make_rows(4000, 64))
    before = rows.bytes
    rows.remove(range(1, 3901))
    assert rows.size == 100 and rows.bytes < before / 10


def test_codes_take_a_bit_for_each_dimension() -> None:
    exact, coded = ExactVectors(384), make_coded(384)
    for rows in (exact, coded):
        rows.add(make_rows(1000, 384))
    assert exact.bytes == 1000 * (4 * 384 + 17)
    assert coded.bytes == 1000 * (384 // 8 + 17)
    halves = make_coded_with_halves(384)
    halves.add(make_rows(1000, 384))
    assert halves.bytes == coded.bytes + 1000 * 2 * 384


def test_candidates_grow_with_the_table() -> None:
    rows = make_coded(64)
    rows.add([VectorRow(number, 0, row.value) for number, row in enumerate(make_rows(1000, 64) * 120)])
    query = decode(make_rows(1, 64)[0])
    assert len(rows.find(query, 10, []).ids) == vectors.FEWEST_CANDIDATES
    assert len(rows.find(query, 2500, []).ids) == 5000
    rows.add([VectorRow(number, 1, row.value) for number, row in enumerate(make_rows(1000, 64) * 380)])
    assert len(rows.find(query, 10, []).ids) == 500_000 // vectors.CANDIDATE_SHARE // vectors.READ_SHARE
    nearest = rows.find(query, 10, [])
    assert find_plainly(make_rows(1000, 64), query, 1, [])[0] - 1 in {int(id_) % 1000 for id_ in nearest.ids}


COUNT = 4_000


def test_codes_find_what_exact_search_finds() -> None:
    """On vectors that lie in groups, as those of texts do."""
    random = np.random.default_rng(3)
    centers = random.standard_normal((100, 256))
    values = (centers[random.integers(0, 100, COUNT)] + random.standard_normal((COUNT, 256)) * 0.7).astype(
        "<f4"
    )
    all_rows = [
        VectorRow(number, 0, normalize(value.tobytes(), 256, "vector")) for number, value in enumerate(values)
    ]
    exact, coded = ExactVectors(256), make_coded(256)
    for rows in (exact, coded):
        rows.add(all_rows)
    by_id = {row.id: row for row in all_rows}
    recalled = []
    for number in range(20):
        query = values[number * 7] + random.standard_normal(256).astype("<f4") * 0.3
        unit = decode_halves(read_halves(normalize(query.tobytes(), 256, "vector")))
        wanted = find(exact, by_id, unit, 10, [])
        recalled.append(len(set(wanted) & set(find(coded, by_id, unit, 10, []))) / 10)
    assert np.mean(recalled) > 0.98


@pytest.mark.parametrize(
    "values", [[0.0, 0.0], [float("nan"), 1.0], [float("inf"), 1.0], [1.0], [1.0, 2.0, 3.0], []]
)
def test_a_vector_without_direction_is_refused(values: list[float]) -> None:
    with pytest.raises(InvalidValue, match=r"^vector has") as refused:
        normalize(np.array(values, "<f4").tobytes(), 2, "vector")
    assert refused.value.param == "vector"


@given(st.lists(st.floats(-1.0, 1.0, width=32), min_size=3, max_size=3).filter(any))
def test_every_other_vector_has_length_one(values: list[float]) -> None:
    kept = decode_halves(read_halves(normalize(np.array(values, "<f4").tobytes(), 3, "vector")))
    assert np.linalg.norm(kept) == pytest.approx(1, abs=2e-3)


def test_halves_are_decoded_exactly() -> None:
    every = np.arange(1 << 16, dtype=np.uint16)
    assert decode_halves(every).tobytes() == every.view(np.float16).astype(np.float32).tobytes()
