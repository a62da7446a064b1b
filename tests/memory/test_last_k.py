"""The strategy last_k: what stays, what goes, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import InvalidValue
from antiphon.memory.turns import count_leading, keep_last_messages, pair_results
from tests.memory.conversations import conversations, places, talk


@pytest.mark.parametrize(
    ("letters", "k", "kept"),
    [
        ("suaua", 1, [0, 4]),
        ("suaua", 2, [0, 3, 4]),
        ("suaua", 4, [0, 1, 2, 3, 4]),
        ("suaua", 99, [0, 1, 2, 3, 4]),
        ("sduau", 1, [0, 1, 4]),
        ("uasu", 2, [2, 3]),
        ("ucta", 2, [3]),
        ("ucta", 3, [1, 2, 3]),
        ("ucttua", 3, [4, 5]),
        ("uctctu", 3, [3, 4, 5]),
        ("s", 1, [0]),
    ],
)
def test_the_last_messages_stay_with_the_leading_ones(letters, k, kept):
    assert places(keep_last_messages(talk(letters), k)) == kept


@pytest.mark.parametrize(("letters", "k"), [("uct", 1), ("suctt", 2)])
def test_a_cut_that_leaves_only_results_is_refused(letters, k):
    with pytest.raises(InvalidValue, match="larger k") as caught:
        keep_last_messages(talk(letters), k)
    assert caught.value.param == "memory_strategy.k"


@given(conversations(), st.integers(1, 30))
def test_last_k_keeps_its_promises_for_any_conversation(messages, k):
    leading = count_leading(messages)
    try:
        kept = keep_last_messages(messages, k)
    except InvalidValue:
        callers = pair_results(messages)
        cut = len(messages) - k
        assert cut > leading and all(callers[at] < cut for at in range(cut, len(messages)))
        return
    others = kept[leading:]
    assert kept[:leading] == messages[:leading] and len(others) <= k
    window = messages[max(leading, len(messages) - k) :]
    assert others == tuple(each for each in window if each in others)
    assert all(each.role == "tool" for each in window if each not in others)
    assert len(pair_results(kept)) == sum(message.role == "tool" for message in kept)
    assert keep_last_messages(kept, k) == kept
