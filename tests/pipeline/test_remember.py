"""Memory strategies in the pipeline: what reaches the engine, what is refused, and what is reported."""

import pytest

from antiphon.domain.collect import collect
from antiphon.domain.context import Context
from antiphon.domain.memory import FittingTurns, LastMessages, LastTokens, MemoryReport
from antiphon.domain.messages import Message, Role
from antiphon.domain.request import Conversation, GenerationRequest, Output, Overflow, RawPrompt
from antiphon.engines.base import EngineState
from antiphon.engines.registry import Model, ModelRegistry, ModelRoute
from antiphon.errors import (
    ContextLengthExceeded,
    EngineUnavailable,
    InvalidValue,
    RateLimited,
    UnsupportedParameter,
)
from antiphon.pipeline.run import Pipeline
from antiphon.telemetry.metrics import Metrics
from antiphon_testing.scripted_engine import SCRIPTED_CONTEXT, FakeClock, ScriptedEngine
from tests.memory.conversations import places, talk
from tests.support.accounting import Books, limit

TALK = talk("s" + "ua" * 20 + "u")


class Bench:
    """A pipeline over scripted engines, each a route."""

    def __init__(self, *engines, accounting=None):
        self.engines = engines or (ScriptedEngine(),)
        routes = tuple(ModelRoute(each, name=f"r{at}", order=at) for at, each in enumerate(self.engines))
        models = ModelRegistry((Model("m", routes, 1),))
        self.pipeline = Pipeline(models, Metrics(), 1.0, accounting)
        self.context = Context("req-1", clock=FakeClock())

    async def run(self, memory, prompt=TALK, **fields):
        """The messages that the first engine generated from."""
        conversation = Conversation(prompt) if isinstance(prompt, tuple) else prompt
        request = GenerationRequest("m", (conversation,), memory=memory, **fields)
        async with self.pipeline.run(request, self.context) as events:
            await collect(events)
        (stream,) = [stream for engine in self.engines for stream in engine.streams]
        assert stream.request.memory is None
        return places(stream.request.prompts[0].messages)


async def tokens_of(messages):
    return len(await ScriptedEngine().encode(Conversation(messages)))


async def test_last_k_reaches_the_engine_and_is_reported():
    bench = Bench()
    assert await bench.run(LastMessages(3)) == [0, 39, 40, 41]
    assert bench.context.progress.memory == MemoryReport(kept=4, dropped=38)
    assert bench.engines[0].prepared == 1


async def test_without_a_strategy_nothing_is_reported():
    bench = Bench()
    assert len(await bench.run(None)) == 42
    assert bench.context.progress.memory is None


async def test_last_tokens_fills_its_budget_with_whole_turns():
    bench = Bench()
    budget = await tokens_of((TALK[0], *TALK[-5:]))
    assert await bench.run(LastTokens(budget)) == [0, 37, 38, 39, 40, 41]
    assert bench.context.progress.memory == MemoryReport(kept=6, dropped=36)
    assert bench.engines[0].prepared <= 7


async def test_a_last_turn_over_the_budget_makes_no_token():
    books = Books(limit())
    bench = Bench(accounting=books.accounting)
    with pytest.raises(InvalidValue, match="the last turn take") as caught:
        await bench.run(LastTokens(2))
    assert caught.value.param == "memory_strategy.tokens"
    assert not bench.engines[0].streams and not books.ledger.intents and await books.used() == [0]


async def test_a_conversation_over_the_context_is_cut():
    long = talk("s" + "ua" * SCRIPTED_CONTEXT + "u")
    with pytest.raises(ContextLengthExceeded):
        await Bench().run(None, long)
    assert await Bench().run(LastTokens(100), long)


async def test_a_last_turn_over_the_context_is_refused():
    bench = Bench()
    huge = (*talk("s"), Message(Role.USER, "word " * SCRIPTED_CONTEXT))
    with pytest.raises(InvalidValue, match="more tokens than the model's context"):
        await bench.run(LastTokens(SCRIPTED_CONTEXT * 2), huge)


async def test_a_conversation_that_fits_the_context_is_counted_once():
    bench = Bench()
    assert len(await bench.run(FittingTurns())) == len(TALK)
    assert bench.context.progress.memory == MemoryReport(kept=len(TALK))
    assert bench.engines[0].prepared == 2  # to count, and to generate


@pytest.mark.parametrize("turn_count", [40, 400])
async def test_the_turns_that_fit_beside_the_answer_are_found_by_few_counts(turn_count):
    """Whether the whole conversation fits the context, or not."""
    messages = talk("s" + "ua" * turn_count + "u")
    needed = await tokens_of((messages[0], *messages[-5:]))
    bench = Bench()
    output = Output(max_tokens=SCRIPTED_CONTEXT - needed, overflow=Overflow.SHORTEN)
    last = len(messages) - 1
    assert await bench.run(FittingTurns(), messages, output=output) == [0, *range(last - 4, last + 1)]
    assert bench.engines[0].prepared <= 5


