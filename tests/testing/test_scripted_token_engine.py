"""The scripted token engine keeps the contract, and does what its scripts say."""

import asyncio
from pathlib import Path

import pytest

from antiphon.domain.request import Sampling
from antiphon.domain.values import replace
from antiphon.engines.base import (
    LoadSpec,
    PromptTokens,
    SequenceFinished,
    SequenceStarted,
    Steps,
    StopCause,
    TextPiece,
    TokenEvent,
    TokenRequest,
)
from antiphon.errors import EngineDied, EngineUnavailable, InvalidValue
from antiphon_testing import (
    Failure,
    Hold,
    Script,
    ScriptedTokenEngine,
    build_vocabulary,
    check_token_engine,
    scripted_info,
)
from antiphon_testing.rules import run_beside
from antiphon_testing.token_kit import check_adapters

PROMPT = PromptTokens((1, 20, 30))


async def heard(engine: ScriptedTokenEngine, **changes: int) -> list[TokenEvent]:
    return [event async for event in engine.generate(TokenRequest(PROMPT, changes.get("max_tokens", 100)))]


def text_of(engine: ScriptedTokenEngine, events: list[TokenEvent]) -> bytes:
    tokens = [token for event in events if isinstance(event, Steps) for token in event.tokens]
    return b"".join(engine.table.pieces[token] for token in tokens)


@pytest.mark.parametrize(("sequences", "space_prefix"), [(1, True), (4, False)])
async def test_it_keeps_the_contract(sequences: int, space_prefix: bool) -> None:
    engine = ScriptedTokenEngine(
        Script(prefill=0.001),
        info=scripted_info(context_length=256, sequences=sequences),
        vocabulary=build_vocabulary(space_prefix=space_prefix),
        spec=LoadSpec("scripted", queue=24, queue_per_actor=16, prefill_chunk=5),
    )
    await check_token_engine(engine, queue=24, queue_per_actor=16)


async def test_a_script_is_said_and_then_the_turn_ends() -> None:
    engine = ScriptedTokenEngine(Script(text="Hello 😀"))
    events = await heard(engine)
    assert text_of(engine, events) == "Hello 😀".encode()
    assert isinstance(events[-1], SequenceFinished)
    assert events[-1].cause is StopCause.END


async def test_an_endless_script_goes_on_until_max_tokens() -> None:
    engine = ScriptedTokenEngine(Script(text=" the cat", endless=True, burst=3))
    events = await heard(engine, max_tokens=5)
    assert text_of(engine, events) == b" the cat the cat the"
    assert [len(event.tokens) for event in events if isinstance(event, Steps)] == [3, 2]


async def test_a_failure_comes_where_it_was_asked_for() -> None:
    engine = ScriptedTokenEngine(Script(text="Hello world", failure=Failure(EngineDied("gone"), after=1)))
    events = engine.generate(TokenRequest(PROMPT, 10))
    assert isinstance(await anext(events), SequenceStarted)
    assert isinstance(await anext(events), Steps)
    with pytest.raises(EngineDied):
        await anext(events)
    engine.script = Script(failure=Failure(EngineUnavailable("away"), after=None))
    with pytest.raises(EngineUnavailable):
        await heard(engine)
    assert engine.ended_count == 2


async def test_a_held_sequence_waits_for_its_event() -> None:
    gate = asyncio.Event()
    engine = ScriptedTokenEngine(Script(text="Hello world", hold=Hold(gate, after=1)))
    events = engine.generate(TokenRequest(PROMPT, 10))
    assert isinstance(await anext(events), SequenceStarted)
    assert isinstance(await anext(events), Steps)
    async with run_beside(anext(events)) as (waiting,):
        await asyncio.sleep(0.01)
        assert not waiting.done()
        gate.set()
        assert isinstance(await waiting, Steps)
    await events.aclose()


async def test_its_vocabulary_cuts_characters_in_half() -> None:
    engine = ScriptedTokenEngine()
    tokens = await engine.tokenize([TextPiece("😀")], False)
    assert [engine.table.pieces[token] for token in tokens] == [b"\xf0\x9f", b"\x98\x80"]


async def test_its_adapters_keep_their_contract(tmp_path: Path) -> None:
    (tmp_path / "any.gguf").touch()
    adapters = {name * 64: str(tmp_path / "any.gguf") for name in "abc"}
    await check_adapters(ScriptedTokenEngine(), adapters)


async def test_an_adapter_changes_the_output_until_it_is_removed(
    tmp_path: Path,
) -> None:
    engine = ScriptedTokenEngine()
    request = TokenRequest(PROMPT, 12, sampling=Sampling(temperature=0.0))
    (tmp_path / "ada.gguf").touch()
    await engine.add_adapter("ada", str(tmp_path / "ada.gguf"))
    said = {
        adapter: text_of(
            engine, [event async for event in engine.generate(replace(request, adapter=adapter))]
        )
        for adapter in (None, "ada")
    }
    assert said[None] != said["ada"]
    running = engine.generate(replace(request, adapter="ada"))
    await anext(running)
    await engine.remove_adapter("ada")
    with pytest.raises(InvalidValue) as refused:
        await anext(engine.generate(replace(request, adapter="ada")))
    assert refused.value.param == "adapter"
    assert text_of(engine, [event async for event in running]) == said["ada"], "what runs goes on"
