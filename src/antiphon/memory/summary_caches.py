"""Caches of summaries, so that each summary of a growing conversation is written only once.

Summaries are kept in the database if keys are on, otherwise in the memory of the process.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Protocol

from antiphon.domain.context import Clock, SystemClock
from antiphon.domain.memory import KeptSummary
from antiphon.errors import StoreUnavailable
from antiphon.store.base import SummaryStore
from antiphon.telemetry.logs import record

DAY_S = 86_400

MOST_SUMMARIES = 1_000
"""The default of `ProcessSummaries` for the most summaries."""

DAYS = 30
"""The default of `ProcessSummaries` for the days that a summary is kept."""


class SummaryCache(Protocol):
    """Summaries of all projects, found by project and digest. A cache never fails a request: if it cannot
    read a summary, the summary is written again."""

    async def find(self, project: str, digests: Sequence[str]) -> Mapping[str, str]:
        """Returns the project's summaries that have these digests, by digest."""

    async def save(self, project: str, digest: str, text: str, requested_ms: int) -> None:
        """Saves a summary. `requested_ms`: the start of the request that needs the summary, in Unix
        milliseconds."""


class ProcessSummaries:
    """A `SummaryCache` in memory. If it is full, it drops the least recently used summary."""

    def __init__(
        self, most_summaries: int = MOST_SUMMARIES, lifetime_days: int = DAYS, clock: Clock | None = None
    ) -> None:
        """`most_summaries`: number of summaries. `lifetime_days`: days for which a summary is kept."""
        self._most_summaries = most_summaries
        self._lifetime_s = lifetime_days * DAY_S
        self._clock = clock or SystemClock()
        self._summaries: OrderedDict[tuple[str, str], tuple[float, str]] = OrderedDict()
        """By project and digest: the Unix time when the summary expires, and its text."""

    async def find(self, project: str, digests: Sequence[str]) -> Mapping[str, str]:
        now, texts = self._clock.wall(), {}
        for digest in digests:
            expires, text = self._summaries.get((project, digest), (0.0, ""))
            if expires > now:
                self._summaries.move_to_end((project, digest))
                texts[digest] = text
        return texts

    async def save(self, project: str, digest: str, text: str, requested_ms: int) -> None:
        self._summaries[project, digest] = (self._clock.wall() + self._lifetime_s, text)
        while len(self._summaries) > self._most_summaries:
            self._summaries.popitem(last=False)


class StoredSummaries:
    """A `SummaryCache` in the database. Its statements run in threads."""

    def __init__(self, store: SummaryStore, most_summaries: int, lifetime_days: int, clock: Clock) -> None:
        """`most_summaries`: number of summaries of each project. `lifetime_days`: how long a summary is
        kept."""
        self._store = store
        self._most_summaries = most_summaries
        self._lifetime_s = lifetime_days * DAY_S
        self._clock = clock

    async def find(self, project: str, digests: Sequence[str]) -> Mapping[str, str]:
        if not self._most_summaries:
            return {}
        now = int(self._clock.wall())
        try:
            return await asyncio.to_thread(self._store.find, project, digests, now)
        except StoreUnavailable as error:
            record("summaries_unavailable", logging.WARNING, reason=error.message)
            return {}

    async def save(self, project: str, digest: str, text: str, requested_ms: int) -> None:
        if not self._most_summaries:
            return
        expires = int(self._clock.wall()) + self._lifetime_s
        summary = KeptSummary(digest, project, requested_ms, expires, text)
        try:
            await asyncio.to_thread(self._store.add, summary, self._most_summaries)
        except StoreUnavailable as error:
            record("summaries_unavailable", logging.WARNING, reason=error.message)
