"""Usage counters, the past usage with which they start, and the watch of budgets.

A counter covers the last 60 seconds, a calendar period, or the requests that run now. It has no limit, and
counts any amount. `add` returns a window slot: the number of the bucket or period that counts the amount.
`subtract` removes an amount from that slot. A new counter starts with the usage that `LedgerSeeder` reads
from the ledger: after a start of the process, and for a new limit.

`BudgetWatch` reports when a share of a budget is reached, for example 80 percent. Its state is in memory. So
several processes can report the same share, and a process can report it again after a restart.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import chain
from math import inf
from typing import Protocol

from antiphon.domain.context import Clock
from antiphon.domain.identity import matches
from antiphon.domain.ledger import UsedAmounts
from antiphon.domain.limits import BudgetWarning, Limit, Measure, Subject, Window
from antiphon.domain.values import Value
from antiphon.errors import LimitsUnavailable, StoreUnavailable
from antiphon.store.base import EntryStore

WINDOW = 60_000_000_000
"""Nanoseconds of the sliding window."""
BUCKETS = 1_000
"""Buckets of one sliding window. An amount counts as if it was used at the end of its bucket. So no period of
60 seconds exceeds the limit, and an amount counts for at most one bucket too long."""
BUCKET = WINDOW // BUCKETS
SECOND_NS = 1_000_000_000
CONCURRENT_RETRY_S = 1.0
"""Seconds after which a client should retry when too many requests run."""


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
                return self._seconds_left(now, bucket)
        return WINDOW / SECOND_NS

    def seconds_until_reset(self, now: ClockReading) -> float:
        return self._seconds_left(now, next(reversed(self._buckets))) if self._buckets else 0.0

    def export_amounts(self) -> dict[int, int]:
        return dict(self._buckets)

    def import_amounts(self, amounts_by_slot: Mapping[int, int]) -> None:
        self._buckets = OrderedDict(sorted(amounts_by_slot.items()))
        self._total = sum(amounts_by_slot.values())
        self._last_cleaned = 0

    @staticmethod
    def _seconds_left(now: ClockReading, bucket: int) -> float:
        """Returns the seconds until a bucket leaves the window."""
        return max(0, (bucket + BUCKETS + 1) * BUCKET - now.monotonic) / SECOND_NS


class CalendarWindow:
    """Counts a day, week or month of UTC."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._periods: OrderedDict[int, int] = OrderedDict()
        """Amounts by the beginning of the period. The last two periods are stored, in case the clock is set
        back."""
        self._period = (0, 0)
        """Beginning and end, in Unix seconds, of the period that `_find_begin` found last."""

    def total(self, now: ClockReading) -> int:
        begin, end = self._period
        if not begin <= now.wall < end:
            begin = self._find_begin(now.wall)
        return self._periods.get(begin, 0)

    def add(self, now: ClockReading, amount: int) -> int:
        begin, periods = self._find_begin(now.wall), self._periods
        periods[begin] = periods.get(begin, 0) + amount
        periods.move_to_end(begin)
        while len(periods) > 2:
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


SKEW_S = 3600.0
"""Seconds by which the clocks of two machines can differ."""

DAYS = {Window.DAY: 1, Window.WEEK: 7}
"""The length of a window in days."""


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


SECOND_MS = 1_000
"""Milliseconds."""
HOUR_MS = 3600 * SECOND_MS
"""Milliseconds. Usage in calendar periods is read in sums of an hour, because every period begins with a full
hour."""
SLIDING_WINDOW = WINDOW // 1_000_000 * (BUCKETS + 1) // BUCKETS
"""Milliseconds of past usage that a sliding window needs: its length plus one bucket."""
GRACE_MS = 10 * SECOND_MS
"""Milliseconds after the start of a coordinator. By then every process has reported its running and ended
requests."""
RETRY_PAUSE_S = 1.0
"""Seconds after a failed read of the ledger in which it is not read again."""

SeedAmounts = Mapping[str, Sequence[tuple[float, int]]]
"""By limit id: pairs of a time in Unix seconds and the amount used at this time."""
Seeder = Callable[[Sequence[Limit]], Awaitable[SeedAmounts]]
"""Reads the usage of limits in their current windows. Raises StoreUnavailable."""


class SeedReader:
    """Reads past usage by a `Seeder`. After a failure it does not try again for RETRY_PAUSE_S."""

    def __init__(self, seeder: Seeder | None, clock: Clock, fails_open: bool) -> None:
        """`seeder`: None if there is no ledger. `fails_open`: whether counters start at 0 if reading
        fails."""
        self._seeder = seeder
        self._clock = clock
        self._fails_open = fails_open
        self._failed_at: float | None = None

    async def read(self, limits: Sequence[Limit]) -> SeedAmounts:
        """Reads the past usage of these limits. Raises LimitsUnavailable."""
        if self._seeder is None:
            return {}
        if self._failed_at is None or self._clock.monotonic() - self._failed_at > RETRY_PAUSE_S:
            try:
                return await self._seeder(limits)
            except StoreUnavailable:
                self._failed_at = self._clock.monotonic()
        if self._fails_open:
            return {}
        raise LimitsUnavailable(
            "it is unknown how much of a limit is used, because the ledger cannot be read; try again",
            retry_after=1.0,
        )


