"""Usage counters. A counter covers the last 60 seconds, a calendar period, or the requests that run now.

A counter has no limit, and counts any amount. `add` returns a window slot: the number of the bucket or period
that counts the amount. `subtract` removes an amount from that slot.
"""

from collections import OrderedDict
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Protocol

from antiphon.domain.limits import Limit, Measure, Window
from antiphon.domain.values import Value

WINDOW = 60_000_000_000
"""Nanoseconds of the sliding window."""
BUCKETS = 1_000
"""Buckets of one sliding window. An amount counts as if it was used at the end of its bucket. So no period of
60 seconds exceeds the limit, and an amount counts for at most one bucket too long."""
BUCKET = WINDOW // BUCKETS
SECOND_NS = 1_000_000_000
MAX_PERIODS = 16
"""The most calendar periods of one counter that are stored."""

CONCURRENT_RETRY_S = 1.0
"""Seconds after which a client should retry when too many requests run."""


SKEW_S = 3600.0
"""Seconds by which the clocks of two machines can differ."""

DAYS = {Window.DAY: 1, Window.WEEK: 7}
"""The length of a window in days."""


class ClockReading(Value, frozen=True):
    """The current time on both clocks."""

    monotonic: int
    """Nanoseconds."""
    wall: float
    """Unix seconds."""


class UsageCounter(Protocol):
    """Counts the usage of one limit."""

    def total(self, now: ClockReading) -> int:
        """Returns the amount that counts now."""

    def add(self, now: ClockReading, amount: int) -> int:
        """Counts an amount from now on, and returns its window slot."""

    def subtract(self, window_slot: int, amount: int) -> None:
        """Removes an amount from a window slot. A slot that no longer counts is ignored."""

    def is_current(self, now: ClockReading, window_slot: int) -> bool:
        """Whether a window slot still counts."""

    def add_past(self, now: ClockReading, at: float, amount: int) -> None:
        """Counts an amount that was used earlier. `at`: the time of the usage in Unix seconds."""

    def seconds_until_room(self, now: ClockReading, excess: int) -> float:
        """Returns the seconds until the total has fallen by `excess`, if nothing more is added."""

    def seconds_until_reset(self, now: ClockReading) -> float:
        """Returns the seconds until the total is 0, if nothing more is added."""

    def export_amounts(self) -> dict[int, int]:
        """Returns the amounts by window slot."""

    def import_amounts(self, amounts_by_slot: Mapping[int, int]) -> None:
        """Replaces all amounts. `amounts_by_slot`: from `export_amounts` of a counter of the same kind."""


