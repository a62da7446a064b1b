"""The search of last_tokens: the longest end of whole turns within the budget, by few counts."""

from hypothesis import given
from hypothesis import strategies as st

from antiphon.memory.turns import TurnSearch, count_leading, find_turns, pair_results
from tests.memory.conversations import conversations, places, talk


def count(messages) -> int:
    """Tokens as a template would make them: some for each message, and one for each word."""
    return sum(4 + len(message.text.split()) for message in messages)


def search(messages, budget, counted=count):
    """The search at its end, and the number of its counts."""
    turns, counts = TurnSearch(messages, budget), 0
    while (chosen := turns.choose()) is not None:
        turns.add_count(counted(chosen))
        counts += 1
    return turns, counts


def test_whole_turns_are_kept_and_the_leading_messages_stay():
    messages = talk("suaua")
    assert places(search(messages, 25)[0].kept_messages) == [0, 1, 2, 3, 4]
    assert places(search(messages, 24)[0].kept_messages) == [0, 3, 4]
    assert places(search(messages, 15)[0].kept_messages) == [0, 3, 4]


def test_a_call_stays_with_its_results():
    assert places(search(talk("uauctaua"), 40)[0].kept_messages) == list(range(8))
    assert places(search(talk("uauctaua"), 35)[0].kept_messages) == [2, 3, 4, 5, 6, 7]
    assert places(search(talk("uauctaua"), 29)[0].kept_messages) == [6, 7]


def test_a_last_turn_that_does_not_fit_has_no_result():
    turns, _ = search(talk("suaua"), 14)
    assert (turns.kept_messages, turns.last_turn_tokens) == (None, 15)
    turns, _ = search(talk("suaua"), 14, lambda messages: None)
    assert (turns.kept_messages, turns.last_turn_tokens) == (None, None)


def test_leading_messages_alone_are_counted():
    assert search(talk("ss"), 10)[0].kept_messages == talk("ss")
    assert search(talk("ss"), 9)[0].kept_messages is None


def test_a_conversation_that_fits_is_counted_once():
    assert search(talk("su" + "au" * 20), 5000)[1] == 1


def test_a_long_conversation_is_counted_a_few_times():
    messages = talk("s" + "ua" * 200)
    turns, counts = search(messages, 400)
    assert counts <= 6 and 390 <= count(turns.kept_messages) <= 400


def test_a_context_that_is_passed_costs_few_counts():
    messages = talk("s" + "ua" * 200)
    dense = lambda chosen: None if 3 * count(chosen) > 2048 else 3 * count(chosen)  # noqa: E731 - one rate
    turns, counts = search(messages, 1500, dense)
    assert counts <= 5 and 1470 <= 3 * count(turns.kept_messages) <= 1500


@given(conversations(), st.integers(1, 200), st.integers(1, 9))
def test_last_tokens_keeps_its_promises(messages, budget, rate):
    """The rate makes the guesses of the search wrong in both directions."""
    weigh = lambda chosen: max(1, count(chosen) * rate // 3)  # noqa: E731 - a rate of one example
    leading, (turns, _) = count_leading(messages), search(messages, budget, weigh)
    kept = turns.kept_messages
    if kept is None:
        last = (find_turns(messages) or (leading,))[-1]
        assert weigh(messages[:leading] + messages[last:]) > budget
        return
    assert weigh(kept) <= budget and kept[:leading] == messages[:leading]
    assert kept[leading:] == messages[len(messages) - len(kept) + leading :]
    assert len(pair_results(kept)) == sum(message.role == "tool" for message in kept)
    starts = find_turns(messages)
    begin = len(messages) - len(kept) + leading
    longer = [at for at in starts if at < begin]
    assert not longer or weigh(messages[:leading] + messages[longer[-1] :]) > budget
    assert search(kept, budget, weigh)[0].kept_messages == kept
