"""The structure of conversations: leading messages, turns, results with their calls."""

import pytest

from antiphon.memory.turns import count_leading, find_turns, pair_results
from tests.memory.conversations import talk


@pytest.mark.parametrize(
    ("letters", "count"), [("", 0), ("u", 0), ("su", 1), ("sdsua", 3), ("ss", 2), ("us", 0)]
)
def test_leading_messages_are_those_before_the_first_other(letters, count):
    assert count_leading(talk(letters)) == count


@pytest.mark.parametrize(
    ("letters", "turns"),
    [
        ("", ()),
        ("s", ()),
        ("suaua", (1, 3)),
        ("aua", (0, 1)),
        ("uuu", (0, 1, 2)),
        ("uctaua", (0, 4)),
        ("ucuta", (0,)),
        ("suasua", (1, 4)),
    ],
)
def test_a_turn_begins_with_a_user_and_splits_no_call(letters, turns):
    assert find_turns(talk(letters)) == turns


def test_a_result_belongs_to_the_nearest_call_before_it():
    assert pair_results(talk("uctctt")) == {2: 1, 4: 3, 5: 3}
