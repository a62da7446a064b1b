"""What a counter of the last 60 seconds remembers of before it was made."""

from antiphon.limits.windows import SECOND, Moment, Sliding

NOW = Moment(1_000 * SECOND, 1_790_000_000.0)


def test_what_was_taken_within_the_window_counts_and_before_it_does_not():
    counter = Sliding()
    assert counter.used(NOW) == 0
    counter.remember(NOW, NOW.wall - 59, 3)
    counter.remember(NOW, NOW.wall - 120, 5)
    assert counter.used(NOW) == 3


def test_what_is_remembered_passes_with_time_though_it_was_looked_at():
    counter = Sliding()
    counter.remember(NOW, NOW.wall - 59, 3)
    counter.take(NOW, 4)
    assert counter.used(NOW) == 7
    later = Moment(NOW.monotonic + 2 * SECOND, NOW.wall + 2)
    assert counter.used(later) == 4