class SlidingWindow:
    """Counts the last 60 seconds in buckets."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[int, int] = OrderedDict()
        """Amounts by bucket number, the oldest first."""
        self._total = 0
        self._last_cleaned = 0
        """The number of the bucket that was current when `total` last removed expired amounts."""

    def total(self, now: ClockReading) -> int:
        current = now.monotonic // BUCKET
        if current != self._last_cleaned:
            self._last_cleaned = current
            buckets, oldest = self._buckets, current - BUCKETS
            while buckets and (bucket := next(iter(buckets))) < oldest:
                self._total -= buckets.pop(bucket)
        return self._total

    def add(self, now: ClockReading, amount: int) -> int:
        bucket = now.monotonic // BUCKET
        self._buckets[bucket] = self._buckets.get(bucket, 0) + amount
        self._total += amount
        return bucket

    def subtract(self, window_slot: int, amount: int) -> None:
        if window_slot in self._buckets:
            self._buckets[window_slot] -= amount
            self._total -= amount
            if self._buckets[window_slot] <= 0:
                del self._buckets[window_slot]

    def is_current(self, now: ClockReading, window_slot: int) -> bool:
        return window_slot >= now.monotonic // BUCKET - BUCKETS

    def add_past(self, now: ClockReading, at: float, amount: int) -> None:
        age = max(0, int((now.wall - at) * SECOND_NS))
        bucket = (now.monotonic - age) // BUCKET
        past_buckets = {**self._buckets, bucket: self._buckets.get(bucket, 0) + amount}
        self._buckets = OrderedDict(sorted(past_buckets.items()))
        self._total += amount
        self._last_cleaned = 0  # so that `total` removes the amount if it has expired

    def seconds_until_room(self, now: ClockReading, excess: int) -> float:
        freed_amount = 0
        for bucket, amount in self._buckets.items():
            freed_amount += amount
            if freed_amount >= excess:
                left = (bucket + BUCKETS + 1) * BUCKET - now.monotonic
                return max(0, left) / SECOND_NS
        return WINDOW / SECOND_NS

    def seconds_until_reset(self, now: ClockReading) -> float:
        if not self._buckets:
            return 0.0
        left = (next(reversed(self._buckets)) + BUCKETS + 1) * BUCKET - now.monotonic
        return left / SECOND_NS if left > 0 else 0.0

    def export_amounts(self) -> dict[int, int]:
        return dict(self._buckets)

    def import_amounts(self, amounts_by_slot: Mapping[int, int]) -> None:
        self._buckets = OrderedDict(sorted(amounts_by_slot.items()))
        self._total = sum(amounts_by_slot.values())
        self._last_cleaned = 0


class CalendarWindow:
    """Counts a day, week or month of UTC."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._periods: OrderedDict[int, int] = OrderedDict()
        """Amounts by the beginning of the period. The last MAX_PERIODS are stored, the latest used one last,
        because the clock can be set forward several times and then back."""
        self._period = (0, 0)
        """Beginning and end, in Unix seconds, of the period that `_find_begin` found last."""

    def total(self, now: ClockReading) -> int:
        begin, end = self._period
        if not begin <= now.wall < end:
            begin = self._find_begin(now.wall)
        return self._periods.get(begin, 0)

    def add(self, now: ClockReading, amount: int) -> int:
        periods, (begin, end) = self._periods, self._period
        if not begin <= now.wall < end:
            begin = self._find_begin(now.wall)
        periods[begin] = periods.get(begin, 0) + amount
        periods.move_to_end(begin)
        while len(periods) > MAX_PERIODS:
            periods.popitem(last=False)
        return begin

    def subtract(self, window_slot: int, amount: int) -> None:
        if window_slot in self._periods:
            self._periods[window_slot] -= amount

    def is_current(self, now: ClockReading, window_slot: int) -> bool:
        return window_slot == self._find_begin(now.wall)

    def add_past(self, now: ClockReading, at: float, amount: int) -> None:
        if find_period(self._window, at)[0] == self._find_begin(now.wall):
            self.add(now, amount)

    def seconds_until_room(self, now: ClockReading, excess: int) -> float:
        return self.seconds_until_reset(now)

    def seconds_until_reset(self, now: ClockReading) -> float:
        begin, end = self._period
        if not begin <= now.wall < end:
            self._find_begin(now.wall)
        return self._period[1] - now.wall

    def export_amounts(self) -> dict[int, int]:
        return dict(self._periods)

    def import_amounts(self, amounts_by_slot: Mapping[int, int]) -> None:
        self._periods = OrderedDict(amounts_by_slot)

    def _find_begin(self, wall: float) -> int:
        """Returns the beginning, in Unix seconds, of the period that contains `wall`. Stores the period."""
        if not self._period[0] <= wall < self._period[1]:
            self._period = find_period(self._window, wall)
        return self._period[0]


class ConcurrencyCounter:
    """Counts the requests that run now."""

    def __init__(self) -> None:
        self._running = 0

    def total(self, now: ClockReading) -> int:
        return self._running

    def add(self, now: ClockReading, amount: int) -> int:
        self._running += amount
        return 0

    def subtract(self, window_slot: int, amount: int) -> None:
        self._running -= amount

    def is_current(self, now: ClockReading, window_slot: int) -> bool:
        return True

    def add_past(self, now: ClockReading, at: float, amount: int) -> None:
        """Does nothing, because a past request no longer runs."""

    def seconds_until_room(self, now: ClockReading, excess: int) -> float:
        return CONCURRENT_RETRY_S

    def seconds_until_reset(self, now: ClockReading) -> float:
        return 0.0

    def export_amounts(self) -> dict[int, int]:
        return {0: self._running}

    def import_amounts(self, amounts_by_slot: Mapping[int, int]) -> None:
        self._running = amounts_by_slot.get(0, 0)


def create_counter(limit: Limit) -> UsageCounter:
    """Makes a new counter of the kind that a limit needs."""
    if limit.measure is Measure.CONCURRENT or limit.window is None:
        return ConcurrencyCounter()
    return SlidingWindow() if limit.window is Window.MINUTE else CalendarWindow(limit.window)


def find_period(window: Window, at: float) -> tuple[int, int]:
    """Returns the beginning and end, in Unix seconds, of the day, week (from Monday) or month that contains
    `at`. Raises ValueError for the sliding window."""
    day = datetime.fromtimestamp(at, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    match window:
        case Window.DAY | Window.WEEK:
            begin = day if window is Window.DAY else day - timedelta(days=day.weekday())
            end = begin + timedelta(days=DAYS[window])
        case Window.MONTH:
            begin = day.replace(day=1)
            end = (begin + timedelta(days=31)).replace(day=1)
        case Window.MINUTE:
            raise ValueError("a sliding window has no period")
    return int(begin.timestamp()), int(end.timestamp())


def find_period_bounds(window: Window, at: float) -> tuple[int, int, int]:
    """Returns the bounds of two consecutive periods in Unix seconds: beginning, middle and end. Another
    machine's clock, which differs from `at` by at most SKEW_S, is in one of the two periods."""
    begin, end = find_period(window, at - SKEW_S)
    return begin, end, find_period(window, end)[1]