async def test_a_last_turn_that_does_not_fit_beside_the_answer_stays_alone():
    bench = Bench()
    output = Output(max_tokens=SCRIPTED_CONTEXT, overflow=Overflow.SHORTEN)
    assert await bench.run(FittingTurns(), output=output) == [0, 41]


async def test_a_last_turn_that_does_not_fit_the_context_is_refused():
    huge = (*talk("sua"), Message(Role.USER, "word " * SCRIPTED_CONTEXT))
    with pytest.raises(ContextLengthExceeded):
        await Bench().run(FittingTurns(), huge)


@pytest.mark.parametrize("memory", [LastMessages(1), LastTokens(100)])
async def test_a_raw_prompt_is_refused(memory):
    bench = Bench()
    with pytest.raises(UnsupportedParameter) as caught:
        await bench.run(memory, RawPrompt(text="hi"))
    assert caught.value.param == "memory_strategy" and not bench.engines[0].prepared


async def test_an_exhausted_limit_refuses_before_anything_is_counted():
    books = Books(limit(amount=1))
    bench = Bench(accounting=books.accounting)
    await bench.run(LastTokens(100))
    for _ in range(2):
        before = bench.engines[0].prepared
        with pytest.raises(RateLimited):
            await bench.run(LastTokens(100))
    assert bench.engines[0].prepared == before


async def test_the_next_route_counts_where_the_first_is_away():
    away = ScriptedEngine(state=EngineState.RESTARTING)
    bench = Bench(away, ScriptedEngine())
    assert await bench.run(LastTokens(await tokens_of((TALK[0], TALK[-1])))) == [0, 41]
    assert bench.context.progress.tries and bench.context.progress.attempts == 1


async def test_an_engine_that_is_away_is_named_as_without_memory():
    with pytest.raises(EngineUnavailable):
        await Bench(ScriptedEngine(state=EngineState.FAILED)).run(LastTokens(100))


async def test_max_tokens_does_not_count_against_the_budget():
    bench = Bench()
    budget = await tokens_of((TALK[0], TALK[-1]))
    assert await bench.run(LastTokens(budget), output=Output(max_tokens=budget * 2)) == [0, 41]


class BoundedEngine(ScriptedEngine):
    """An engine that refuses an answer which does not fit its context beside the prompt."""

    async def prepare(self, request, context):
        prepared, most = await super().prepare(request, context), request.output.max_tokens
        if prepared.size.prompt_tokens + (most or 0) > SCRIPTED_CONTEXT:
            raise ContextLengthExceeded("too long")
        return prepared


async def test_the_kept_turns_leave_the_answer_its_room():
    needed = await tokens_of((TALK[0], *TALK[-5:]))
    output = Output(max_tokens=SCRIPTED_CONTEXT - needed)
    bench = Bench(BoundedEngine())
    assert await bench.run(LastTokens(SCRIPTED_CONTEXT), output=output) == [0, 37, 38, 39, 40, 41]
    with pytest.raises(InvalidValue, match="beside the answer; ask for a shorter answer"):
        await Bench(BoundedEngine()).run(LastTokens(100), output=Output(max_tokens=SCRIPTED_CONTEXT - 1))


@pytest.mark.parametrize(
    ("memory", "param"),
    [(LastTokens(2, "memory_strategy.params"), "tokens"), (LastMessages(1, "memory_strategy.params"), "k")],
)
async def test_errors_name_the_place_of_the_parameters(memory, param):
    prompt = talk("suct") if param == "k" else TALK
    with pytest.raises(InvalidValue, match=rf"^memory_strategy\.params\.{param}") as caught:
        await Bench().run(memory, prompt)
    assert caught.value.param == f"memory_strategy.params.{param}"


class StrictEngine(ScriptedEngine):
    """An engine that takes no limit of tokens from the caller, as some vendors' models."""

    async def prepare(self, request, context):
        if request.output.max_tokens is not None and not request.output.is_default_max_tokens:
            raise UnsupportedParameter("no such parameter", param="max_tokens")
        return await super().prepare(request, context)


async def test_a_dialects_own_limit_is_counted_as_such():
    bench = Bench(StrictEngine())
    output = Output(max_tokens=16, is_default_max_tokens=True)
    assert await bench.run(LastTokens(await tokens_of((TALK[0], TALK[-1]))), output=output) == [0, 41]
