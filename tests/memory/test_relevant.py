"""The strategy `relevant`: which turns stay, and in which order."""

from array import array

import hypothesis
from hypothesis import strategies as st

from antiphon.memory.turns import RankedTurns, count_leading, find_turns, pair_results
from tests.memory.conversations import conversations, places, talk


def encode(*numbers):
    return array("f", numbers).tobytes()


def test_the_nearest_turns_stay_in_their_order():
    turns = RankedTurns(talk("suauauau"))
    assert len(turns) == 3
    turns.rank([encode(1, 0), encode(0, 1), encode(3, 3), encode(2, 1)])
    assert [places(turns.choose(count)) for count in range(4)] == [
        [0, 7],
        [0, 5, 6, 7],
        [0, 1, 2, 5, 6, 7],
        [0, 1, 2, 3, 4, 5, 6, 7],
    ]


def test_of_equal_turns_the_later_stays():
    turns = RankedTurns(talk("uauau"))
    turns.rank([encode(1, 0), encode(5, 0), encode(1, 0)])
    assert places(turns.choose(1)) == [2, 3, 4]


def test_a_vector_of_zeros_is_near_to_nothing():
    turns = RankedTurns(talk("uauau"))
    turns.rank([encode(0, 0), encode(1, 1), encode(1, 0)])
    assert places(turns.choose(1)) == [2, 3, 4]


def test_long_turns_are_cut_for_their_vectors():
    short, last = RankedTurns(talk("uau")).write_texts(12)
    assert len(last) <= 12 < len(short)


@hypothesis.given(conversations(), st.data())
def test_leading_messages_calls_and_the_last_turn_stay(messages, data):
    turns = RankedTurns(messages)
    numbers = st.tuples(st.floats(-9, 9, width=32), st.floats(-9, 9, width=32))
    turns.rank([encode(*data.draw(numbers)) for _ in turns.write_texts()])
    kept = turns.choose(data.draw(st.integers(0, len(turns))))
    leading = count_leading(messages)
    assert kept[:leading] == messages[:leading]
    begins = find_turns(messages)
    last = messages[begins[-1] :] if begins else ()
    assert kept[len(kept) - len(last) :] == last
    whole, some = pair_results(messages), pair_results(kept)
    assert {id(kept[result]) for result in some} == {
        id(messages[result]) for result in whole if any(messages[result] is each for each in kept)
    }
    assert turns.choose(len(turns)) == messages
