"""Reads past usage from the ledger. A counter that is created starts with this usage: after a start of the
process, and for a new limit."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import chain

from antiphon.domain.context import Clock
from antiphon.domain.identity import matches
from antiphon.domain.ledger import UsedAmounts
from antiphon.domain.limits import Limit, Measure, Subject, Window
from antiphon.errors import LimitsUnavailable, StoreUnavailable
from antiphon.limits.windows import BUCKETS, WINDOW, find_period
from antiphon.store.base import EntryStore
from antiphon.telemetry.logs import record

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
        self._unread: tuple[Limit, ...] = ()
        """The limits of the last read, if it failed."""
        self._is_retrying = False

    @property
    def can_read(self) -> bool:
        """Whether the last read succeeded."""
        return not self._unread

    async def retry(self) -> None:
        """Reads again what could not be read, so that `can_read` becomes true without a request."""
        if self._unread and not self._is_retrying:
            self._is_retrying = True
            try:
                with suppress(LimitsUnavailable):
                    await self.read(self._unread)
            finally:
                self._is_retrying = False

    async def read(self, limits: Sequence[Limit]) -> SeedAmounts:
        """Reads the past usage of these limits. Raises LimitsUnavailable."""
        if self._seeder is None:
            return {}
        if self._failed_at is None or self._clock.monotonic() - self._failed_at > RETRY_PAUSE_S:
            try:
                seeds = await self._seeder(limits)
            except StoreUnavailable:
                self._failed_at, self._unread = self._clock.monotonic(), tuple(limits)
                record("limits_unread", logging.ERROR, limits=[limit.id for limit in limits])
            else:
                self._failed_at, self._unread = None, ()
                return seeds
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
        service_keys: Callable[[], Set[str]] = frozenset,
        started_ms: int | None = None,
    ) -> None:
        """`get_time` returns Unix seconds. `drain` writes all spooled entries into the ledger. `families`
        returns the id of the first key of its family for each rotated key. `service_keys` returns the ids of
        service keys, whose requests do not count for users. These three block, and raise StoreUnavailable.
        `started_ms`: when the coordinator started, in Unix milliseconds. Requests
        that ended later are not read from the ledger, because processes report them to the coordinator."""
        self._entries = entries
        self._get_time = get_time
        self._drain = drain
        self._families = families
        self._service_keys = service_keys
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
        has_user_limits = any(limit.subject is Subject.USER for limit in counted_limits)
        service_keys = self._service_keys() if has_user_limits else frozenset()
        now = self._get_time()
        queries: dict[tuple[Window | None, int | None], list[Limit]] = {}
        for limit in counted_limits:
            queries.setdefault((limit.window, self._find_upper_bound(limit, now)), []).append(limit)
        for (window, until_ms), limits_of_query in queries.items():
            if window in (None, Window.MINUTE):
                start_ms, period_ms = int(now * SECOND_MS) - SLIDING_WINDOW, 1
            else:
                start_ms, period_ms = find_period(window, now)[0] * SECOND_MS, HOUR_MS
            rows = self._entries.sum_usage(start_ms, period_ms, until_ms)
            for id_, at, amount in _match_rows(rows, limits_of_query, families, service_keys):
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


def _match_rows(
    rows: Iterable[UsedAmounts],
    limits: Sequence[Limit],
    families: Mapping[str, str],
    service_keys: Set[str],
) -> Iterable[tuple[str, float, int]]:
    """Yields limit id, Unix seconds and amount, for each row and each limit that counts it."""
    by_target: dict[tuple[Subject, str | None], list[Limit]] = {}
    for limit in limits:
        target = limit.target
        if limit.subject is Subject.KEY:
            target = families.get(target, target)
        by_target.setdefault((limit.subject, target), []).append(limit)
    for row in rows:
        targets: list[tuple[Subject, str | None]] = [
            (Subject.KEY, families.get(row.key, row.key)),
            (Subject.PROJECT, row.project),
            (Subject.MODEL, row.model),
        ]
        if row.key not in service_keys:  # as in `RuleSet` of `pipeline.rules`
            targets.append((Subject.USER, row.user))
        used = row.amounts.index_by_measure()
        row_limits = chain.from_iterable(by_target.get(target, ()) for target in targets)
        for limit in row_limits:
            if limit.models is None or matches((limit.models,), row.model):
                yield limit.id, row.at / SECOND_MS, used[limit.measure]