class LedgerSeeder:
    """A `Seeder` that reads the ledger's rows in a thread."""

    def __init__(
        self,
        entries: EntryStore,
        get_time: Callable[[], float],
        drain: Callable[[], object] | None = None,
        families: Callable[[], Mapping[str, str]] = dict,
        started_ms: int | None = None,
    ) -> None:
        """`get_time` returns Unix seconds. `drain` writes all spooled entries into the ledger. `families`
        returns the id of the first key of its family for each rotated key. `drain` and `families` block, and
        raise StoreUnavailable. `started_ms`: when the coordinator started, in Unix milliseconds. Requests
        that ended later are not read from the ledger, because processes report them to the coordinator."""
        self._entries = entries
        self._get_time = get_time
        self._drain = drain
        self._families = families
        self._started_ms = started_ms
        self._thread = ThreadPoolExecutor(1, "antiphon-seeds")

    async def __call__(self, limits: Sequence[Limit]) -> SeedAmounts:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._read_amounts, limits)

    def close(self) -> None:
        """Waits until no read runs."""
        self._thread.shutdown()

    def _read_amounts(self, limits: Sequence[Limit]) -> SeedAmounts:
        """Reads the past usage of these limits from the ledger, after writing the spool into it."""
        counted_limits = [limit for limit in limits if limit.measure is not Measure.CONCURRENT]
        if not counted_limits:
            return {}
        if self._drain is not None:
            self._drain()
        amounts: dict[str, list[tuple[float, int]]] = {}
        families = self._families()
        now = self._get_time()
        queries: dict[tuple[Window | None, int | None], list[Limit]] = {}
        for limit in counted_limits:
            queries.setdefault((limit.window, self._find_upper_bound(limit, now)), []).append(limit)
        for (window, until_ms), limits_of_query in queries.items():
            rows = self._entries.sum_usage(*_find_start(window, now), until_ms)
            for id_, at, amount in _match_rows(rows, limits_of_query, families):
                amounts.setdefault(id_, []).append((at, amount))
        return amounts

    def _find_upper_bound(self, limit: Limit, now: float) -> int | None:
        """Returns the time in Unix milliseconds from which on ended requests are not read from the ledger,
        because processes report them. Returns None, which means that all are read, if the limit was created
        after the coordinator started, or if GRACE_MS have passed since that start."""
        started_ms = self._started_ms
        if started_ms is None:
            return None
        is_over = now * SECOND_MS >= started_ms + GRACE_MS
        return None if is_over or limit.created >= started_ms // SECOND_MS else started_ms


def _find_start(window: Window | None, now: float) -> tuple[int, int]:
    """Returns the start of the current window in Unix milliseconds, and the length of the periods in which
    the usage is summed, in milliseconds."""
    if window in (None, Window.MINUTE):
        return int(now * SECOND_MS) - SLIDING_WINDOW, 1
    return find_period(window, now)[0] * SECOND_MS, HOUR_MS


def _match_rows(
    rows: Iterable[UsedAmounts], limits: Sequence[Limit], families: Mapping[str, str]
) -> Iterable[tuple[str, float, int]]:
    """Yields limit id, Unix seconds and amount, for each row and each limit that counts it."""
    by_target: dict[tuple[Subject, str | None], list[Limit]] = {}
    for limit in limits:
        target = limit.target
        if limit.subject is Subject.KEY:
            target = families.get(target, target)
        by_target.setdefault((limit.subject, target), []).append(limit)
    for row in rows:
        row_limits = chain.from_iterable(by_target.get(target, ()) for target in _list_targets(row, families))
        for limit in row_limits:
            if limit.models is None or matches((limit.models,), row.model):
                yield limit.id, row.at / SECOND_MS, row.amounts.get_amount(limit.measure)


def _list_targets(row: UsedAmounts, families: Mapping[str, str]) -> Iterable[tuple[Subject, str | None]]:
    """Yields the key, user, project and model whose limits count this row."""
    yield Subject.KEY, families.get(row.key, row.key)
    yield Subject.USER, row.user
    yield Subject.PROJECT, row.project
    yield Subject.MODEL, row.model


WHOLE_BUDGET = 1.0
"""The share of a completely used budget. It is also reported when the budget refuses a request."""


class BudgetWatch:
    """Reports reached shares of the budgets of one limiter."""

    def __init__(self, shares: Sequence[float], warn: Callable[[BudgetWarning], None]) -> None:
        """`shares`: the fractions of a budget to report, above 0 and at most 1. `warn` is called with each
        report, and must not block."""
        self._shares = frozenset(shares)
        self._smallest_share = min(self._shares, default=inf)
        self._warn = warn
        self._reported: dict[str, tuple[int, frozenset[float]]] = {}
        """By limit id: the beginning of the budget's period, and the shares reported in this period."""

    def observe(self, limit: Limit, used: int, now: float, is_exhausted: bool = False) -> None:
        """Reports each share that is reached and was not reported in this window. `used`: the amount used in
        the window of `now` (Unix seconds). `is_exhausted`: whether the budget refused a request."""
        if limit.window is None or not limit.is_budget or not limit.amount:
            return
        if used < self._smallest_share * limit.amount and not is_exhausted:  # the usual case
            return
        reached_shares = {share for share in self._shares if used >= share * limit.amount}
        if is_exhausted and WHOLE_BUDGET in self._shares:
            reached_shares.add(WHOLE_BUDGET)
        if not reached_shares:
            return
        period_begin, period_end = find_period(limit.window, now)
        last_begin, reported_shares = self._reported.get(limit.id, (period_begin, frozenset[float]()))
        if last_begin != period_begin:
            reported_shares = frozenset()
        if new_shares := sorted(reached_shares - reported_shares):
            self._reported[limit.id] = period_begin, reported_shares | reached_shares
            for share in new_shares:
                self._warn(BudgetWarning(limit, share, used, int(now), period_begin, period_end))
