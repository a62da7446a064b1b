"""Limits and the ledger in the pipeline: reserved before anything is made, settled and written once, whatever
happens."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from msgspec import structs

from antiphon.domain.collect import CollectedGeneration, collect
from antiphon.domain.context import Context, Origin
from antiphon.domain.events import (
    Event,
    EventGroup,
    Finished,
    FinishReason,
    ReasoningDelta,
    Started,
    TextDelta,
    Usage,
    UsageSource,
)
from antiphon.domain.identity import Actor, ActorKind
from antiphon.domain.ledger import ABORTED
from antiphon.domain.limits import Amounts, Limit, Measure, Window
from antiphon.domain.request import EmbeddingRequest, Embeddings, GenerationRequest, Output, RawPrompt
from antiphon.domain.values import replace
from antiphon.engines.registry import Model, ModelRegistry, ModelRoute
from antiphon.errors import (
    AntiphonError,
    BudgetExceeded,
    ContextLengthExceeded,
    EngineBusy,
    EngineDied,
    EngineUnavailable,
    LargerThanLimit,
    LedgerFull,
    PermissionDenied,
    RateLimited,
    UnsupportedParameter,
)
from antiphon.pipeline.run import Pipeline
from antiphon.telemetry.metrics import Metrics
from antiphon_testing import FakeClock, ScriptedAnswer, ScriptedEngine, flatten
from tests.support.accounting import PRICE, Books, ScriptedEmbedding, limit
from tests.support.http_server import LooseEngine

PROMPT = RawPrompt("hello")
"""Five tokens."""
PLAIN = ScriptedAnswer()
"""Three tokens."""
TEN = Output(max_tokens=10)
ACTOR = Actor(ActorKind.USER, "key-1", "project-1", "user-1")


class Bench:
    """A pipeline with accounting over one engine."""

    def __init__(self, books: Books, answer: Any = PLAIN) -> None:
        self.books = books
        self.engine = answer if isinstance(answer, ScriptedEngine) else ScriptedEngine(answer)
        self.metrics = Metrics()
        model = Model("m", (ModelRoute(self.engine, "scripted"),), 1)
        self.pipeline = Pipeline(ModelRegistry((model,)), self.metrics, 5.0, books.accounting)
        self.context = Context("req-1", clock=books.clock)

    @asynccontextmanager
    async def stream(self, output: Output = TEN) -> AsyncIterator[AsyncIterator[EventGroup]]:
        async with self.pipeline.run(
            GenerationRequest("m", (PROMPT,), output=output), self.context
        ) as events:
            yield events

    async def run(self, output: Output = TEN) -> CollectedGeneration:
        async with self.stream(output) as events:
            return await collect(events)

    async def refused(self, error: type[AntiphonError], output: Output = TEN) -> Any:
        with pytest.raises(error) as refusal:
            await self.run(output)
        return refusal.value


TOKENS = limit(Measure.TOKENS, 1000)
EVERYTHING = (
    limit(),
    limit(Measure.INPUT_TOKENS),
    limit(Measure.OUTPUT_TOKENS),
    limit(Measure.COST, 1_000_000, Window.DAY),
    limit(Measure.CONCURRENT, 5, None),
)


async def test_what_was_really_used_counts_in_the_end():
    at = Bench(Books(*EVERYTHING))
    await at.run()
    cost = 5 + 3 * 10
    assert await at.books.used() == [1, 5, 3, cost, 0]
    assert at.books.limiter.settled == [Amounts(1, 5, 3, cost)]
    assert at.metrics.cost == {("m", "USD"): cost}


async def test_prompt_output_and_cost_are_reserved_first():
    at = Bench(Books(*EVERYTHING), ScriptedAnswer(gate=asyncio.Event()))
    async with asyncio.TaskGroup() as group:
        task = group.create_task(at.run(Output(max_tokens=10, choices=2)))
        while not at.books.ledger.intents:
            await asyncio.sleep(0)
        assert await at.books.used() == [1, 5, 20, 5 + 20 * 10, 1]
        task.cancel()
    assert await at.books.used() == [1, 0, 0, 0, 0]


async def test_a_cost_limit_reserves_the_highest_possible_cost():
    price = replace(PRICE, cached=9_000_000)
    assert price.compute_max_cost(5, 10) == price.compute_cost(5, 5, 10) == 5 * 9 + 10 * 10
    assert PRICE.compute_max_cost(5, 10) == PRICE.compute_cost(5, 0, 10)
    for amount, passes in ((5 * 9 + 10 * 10, True), (5 * 9 + 10 * 10 - 1, False)):
        at = Bench(Books(limit(Measure.COST, amount, Window.DAY), prices=(price,)))
        if passes:
            await at.run()
        else:
            await at.refused(LargerThanLimit)


async def test_a_request_without_max_tokens_reserves_in_steps():
    at = Bench(Books(limit(Measure.OUTPUT_TOKENS)), ScriptedAnswer(texts=("a",) * 20))
    await at.run(Output())
    assert at.books.limiter.reserved == [Amounts(1, 5, 8, 80 + 5), Amounts(0, 0, 8, 80), Amounts(0, 0, 8, 80)]
    assert await at.books.used() == [20]


async def test_what_is_left_of_the_most_is_no_whole_step():
    at = Bench(Books(limit(Measure.OUTPUT_TOKENS, 3000), step=1500), ScriptedAnswer(texts=("a",) * 1600))
    await at.run(Output())
    assert [more.output_tokens for more in at.books.limiter.reserved] == [1500, 2048 - 5 - 1500]


async def hear(at: Bench, heard: list[Event]) -> None:
    async with at.stream(Output()) as events:
        async for event in flatten(events):
            heard.append(event)  # noqa: PERF401 - what came before an error stays


@pytest.mark.parametrize("window", [Window.MINUTE, Window.DAY])
async def test_a_stream_ends_when_its_limit_has_no_room_left(window):
    error = RateLimited if window is Window.MINUTE else BudgetExceeded
    at = Bench(Books(limit(Measure.OUTPUT_TOKENS, 21, window)), ScriptedAnswer(endless=True))
    heard: list[Event] = []
    with pytest.raises(error):
        await hear(at, heard)
    assert sum(isinstance(event, TextDelta) for event in heard) == 21
    assert not any(isinstance(event, Finished) for event in heard)
    entry = at.books.ledger.entry
    assert (entry.status, entry.output_tokens, entry.cost) == (error.code, 22, 5 + 220)
    assert at.metrics.refusals == {("key", "output_tokens", window): 1}


class OneGroupEngine(LooseEngine):
    """An engine whose events after Started all arrive in one group."""

    @asynccontextmanager
    async def stream(
        self, request: GenerationRequest, context: Context
    ) -> AsyncIterator[AsyncIterator[EventGroup]]:
        async def groups() -> AsyncIterator[EventGroup]:
            started, *others = [event async for event in self._create_events()]
            yield (started,)
            yield others

        yield groups()


@pytest.mark.parametrize("allowed", [9, 10, 11, 29])
async def test_a_group_of_events_is_passed_on_up_to_the_limit(allowed):
    async def events():
        yield Started(5)
        for _ in range(30):
            yield TextDelta(0, "a", 1)
        yield Finished(0, FinishReason.STOP)
        yield Usage(5, 30)

    at = Bench(Books(limit(Measure.OUTPUT_TOKENS, allowed, Window.DAY)), OneGroupEngine(events))
    heard: list[Event] = []
    with pytest.raises(BudgetExceeded):
        await hear(at, heard)
    assert sum(isinstance(event, TextDelta) for event in heard) == allowed
    assert at.books.ledger.entry.output_tokens == allowed + 1


async def heard_by(at: Bench, first: int, limits: tuple[Limit, ...]) -> int:
    """Pieces of a stream without end or until it is refused, whose limits are others after so many of
    them."""
    pieces = 0
    with suppress(RateLimited, BudgetExceeded, LargerThanLimit):
        async with at.stream(Output()) as events:
            async for event in flatten(events):
                pieces += isinstance(event, TextDelta)
                if pieces == first:
                    at.books.rulebook.update(limits, (PRICE,))
                if pieces == 100:
                    break
    return pieces


async def test_a_running_stream_obeys_changed_limits():
    def books() -> Books:
        return Books(limit(Measure.OUTPUT_TOKENS, 21), limit(Measure.REQUESTS, 1))

    def of(amount: int) -> Limit:
        return limit(Measure.OUTPUT_TOKENS, amount)

    first = limit(Measure.REQUESTS, 1)
    assert await heard_by(Bench(books(), ScriptedAnswer(endless=True)), 10, (of(21), first)) == 21
    assert await heard_by(Bench(books(), ScriptedAnswer(endless=True)), 10, (of(1_000), first)) == 100
    assert await heard_by(Bench(books(), ScriptedAnswer(endless=True)), 10, (of(16), first)) == 16
    assert (
        await heard_by(Bench(books(), ScriptedAnswer(endless=True)), 10, (of(1), first)) == 16
    )  # what is granted is made
    assert await heard_by(Bench(books(), ScriptedAnswer(endless=True)), 10, (first,)) == 100
    assert await heard_by(Bench(books(), ScriptedAnswer(endless=True)), 10, ()) == 100
    added = limit(Measure.OUTPUT_TOKENS, 5, name="added")
    assert (
        await heard_by(Bench(books(), ScriptedAnswer(endless=True)), 10, (of(1_000), first, added)) == 100
    )  # for those that begin later


async def test_removing_one_limit_keeps_a_streams_other_counts():
    day = limit(Measure.OUTPUT_TOKENS, 1_000, Window.DAY)
    at = Bench(Books(limit(Measure.OUTPUT_TOKENS, 21), day), ScriptedAnswer(endless=True))
    assert await heard_by(at, 10, (day,)) == 100
    assert at.books.ledger.entry.output_tokens == 100
    assert await at.books.used() == [21, 100]


async def test_a_request_across_a_currency_change_has_no_price():
    """Costs are summed, so there are none of two currencies."""
    at = Bench(Books(limit(Measure.COST, 1_000_000, Window.DAY)), ScriptedAnswer(texts=("a",) * 4))
    async with at.stream() as events:
        async for _ in events:
            euro = replace(PRICE, id="price-2", currency="EUR", since=2**40)
            at.books.rulebook.update(at.books.limits, (replace(PRICE, until=1), euro))
    entry = at.books.ledger.entry
    assert (entry.status, entry.price, entry.currency, entry.cost) == ("ok", None, "", 0)
    assert (entry.prompt_tokens, entry.output_tokens) == (5, 4)
    assert await at.books.used() == [0] and not at.metrics.cost


async def test_an_answer_may_use_the_last_token_of_a_limit():
    at = Bench(Books(limit(Measure.OUTPUT_TOKENS, 8)), ScriptedAnswer(texts=("a",) * 8))
    assert (await at.run(Output())).usage.completion_tokens == 8


async def test_a_limit_smaller_than_a_step_gives_what_it_has():
    at = Bench(Books(limit(Measure.OUTPUT_TOKENS, 5)), ScriptedAnswer(texts=("a",) * 5))
    assert (await at.run(Output())).usage.completion_tokens == 5
    refusal = await at.refused(LargerThanLimit, Output(max_tokens=6))
    assert "6 output tokens" in refusal.message


@pytest.mark.parametrize(
    ("limits", "error", "kind"),
    [
        (limit(amount=0), LargerThanLimit, ("key", "requests", "minute")),
        (limit(Measure.TOKENS, 13), LargerThanLimit, ("key", "tokens", "minute")),
        (limit(Measure.COST, 100, Window.MONTH), LargerThanLimit, ("key", "cost", "month")),
        (limit(Measure.CONCURRENT, 0, None), AntiphonError, ("key", "concurrent", "at once")),
    ],
)
async def test_a_refused_request_leaves_no_trace(limits, error, kind):
    at = Bench(Books(limits, limit(name="other")))
    await at.refused(error)
    assert await at.books.used() == [0, 0]
    assert at.books.ledger.intents == {} and at.metrics.refusals == {kind: 1}
    assert all(record.events == 0 for record in at.engine.streams)


async def test_the_second_request_finds_what_the_first_one_used():
    at = Bench(Books(limit(Measure.TOKENS, 20)))
    await at.run()
    error = await at.refused(RateLimited)
    assert at.context.progress.limit_statuses[0].remaining == 12 and error.retry_after == pytest.approx(
        60, abs=1
    )
    at.books.clock.advance(61)
    await at.run()


async def test_what_is_refused_for_its_shape_costs_nothing():
    at = Bench(Books(limit(), TOKENS))
    await at.refused(UnsupportedParameter, Output(max_tokens=10, prompt_logprobs=1))
    assert await at.books.used() == [0, 0] and at.books.ledger.intents == {}


async def test_repeated_refusals_come_before_rendering():
    at = Bench(Books(limit(amount=1)))
    await at.run()
    await at.refused(RateLimited)
    assert at.engine.prepared == 2
    await at.refused(RateLimited)
    assert at.engine.prepared == 2 and await at.books.used() == [1]
    at.books.clock.advance(61)
    await at.run()
    assert at.books.limiter.calls[-2:] == ["reserve", "settle"]


async def test_a_prompt_that_does_not_fit_costs_nothing():
    at = Bench(Books(limit(), TOKENS))
    request = GenerationRequest("m", (RawPrompt("x" * 5000),))
    with pytest.raises(ContextLengthExceeded):
        async with at.pipeline.run(request, at.context) as events:
            await collect(events)
    assert await at.books.used() == [0, 0] and at.books.limiter.calls == []


async def test_no_limit_costs_no_call_of_the_limiter():
    at = Bench(Books(limit(key="somebody else"), limit(Measure.OUTPUT_TOKENS, 1, key="another")))
    await at.run(Output())
    assert at.books.limiter.calls == [] and at.books.ledger.entry.status == "ok"


# --- the entry ----------------------------------------------------------------------------------------------


async def test_an_entry_says_all_that_is_known():
    async def events() -> AsyncIterator[Event]:
        assert at.context.progress.attempts == 1
        at.books.clock.advance(0.5)
        yield Started(7, 3, queued=0.25)
        yield ReasoningDelta(0, "hm", 2)
        yield TextDelta(0, "yes", 1)
        yield Finished(0, FinishReason.STOP, 1)
        at.books.clock.advance(1.0)
        yield Usage(7, 4, 3, 2)

    at = Bench(Books(prices=(PRICE,)), LooseEngine(events))  # type: ignore[arg-type]
    origin = Origin("openai", "/v1/chat/completions", "somebody", {"team": "blue"})
    at.context = structs.replace(at.context, actor=ACTOR, origin=origin)
    before = at.books.clock.wall()
    await at.run()
    entry = at.books.ledger.entry
    assert entry.id != entry.request_id == "req-1" and entry.at == int(before * 1000)
    assert (entry.project, entry.key, entry.user) == ("project-1", "key-1", "user-1")
    assert (entry.dialect, entry.operation) == ("openai", "/v1/chat/completions")
    assert (entry.asked, entry.model, entry.engine, entry.adapter) == ("m", "m", "scripted", None)
    assert (entry.prompt_tokens, entry.cached_tokens) == (7, 3)
    assert (entry.output_tokens, entry.reasoning_tokens) == (4, 2)
    assert (entry.source, entry.status, entry.attempts) == (UsageSource.ENGINE, "ok", 1)
    assert (entry.price, entry.currency, entry.cost) == ("price-1", "USD", PRICE.compute_cost(7, 3, 4))
    assert (entry.queue_ms, entry.ttft_ms, entry.total_ms) == (250, 500, 1500)
    assert (entry.end_user, dict(entry.tags), entry.parent) == ("somebody", {"team": "blue"}, None)


async def test_the_intent_holds_what_stands_if_nothing_more_is_heard():
    at = Bench(Books())
    await at.run()
    (intent,) = at.books.ledger.intents.values()
    assert (intent.status, intent.source) == (ABORTED, UsageSource.ESTIMATED)
    assert (intent.prompt_tokens, intent.output_tokens, intent.cost) == (5, 0, 5)


async def test_intent_precedes_events_and_completion_the_end():
    books = Books()

    async def events() -> AsyncIterator[Event]:
        assert len(books.ledger.intents) == 1
        yield Started(5)
        yield TextDelta(0, "a", 1)
        yield Finished(0, FinishReason.STOP)
        yield Usage(5, 1)

    at = Bench(books, LooseEngine(events))  # type: ignore[arg-type]
    async with at.stream() as told:
        async for event in flatten(told):
            assert not books.ledger.entries or isinstance(event, Usage)
        assert books.ledger.entry.status == "ok"


# --- however it ends ----------------------------------------------------------------------------------------


async def left_at(at: Bench, wanted: type[Event] | None) -> None:
    async with at.stream(Output(max_tokens=50)) as events:
        async for event in flatten(events):
            if wanted is not None and isinstance(event, wanted):
                break


@pytest.mark.parametrize("wanted", [Started, TextDelta])
async def test_a_caller_that_leaves_pays_for_what_was_made(wanted):
    at = Bench(Books(*EVERYTHING), ScriptedAnswer(endless=True))
    await left_at(at, wanted)
    made = 1 if wanted is TextDelta else 0
    entry = at.books.ledger.entry
    assert (entry.status, entry.prompt_tokens, entry.output_tokens) == ("cancelled", 5, made)
    assert await at.books.used() == [1, 5, made, 5 + 10 * made, 0]


async def test_a_caller_that_leaves_the_queue_pays_for_no_token():
    at = Bench(Books(*EVERYTHING), ScriptedAnswer(gate=asyncio.Event()))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await at.run()
    entry = at.books.ledger.entry
    assert (entry.status, entry.prompt_tokens, entry.cost) == ("cancelled", 0, 0)
    assert await at.books.used() == [1, 0, 0, 0, 0]


async def test_a_deadline_that_passes_is_an_entry_of_its_own_kind():
    at = Bench(Books(*EVERYTHING), ScriptedAnswer(endless=True))
    at.context = structs.replace(at.context, deadline=at.books.clock.monotonic() + 5)
    async with at.stream(Output(max_tokens=50)) as events:
        async for event in flatten(events):
            if isinstance(event, TextDelta):
                at.books.clock.advance(5)
                break
    assert at.books.ledger.entry.status == "deadline_exceeded" and (await at.books.used())[4] == 0


@pytest.mark.parametrize("after", [None, 2])
async def test_an_engine_that_fails_leaves_an_entry_with_its_error(after):
    at = Bench(Books(*EVERYTHING), ScriptedAnswer(error=EngineDied("gone"), error_after=after))
    await at.refused(EngineDied)
    entry = at.books.ledger.entry
    assert (entry.status, entry.output_tokens) == ("engine_died", after or 0)
    assert await at.books.used() == [1, 5 if after else 0, after or 0, 25 if after else 0, 0]


async def test_a_retried_request_has_one_entry_and_reservation():
    left: list[AntiphonError] = [
        EngineBusy("full"),
        EngineUnavailable("restarting"),
        EngineUnavailable("again"),
    ]

    def answer(_request: GenerationRequest) -> ScriptedAnswer:
        return ScriptedAnswer(error=left.pop()) if len(left) > 1 else ScriptedAnswer()

    at = Bench(Books(*EVERYTHING), answer)
    await at.run()
    entry = at.books.ledger.entry
    assert (entry.status, entry.attempts) == ("ok", 3)
    assert at.books.limiter.calls == ["reserve", "settle"]
    assert await at.books.used() == [1, 5, 3, 35, 0]


async def test_a_later_route_extends_what_was_reserved_at_its_price():
    dear = replace(PRICE, id="price-2", models="dear/m", input=3_000_000, output=30_000_000)
    at = Bench(Books(*EVERYTHING, prices=(PRICE, dear)))
    lost = ScriptedEngine(ScriptedAnswer(error=EngineUnavailable("gone")))
    routes = (ModelRoute(lost, "llama"), ModelRoute(at.engine, "vendor", "dear/m"))
    at.pipeline = replace(at.pipeline, models=ModelRegistry((Model("m", routes, 1),)))
    await at.run()
    entry = at.books.ledger.entry
    assert at.books.limiter.reserved == [Amounts(1, 5, 10, 105), Amounts(0, 0, 0, 2 * 105)]
    assert (entry.model, entry.engine, entry.price, entry.attempts) == ("m", "vendor", "price-2", 2)
    assert await at.books.used() == [1, 5, 3, 3 * 35, 0]


async def test_a_full_ledger_admits_nothing():
    at = Bench(Books(*EVERYTHING))
    at.books.ledger.has_room = False
    await at.refused(LedgerFull)
    assert await at.books.used() == [0, 0, 0, 0, 0] and at.books.ledger.intents == {}
    assert all(record.events == 0 for record in at.engine.streams)


async def test_an_unwritten_completion_fails_the_request_and_settles():
    at = Bench(Books(*EVERYTHING))
    at.books.ledger.can_end = False
    await at.refused(LedgerFull)
    assert await at.books.used() == [1, 5, 3, 35, 0]
    assert at.metrics.ended_generations == {("m", "ledger_full"): 1}


async def test_an_error_is_not_hidden_by_an_end_that_cannot_be_written():
    at = Bench(Books(*EVERYTHING), ScriptedAnswer(error=EngineDied("gone")))
    at.books.ledger.can_end = False
    await at.refused(EngineDied)
    assert (await at.books.used())[0] == 1


async def test_fifty_requests_at_once_find_room_for_ten():
    at = Bench(Books(limit(Measure.TOKENS, 150, Window.DAY)))
    outcomes = await asyncio.gather(*(at.run() for _ in range(50)), return_exceptions=True)
    whole = [each for each in outcomes if isinstance(each, CollectedGeneration)]
    assert len(whole) == 10 and all(
        isinstance(each, CollectedGeneration | BudgetExceeded) for each in outcomes
    )
    assert await at.books.used() == [80] and len(at.books.ledger.entries) == 10


# --- vectors ------------------------------------------------------------------------------------------------


class Embedding(ScriptedEngine):
    """Makes vectors of seven tokens, or fails."""

    def __init__(self, error: BaseException | None = None, made: int = 0) -> None:
        """`made`: tokens of what was made when it failed."""
        super().__init__()
        self._error = error
        self._made = made

    async def prepare_embedding(self, request: EmbeddingRequest, context: Context) -> ScriptedEmbedding:
        return ScriptedEmbedding(self._embed)

    async def _embed(self, context: Context) -> Embeddings:
        context.progress.report.embedded_tokens += self._made
        if self._error is not None:
            raise self._error
        return Embeddings(bytes(16), 2, 7)


async def embed(at: Bench) -> Embeddings:
    return await at.pipeline.embed(EmbeddingRequest("m", (PROMPT,)), at.context)


async def test_vectors_are_reserved_written_and_settled_too():
    at = Bench(Books(*EVERYTHING), Embedding())
    await embed(at)
    entry = at.books.ledger.entry
    assert (entry.status, entry.prompt_tokens, entry.output_tokens, entry.cost) == ("ok", 7, 0, 7)
    assert await at.books.used() == [1, 7, 0, 7, 0]


async def test_vectors_beyond_a_limit_are_refused_without_a_trace():
    at = Bench(Books(limit(), limit(Measure.INPUT_TOKENS, 5)), Embedding())
    with pytest.raises(LargerThanLimit):
        await embed(at)
    assert await at.books.used() == [0, 0] and at.books.ledger.intents == {}


async def test_vectors_cut_midway_count_what_was_made():
    for error in (EngineDied("gone"), asyncio.CancelledError()):
        at = Bench(Books(*EVERYTHING), Embedding(error, made=3))
        with pytest.raises(type(error)):
            await embed(at)
        assert (at.books.ledger.entry.prompt_tokens, at.books.ledger.entry.cost) == (3, 3)
        assert await at.books.used() == [1, 3, 0, 3, 0]


async def test_vectors_that_fail_or_cannot_be_written_are_errors():
    at = Bench(Books(*EVERYTHING), Embedding(EngineDied("gone")))
    with pytest.raises(EngineDied):
        await embed(at)
    assert at.books.ledger.entry.status == "engine_died"
    at = Bench(Books(*EVERYTHING), Embedding())
    at.books.ledger.can_end = False
    with pytest.raises(LedgerFull):
        await embed(at)
    assert await at.books.used() == [1, 7, 0, 7, 0] and at.metrics.embeddings == {("m", "ledger_full"): 1}


async def test_a_cost_limit_refuses_vectors_without_a_price():
    at = Bench(Books(limit(Measure.COST, 100, Window.DAY), prices=()), Embedding())
    with pytest.raises(PermissionDenied, match="has no price"):
        await embed(at)
    assert at.books.limiter.calls == [] and at.books.ledger.intents == {}


async def test_a_price_that_begins_and_one_that_ends_hold_without_any_change():
    now = int(FakeClock().wall())
    later = replace(PRICE, id="price-2", since=now + 60, until=now + 120, output=20_000_000)
    books = Books(prices=(replace(PRICE, until=now + 60), later))
    at = Bench(books)
    prices = []
    for _ in range(3):
        await at.run()
        prices.append(list(books.ledger.entries.values())[-1])
        books.clock.advance(60)
    assert [(entry.price, entry.cost) for entry in prices] == [("price-1", 35), ("price-2", 65), (None, 0)]
    assert len(at.pipeline.plans) == 1


async def test_a_budget_has_room_again_when_its_window_ends():
    at = Bench(Books(limit(Measure.REQUESTS, 1, Window.DAY)))
    await at.run()
    await at.refused(BudgetExceeded)
    at.books.clock.advance(24 * 3600)
    await at.run()
    assert len(at.pipeline.plans) == 1
