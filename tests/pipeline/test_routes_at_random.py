"""Many requests over three routes that fail at random: nothing is lost, and nothing is counted twice."""

import asyncio
from collections import Counter
from random import Random

import pytest

from antiphon.domain.collect import collect
from antiphon.domain.context import Context
from antiphon.domain.limits import Measure, Window
from antiphon.domain.request import GenerationRequest
from antiphon.errors import (
    AntiphonError,
    EngineBusy,
    EngineUnavailable,
    ProviderBroken,
    ProviderFailed,
    ProviderRateLimited,
    ProviderRefused,
    ProviderTimeout,
    ProviderUnavailable,
)
from antiphon_testing import ScriptedAnswer
from antiphon_testing.scripted_engine import StreamEnding
from tests.support.accounting import Books, limit
from tests.support.routing import HELLO, RouteBench, build_bench, build_route, get_route_engine

AT_ONCE = 40
FAILURES = (ProviderFailed, ProviderUnavailable, ProviderTimeout, EngineBusy, EngineUnavailable)


class RandomRoutes:
    """Three routes that fail, break, refuse and stall at random, and callers that leave at random."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.books = Books(limit(amount=10**6, window=Window.DAY), limit(Measure.CONCURRENT, AT_ONCE, None))
        routes = (
            build_route("a", weight=2),
            build_route("b", in_flight_limit=AT_ONCE // 2),
            build_route("c", order=2),
        )
        self.bench: RouteBench = build_bench(*routes, books=self.books, patience=0.2)
        for route in routes:
            get_route_engine(route).answer = self.answer
        self.ended: Counter[str] = Counter()

    def answer(self, _request: GenerationRequest) -> ScriptedAnswer:
        """Chooses what becomes of one attempt."""
        self.bench.clock.advance(self.random.random() * 0.05)
        chance = self.random.random()
        if chance < 0.35:
            return ScriptedAnswer(error=self.random.choice(FAILURES)("no"))
        if chance < 0.4:
            return ScriptedAnswer(error=ProviderRateLimited("slow down", retry_after=0.3))
        if chance < 0.45:
            return ScriptedAnswer(error=ProviderBroken("torn"), error_after=self.random.randrange(3))
        if chance < 0.5:
            return ScriptedAnswer(error=ProviderRefused("wrong"))
        return ScriptedAnswer()

    async def ask(self, places: asyncio.Semaphore) -> None:
        """Sends one request. One of twenty callers leaves after the first events."""
        context = Context("req", clock=self.bench.clock)
        leaves = self.random.random() < 0.05
        async with places:
            self.bench.clock.advance(0.05)
            try:
                async with self.bench.pipeline.run(HELLO, context) as events:
                    await (anext(aiter(events)) if leaves else collect(events))
                self.ended["cancelled" if leaves else "ok"] += 1
            except AntiphonError as error:
                self.ended[error.code if context.progress.attempts else "not admitted"] += 1
        assert context.progress.attempts <= 3 or any(
            each.error == EngineUnavailable.code for each in context.progress.tries
        )


@pytest.mark.parametrize(
    ("requests", "seed"),
    [(300, 0), *(pytest.param(1000, seed, marks=pytest.mark.soak) for seed in range(1, 31))],
)
async def test_no_request_is_lost_or_counted_twice(requests, seed):
    at = RandomRoutes(seed)
    places = asyncio.Semaphore(AT_ONCE)
    async with asyncio.TaskGroup() as group:
        for _ in range(requests):
            group.create_task(at.ask(places))

    rows = list(at.books.ledger.entries.values())
    assert at.ended.total() == requests and set(at.ended) >= {"ok", "cancelled", "provider_stream_broken"}
    assert len(at.books.ledger.intents) == len(rows) == requests - at.ended["not admitted"]
    assert +Counter(row.status for row in rows) == +Counter(
        {status: count for status, count in at.ended.items() if status != "not admitted"}
    )
    assert await at.books.used() == [len(rows), 0]
    assert at.books.limiter.calls.count("settle") == requests - at.ended["not admitted"]

    streams = [stream for route in at.bench.routes for stream in get_route_engine(route).streams]
    assert sum(row.attempts for row in rows) == len(streams)
    assert all(stream.ending is not StreamEnding.OPEN for stream in streams)
    assert all(route.state.in_flight == 0 and not route.state.is_probed for route in at.bench.routes)
    assert sum(at.bench.list_outcomes().values()) == len(streams)
    assert sum(row.output_tokens for row in rows if row.status == "ok") == 3 * at.ended["ok"]
