"""The splitting of a vendor's bytes into server-sent events."""

import time

import pytest

from antiphon.engines.vendors.sse import MAX_LINES, EventSplitter


def test_events_before_one_that_is_too_large_are_returned():
    splitter = EventSplitter(1000)
    assert splitter.feed(b"data: 1\n\ndata: " + b"x" * 1000) == [("", b"1")]
    with pytest.raises(ValueError, match="too large"):
        splitter.feed(b"\n\n")


def test_an_event_that_is_too_large_is_refused_at_the_end():
    splitter = EventSplitter(1000)
    assert splitter.feed(b"data: 1\n\ndata: " + b"x" * 1000) == [("", b"1")]
    with pytest.raises(ValueError, match="too large"):
        splitter.finish()


def test_an_event_with_too_many_lines_is_refused():
    lines = b"data: 1\n" * MAX_LINES
    assert len(EventSplitter().feed(lines + b"\n")) == 1
    with pytest.raises(ValueError, match="too many lines"):
        EventSplitter().feed(lines + b"data: 1\n\n")


def test_a_line_feed_that_follows_a_carriage_return_in_another_part_ends_no_event():
    splitter = EventSplitter()
    events = [event for byte in b"data: 1\r\ndata: 2\r\n\r\n" for event in splitter.feed(bytes([byte]))]
    assert events == [("", b"1\n2")]
    assert splitter.feed(b"data: 3\r\r\n") == [("", b"3")] and splitter.finish() == []


def test_the_end_of_an_event_can_come_in_two_parts():
    splitter = EventSplitter()
    assert splitter.feed(b"data: 1\n") == [] and splitter.feed(b"\ndata: 2") == [("", b"1")]
    assert splitter.feed(b"\n\n") == [("", b"2")]


@pytest.mark.parametrize("part", [b"x", b"y\n", b"\r"])
def test_each_byte_of_a_long_event_is_read_once(part: bytes):
    """Reading the event anew for each part would take hundreds of times as long."""

    def measure(count: int) -> float:
        splitter = EventSplitter()
        began_at = time.process_time()
        for _ in range(count):
            splitter.feed(part + b"z")
        return time.process_time() - began_at

    measure(1000)
    assert measure(200_000) < 20 * max(measure(50_000), 0.01)
