"""The splitting of a vendor's bytes into server-sent events."""

import pytest

from antiphon.engines.vendors.transport import MAX_EVENT, EventSplitter


def test_events_before_one_that_is_too_large_are_returned():
    splitter = EventSplitter()
    assert splitter.feed(b"data: 1\n\ndata: " + b"x" * MAX_EVENT) == [("", b"1")]
    with pytest.raises(ValueError, match="too large"):
        splitter.feed(b"\n\n")


def test_an_event_that_is_too_large_is_refused_at_the_end():
    splitter = EventSplitter()
    assert splitter.feed(b"data: 1\n\ndata: " + b"x" * MAX_EVENT) == [("", b"1")]
    with pytest.raises(ValueError, match="too large"):
        splitter.finish()
