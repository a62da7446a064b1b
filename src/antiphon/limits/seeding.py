"""What the ledger knows of limits whose counters are not there: after a start, and for a new limit."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from antiphon.domain.context import Clock
from antiphon.domain.identity import matches
from antiphon.domain.ledger import Used
from antiphon.domain.limits import Limit, Measure, Subject, Window
from antiphon.errors import LimitsUnavailable, StoreUnavailable
from antiphon.limits.periods import period
from antiphon.limits.windows import BUCKETS, WINDOW
from antiphon.store.base import EntryStore

SECOND = 1_000
"""Milliseconds."""
HOUR = 3600 * SECOND
"""Grain of periods of the calendar, which all begin with one."""
MINUTE = WINDOW // 1_000_000 * (BUCKETS + 1) // BUCKETS
"""Milliseconds that a window which slides may reach back."""
TOLD = 10 * SECOND
"""Milliseconds in which every process has told a coordinator that began what ran and what ended since."""
PATIENCE_S = 1.0
"""Seconds in which a ledger that did not answer is not asked again."""

Taken = Mapping[str, Sequence[tuple[float, int]]]
"""By the id of a limit: moments in Unix seconds, and how much was taken of it then."""
Seeds = Callable[[Sequence[Limit]], Awaitable[Taken]]
"""What was taken of limits up to now, in the window that holds now. Raises StoreUnavailable."""


class Asking:
    """Asks for what was taken, but not at once again where nobody could say."""

    def __init__(self, seeds: Seeds | None, clock: Clock, opens: bool) -> None:
        """`seeds`: None knows of nothing. `opens`: whether nothing counts as taken where nobody can say."""
        self._seeds = seeds
        self._clock = clock
        self._opens = opens
        self._failed: float | None = None

    async def taken(self, limits: Sequence[Limit]) -> Taken:
        """What was taken of these limits. Raises LimitsUnavailable."""
        if self._seeds is None:
            return {}
        if self._failed is None or self._clock.monotonic() - self._failed > PATIENCE_S:
            try:
                return await self._seeds(limits)
            except StoreUnavailable:
                self._failed = self._clock.monotonic()
        if self._opens:
            return {}
        raise LimitsUnavailable(
            "nobody knows how much of a limit is used: the ledger cannot be read; try again", retry_after=1.0
        )


class LedgerSeeds:
    """`Seeds` over the ledger's rows, which are read in a thread of its own."""

    def __init__(
        self,
        entries: EntryStore,
        clock: Callable[[], float],
        drained: Callable[[], object] | None = None,
        families: Callable[[], Mapping[str, str]] = dict,
        began: int | None = None,
    ) -> None:
        """`clock`: Unix seconds. `drained` puts what is written down and not in the ledger yet into it.
        `families` gives, by the id of each key that succeeds another, the id of the first. Both block, and
        raise StoreUnavailable. `began`: Unix milliseconds when counting began; what ended later is told by
        the processes in which it ran, and is not read."""
        self._entries = entries
        self._clock = clock
        self._drained = drained
        self._families = families
        self._began = began
        self._thread = ThreadPoolExecutor(1, "antiphon-seeds")

    async def __call__(self, limits: Sequence[Limit]) -> Taken:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._taken, limits)

    def close(self) -> None:
        """Waits for what is being read."""
        self._thread.shutdown()

    def _taken(self, limits: Sequence[Limit]) -> Taken:
        counting = [limit for limit in limits if limit.measure is not Measure.CONCURRENT]
        if not counting:
            return {}
        if self._drained is not None:
            self._drained()
        taken: dict[str, list[tuple[float, int]]] = {}
        families = self._families()
        now = self._clock()
        queries: dict[tuple[Window | None, int | None], list[Limit]] = {}
        for limit in counting:
            queries.setdefault((limit.window, self._before(limit, now)), []).append(limit)
        for (window, before), concerned in queries.items():
            rows = self._entries.sum_usage(*_reach(window, now), before)
            for id_, at, amount in _found(rows, concerned, families):
                taken.setdefault(id_, []).append((at, amount))
        return taken

    def _before(self, limit: Limit, now: float) -> int | None:
        """The moment from which on requests with a limit are told and not read. Nobody tells of requests that
        began before there was the limit; and later, what was told has a counter."""
        began = self._began
        if began is None or now * SECOND >= began + TOLD or limit.created >= began // SECOND:
            return None
        return began


def _reach(window: Window | None, now: float) -> tuple[int, int]:
    """Unix milliseconds from which on a window counts, and the grain of the sums that it needs."""
    if window in (None, Window.MINUTE):
        return int(now * SECOND) - MINUTE, 1
    return period(window, now)[0] * SECOND, HOUR


def _found(
    rows: Iterable[Used], limits: Sequence[Limit], families: Mapping[str, str]
) -> Iterable[tuple[str, float, int]]:
    """What rows took of which limit, and when."""
    by_target: dict[tuple[Subject, str | None], list[Limit]] = {}
    for limit in limits:
        of_key = limit.subject is Subject.KEY
        target = families.get(limit.target, limit.target) if of_key else limit.target
        by_target.setdefault((limit.subject, target), []).append(limit)
    for row in rows:
        concerned = (limit for target in _targets(row, families) for limit in by_target.get(target, ()))
        for limit in concerned:
            if limit.models is None or matches((limit.models,), row.model):
                yield limit.id, row.at / SECOND, row.amounts.of(limit.measure)


def _targets(row: Used, families: Mapping[str, str]) -> Iterable[tuple[Subject, str | None]]:
    yield Subject.KEY, families.get(row.key, row.key)
    yield Subject.USER, row.user
    yield Subject.PROJECT, row.project
    yield Subject.MODEL, row.model
