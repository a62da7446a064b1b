"""Server-sent events, however their bytes are cut."""

import pytest

from antiphon.cli import sse
from antiphon.cli.sse import Events, TooLong

STREAM = (
    "data: a\n\n: note\ndata:b\r\ndata: c\r\n\r\nevent: x\nid: 1\n\ndata: ü\r\rdata\n\ndata: late".encode()
)
MEANT = ["a", "b\nc", "ü", ""]


@pytest.mark.parametrize("size", [1, 2, 3, 7, len(STREAM)])
def test_events_are_the_same_in_pieces_of_any_size(size: int):
    events = Events()
    pieces = [STREAM[start : start + size] for start in range(0, len(STREAM), size)]
    assert [data for piece in pieces for data in events.feed(piece)] == MEANT


def test_a_line_without_an_end_is_given_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sse, "LONGEST", 100)
    with pytest.raises(TooLong):
        Events().feed(b"data: " + b"x" * 101)
