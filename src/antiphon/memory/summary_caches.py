"""Where summaries are kept: in the database where keys are on, otherwise in the memory of the process."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence

from antiphon.domain.context import Clock, SystemClock
from antiphon.domain.memory import KeptSummary
from antiphon.errors import StoreUnavailable
from antiphon.store.base import SummaryStore
from antiphon.telemetry.logs import record

DAY_S = 86_400

MOST_KEPT, DAYS = 1_000, 30
"""Summaries that are kept, and for how many days, where no setting tells."""


class ProcessSummaries:
    """A `SummaryCache` in memory. The summary that was not used for the longest time goes first."""

    def __init__(self, most: int = MOST_KEPT, days: int = DAYS, clock: Clock | None = None) -> None:
        """`most`: number of summaries. `days`: how long each is kept."""
        self._most = most
        self._seconds = days * DAY_S
        self._clock = clock or SystemClock()
        self._kept: OrderedDict[tuple[str, str], tuple[float, str]] = OrderedDict()
        """The Unix time at which each expires, and its text."""

    async def find(self, project: str, digests: Sequence[str]) -> Mapping[str, str]:
        now, found = self._clock.wall(), {}
        for digest in digests:
            expires, text = self._kept.get((project, digest), (0.0, ""))
            if expires > now:
                self._kept.move_to_end((project, digest))
                found[digest] = text
        return found

    async def keep(self, project: str, digest: str, text: str, at: int) -> None:
        self._kept[project, digest] = (self._clock.wall() + self._seconds, text)
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)


class StoredSummaries:
    """A `SummaryCache` in the database. Its statements run in threads."""

    def __init__(self, store: SummaryStore, most: int, days: int, clock: Clock) -> None:
        """`most`: summaries of each project. `days`: how long each is kept."""
        self._store = store
        self._most = most
        self._seconds = days * DAY_S
        self._clock = clock

    async def find(self, project: str, digests: Sequence[str]) -> Mapping[str, str]:
        if not self._most:
            return {}
        now = int(self._clock.wall())
        try:
            return await asyncio.to_thread(self._store.find, project, digests, now)
        except StoreUnavailable as error:
            record("summaries_unavailable", logging.WARNING, reason=error.message)
            return {}

    async def keep(self, project: str, digest: str, text: str, at: int) -> None:
        if not self._most:
            return
        expires = int(self._clock.wall()) + self._seconds
        summary = KeptSummary(digest, project, at, expires, text)
        try:
            await asyncio.to_thread(self._store.keep, summary, self._most)
        except StoreUnavailable as error:
            record("summaries_unavailable", logging.WARNING, reason=error.message)
