"""Stop strings end a text where they first end, are cut from it, and never leak, however the text is cut."""

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import InvalidValue
from antiphon.rendering.stop_strings import MOST_CHARACTERS, StopFilter, StopStrings

LETTERS = "abé"


def shown(parts, stops, kept=False):
    """Everything that is shown, part by part, until the stop string or the end."""
    filtered = StopFilter(StopStrings(stops, kept))
    out = []
    for part in parts:
        out.append(filtered.add(part))
        if filtered.found_stop:
            return out, True
    return [*out, filtered.end()], False


def expected(text, stops, kept=False):
    """The shortest beginning that ends with a stop string, without the longest one that it ends with."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if stop and text[:end].endswith(stop)]
        if found:
            return text[: end - (0 if kept else max(map(len, found)))], True
    return text, False


def cut(text, cuts):
    edges = [0, *sorted({place % (len(text) + 1) for place in cuts}), len(text)]
    return [text[begin:end] for begin, end in pairwise(edges)]


@given(
    text=st.text(LETTERS, max_size=20),
    stops=st.lists(st.text(LETTERS, max_size=4), max_size=4),
    cuts=st.lists(st.integers(0, 30), max_size=12),
    kept=st.booleans(),
)
def test_streamed_is_what_buffered_is(text, stops, cuts, kept):
    parts, stopped = shown(cut(text, cuts), stops, kept)
    assert ("".join(parts), stopped) == expected(text, stops, kept)


@given(
    text=st.text(LETTERS, max_size=20),
    stops=st.lists(st.text(LETTERS, min_size=1, max_size=4), min_size=1, max_size=4),
)
def test_a_beginning_of_a_stop_string_is_held_until_decided(text, stops):
    filtered = StopFilter(StopStrings(stops))
    out = ""
    for place, character in enumerate(text):
        out += filtered.add(character)
        if filtered.found_stop:
            break
        begun = text[: place + 1]
        possible = [size for stop in stops for size in range(1, len(stop)) if begun.endswith(stop[:size])]
        assert out == begun[: len(begun) - max(possible, default=0)]


def test_a_stop_string_over_many_parts_never_leaks():
    assert shown(["one ", "<", "/", "en", "d>", " two"], ["</end>"]) == (["one ", "", "", "", ""], True)


def test_a_kept_stop_string_holds_back_nothing():
    assert shown(["one ", "</", "end> two"], ["</end>"], kept=True) == (["one ", "</", "end>"], True)
    assert shown(["a</en"], ["</end>"], kept=True) == (["a</en", ""], False)


def test_what_was_held_back_is_shown_when_it_comes_to_nothing():
    assert shown(["a<", "/e", "x"], ["</end>"]) == (["a", "", "</ex", ""], False)
    assert shown(["a</en"], ["</end>"]) == (["a", "</en"], False)


def test_the_match_that_ends_first_wins_and_the_longest_of_those():
    assert shown(["xabcd"], ["abcd", "bc"]) == (["xa"], True)
    assert shown(["xabc"], ["c", "abc", "bc"]) == (["x"], True)


def test_an_empty_stop_string_stops_nothing():
    assert shown(["abc"], [""]) == (["abc", ""], False)
    assert shown(["abc"], []) == (["abc", ""], False)


def test_nothing_is_shown_after_a_stop_string_in_the_same_part():
    assert shown(["before STOP after"], ["STOP"]) == (["before "], True)


def test_a_long_text_costs_what_it_is_long():
    """Twice the text takes about twice the time; looking again at all of it would take four times."""
    stops = StopStrings(["a" * 500 + "b", "</end>"])

    def seconds(count):
        filtered = StopFilter(stops)
        begun = time.process_time()
        for _ in range(count):
            filtered.add("aaaa")
        return time.process_time() - begun

    once = min(seconds(4_000) for _ in range(3))
    assert min(seconds(32_000) for _ in range(3)) < once * 8 * 3


def test_too_many_characters_of_stop_strings_are_refused():
    with pytest.raises(InvalidValue) as refused:
        StopStrings(["a" * MOST_CHARACTERS, "b"])
    assert refused.value.param == "stop"
