"""What was asked for lately: bounds hold whatever comes, and who sends only new things pushes nobody out."""

import hypothesis.strategies as st
from hypothesis import given

from antiphon.constraints.segmented_lru import REUSED_SHARE, SegmentedLRU


def test_what_was_put_is_there_until_there_is_no_room():
    kept: SegmentedLRU[str, int] = SegmentedLRU(100, 10)
    for at in range(4):
        kept.put(f"{at}", at, 30)
    assert [kept.get(f"{at}") for at in range(4)] == [None, 1, 2, 3] and kept.held_size == 90
    assert len(kept) == 3


def test_a_value_that_does_not_fit_pushes_out_no_known_one():
    kept: SegmentedLRU[str, int] = SegmentedLRU(100, 10)
    kept.put("again", 1, 40)
    assert kept.get("again") == 1
    kept.put("large", 2, 61)
    assert kept.get("large") is None and kept.get("again") == 1 and kept.held_size == 40


def test_a_thousand_new_values_push_out_no_known_one():
    kept: SegmentedLRU[str, int] = SegmentedLRU(1000, 100)
    for name in ("a", "b", "c"):
        kept.put(name, 1, 100)
        kept.get(name)
    for at in range(1000):
        kept.put(f"new {at}", at, 100)
    assert [kept.get(name) for name in ("a", "b", "c")] == [1, 1, 1]
    assert kept.get("new 999") == 999 and kept.get("new 0") is None


def test_new_things_have_room_however_much_was_asked_for_again():
    kept: SegmentedLRU[int, int] = SegmentedLRU(1000, 100)
    for at in range(100):
        kept.put(at, at, 50)
        kept.get(at)
    kept.put(100, 100, 50)
    assert kept.get(100) == 100, "so that it may be asked for again"
    assert kept.get(0) is None and kept.get(99) == 99, "the oldest of them went"


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 60), st.booleans()), max_size=200))
def test_the_bounds_hold_and_nothing_is_mixed_up(asked: list[tuple[int, int, bool]]):
    kept: SegmentedLRU[int, str] = SegmentedLRU(100, 7)
    sizes: dict[int, int] = {}
    for key, size, put in asked:
        if put and kept.get(key) is None:
            kept.put(key, f"{key}", size)
            sizes[key] = size
        assert kept.get(key) in (None, f"{key}")
        there = [each for each in range(31) if each in kept._new or each in kept._reused]
        assert len(there) == len(kept) <= 7
        assert kept.held_size == sum(sizes[each] for each in there) <= 100
        assert sum(one.size for one in kept._reused.values()) == kept._reused_size <= REUSED_SHARE * 100
