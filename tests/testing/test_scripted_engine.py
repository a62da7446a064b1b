"""The scripted engine keeps the contract, and records how its streams ended."""

import asyncio

import pytest

from antiphon.domain.collect import collect
from antiphon.domain.context import Context
from antiphon.domain.events import FinishReason, Started
from antiphon.domain.request import GenerationRequest, Output, RawPrompt
from antiphon.engines.base import Engine, EngineState
from antiphon.errors import EngineDied, EngineUnavailable
from antiphon_testing import ScriptedAnswer, ScriptedEngine, check_engine, flatten
from antiphon_testing.rules import interrupt, open_stream
from antiphon_testing.scripted_engine import StreamEnding

REQUEST = GenerationRequest("m", (RawPrompt("abc"),))


async def test_it_keeps_the_contract() -> None:
    async def make() -> Engine:
        return ScriptedEngine(ScriptedAnswer(("a", "b", "c"), endless=True))

    await check_engine(make)


async def test_it_answers_with_its_texts() -> None:
    engine = ScriptedEngine(ScriptedAnswer(("one", " two")))
    async with open_stream(engine, REQUEST, Context("r")) as events:
        found = await collect(events)
    assert found.choices[0].text == "one two"
    assert found.choices[0].reason is FinishReason.STOP
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (3, 2)
    assert engine.streams[0].ending is StreamEnding.COMPLETE


async def test_it_is_cut_at_max_tokens() -> None:
    engine = ScriptedEngine(ScriptedAnswer(("one", " two", " three")))
    request = GenerationRequest("m", (RawPrompt("abc"),), output=Output(max_tokens=2))
    async with open_stream(engine, request, Context("r")) as events:
        found = await collect(events)
    assert (found.choices[0].text, found.choices[0].reason) == ("one two", FinishReason.LENGTH)


@pytest.mark.parametrize(("after", "events_before"), [(None, 0), (0, 1), (1, 2)])
async def test_it_fails_where_it_was_told(after: int | None, events_before: int) -> None:
    engine = ScriptedEngine(ScriptedAnswer(error=EngineDied("gone"), error_after=after))
    with pytest.raises(EngineDied):
        async with open_stream(engine, REQUEST, Context("r")) as events:
            await collect(events)
    assert engine.streams[0].ending is StreamEnding.FAILED
    assert engine.streams[0].events == events_before


async def test_it_knows_that_its_reader_left() -> None:
    engine = ScriptedEngine(ScriptedAnswer(gate=asyncio.Event()))
    async with open_stream(engine, REQUEST, Context("r")) as events:
        await interrupt(anext(events), 0.01)
    assert engine.streams[0].ending is StreamEnding.LEFT
    assert engine.streams[0].over.is_set()


async def test_it_refuses_while_it_is_not_ready() -> None:
    engine = ScriptedEngine(state=EngineState.RESTARTING)
    with pytest.raises(EngineUnavailable):
        await engine.profile()
    engine.engine_state = EngineState.READY
    async with open_stream(engine, REQUEST, Context("r")) as events:
        assert isinstance(await anext(flatten(events)), Started)
