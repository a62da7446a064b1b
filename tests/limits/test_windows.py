"""What a counter of the last 60 seconds remembers of before it was made."""

from antiphon.limits.windows import SECOND_NS, ClockReading, SlidingWindow

NOW = ClockReading(1_000 * SECOND_NS, 1_790_000_000.0)


def test_only_amounts_within_the_window_count():
    counter = SlidingWindow()
    assert counter.total(NOW) == 0
    counter.add_past(NOW, NOW.wall - 59, 3)
    counter.add_past(NOW, NOW.wall - 120, 5)
    assert counter.total(NOW) == 3


def test_past_amounts_expire_even_after_a_look():
    counter = SlidingWindow()
    counter.add_past(NOW, NOW.wall - 59, 3)
    counter.add(NOW, 4)
    assert counter.total(NOW) == 7
    later = ClockReading(NOW.monotonic + 2 * SECOND_NS, NOW.wall + 2)
    assert counter.total(later) == 4
