"""Accounting for tests: the exact limiter of one process, and a ledger in memory."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from antiphon.domain.context import Context, EngineReport
from antiphon.domain.ledger import Entry
from antiphon.domain.limits import Amounts, Limit, LimitStatus, Measure, Subject, Window
from antiphon.domain.prices import Price
from antiphon.domain.request import Embeddings
from antiphon.engines.base import RequestSize
from antiphon.errors import LedgerFull, RequestError
from antiphon.limits.base import Limiter
from antiphon.limits.local import LocalLimiter
from antiphon.pipeline.rules import Accounting, LimitIndex
from antiphon_testing import FakeClock, ScriptedAnswer
from tests.support.http_server import Served, serving

PRICE = Price("price-1", "*", "USD", since=0, input=1_000_000, output=10_000_000, cached=500_000)
"""One nano-unit per prompt token, ten per output token."""


@dataclass
class ScriptedEmbedding:
    """A `PreparedEmbedding` whose vectors come from `make`."""

    make: Callable[[Context], Awaitable[Embeddings]]
    size: RequestSize = field(default_factory=lambda: RequestSize(7, 0))
    report: EngineReport = field(default_factory=EngineReport)

    async def embed(self, context: Context) -> Embeddings:
        return await self.make(context)


@dataclass
class MemoryLedger:
    """Stores intents and completions, and asserts their order."""

    intents: dict[str, Entry] = field(default_factory=dict)
    entries: dict[str, Entry] = field(default_factory=dict)
    has_room: bool = True
    can_end: bool = True

    def begin(self, intent: Entry) -> None:
        if not self.has_room:
            raise LedgerFull("no room")
        assert intent.id not in self.intents, "an intent is written once"
        self.intents[intent.id] = intent

    def complete(self, entry: Entry) -> None:
        assert entry.id in self.intents, "an intent comes before its completion"
        assert entry.id not in self.entries, "a completion is written once"
        if not self.can_end:
            raise LedgerFull("the disk is full")
        self.entries[entry.id] = entry

    @property
    def entry(self) -> Entry:
        """The only entry."""
        assert len(self.intents) == 1
        (entry,) = self.entries.values()
        return entry


class CountingLimiter:
    """A limiter that records the calls to another limiter."""

    def __init__(self, inner: Limiter) -> None:
        self._inner = inner
        self.calls: list[str] = []
        self.reserved: list[Amounts] = []
        """The amounts of `reserve` and `extend`."""
        self.settled: list[Amounts] = []
        self.on_refusal: Callable[[], None] = lambda: None
        """Called at each refusal."""

    async def reserve(self, claim: str, limits: Sequence[Limit], amounts: Amounts) -> tuple[LimitStatus, ...]:
        self.calls.append("reserve")
        self.reserved.append(amounts)
        try:
            return await self._inner.reserve(claim, limits, amounts)
        except RequestError:
            await asyncio.to_thread(self.on_refusal)
            raise

    async def extend(self, claim: str, limits: Sequence[Limit], amounts: Amounts) -> tuple[LimitStatus, ...]:
        self.calls.append("extend")
        self.reserved.append(amounts)
        return await self._inner.extend(claim, limits, amounts)

    def settle(self, claim: str, amounts: Amounts, ended_ms: int | None = None) -> None:
        self.calls.append("settle")
        self.settled.append(amounts)
        self._inner.settle(claim, amounts, ended_ms)

    def release_place(self, claim: str) -> None:
        self.calls.append("release_place")
        self._inner.release_place(claim)

    async def read_status(self, limits: Sequence[Limit]) -> tuple[LimitStatus, ...]:
        return await self._inner.read_status(limits)

    async def aclose(self) -> None:
        await self._inner.aclose()


class Books:
    """Limits, prices and a ledger of one test."""

    def __init__(self, *limits: Limit, prices: Sequence[Price] = (PRICE,), step: int = 8) -> None:
        self.limits = limits
        self.clock = FakeClock()
        self.limiter = CountingLimiter(LocalLimiter(self.clock))
        self.ledger = MemoryLedger()
        self.rulebook = LimitIndex()
        self.rulebook.update(limits, tuple(prices))
        self.accounting = Accounting(self.limiter, self.ledger, self.rulebook, step)

    async def used(self) -> list[int]:
        """Returns the used amount of each limit."""
        statuses = await self.limiter.read_status(self.limits)
        return [status.limit.amount - status.remaining for status in statuses]


def limit(
    measure: Measure = Measure.REQUESTS,
    amount: int = 1000,
    window: Window | None = Window.MINUTE,
    *,
    key: str = "anonymous",
    name: str = "",
) -> Limit:
    """Builds a limit of a key."""
    return Limit(name or f"limit-{measure}-{window}", Subject.KEY, key, measure, amount, 0, window)


@asynccontextmanager
async def limited(
    *limits: Limit, answer: ScriptedAnswer | None = None, step: int = 8, **settings: Any
) -> AsyncIterator[tuple[Served, Books]]:
    """A server with accounting."""
    books = Books(*limits, step=step)
    async with serving(answer, accounting=books.accounting, **settings) as served:
        yield served, books
