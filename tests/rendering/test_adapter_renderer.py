"""A base model's renderer with an adapter: an engine like any other, that shares what the base knows."""

from pathlib import Path

import pytest

from antiphon.domain.context import Context
from antiphon.domain.events import TextDelta
from antiphon.domain.request import GenerationRequest, Output, RawPrompt, SamplingOptions
from antiphon.engines.base import Engine, EngineState, ObservableEngine, TokenizerEngine
from antiphon.errors import EngineUnavailable, ModelNotFound
from antiphon.rendering.renderer import AdapterRenderer, Renderer
from antiphon_testing import FakeClock, Script, ScriptedTokenEngine, check_engine, flatten, scripted_info
from antiphon_testing.rules import open_stream
from tests.support.chat_templates import prove_here
from tests.support.waiting import PATIENCE

DIGEST = "a" * 64


@pytest.fixture
async def tokens(tmp_path: Path) -> ScriptedTokenEngine:
    """An engine that has the adapter."""
    engine = ScriptedTokenEngine()
    (tmp_path / "a.gguf").touch()
    await engine.add_adapter(DIGEST, str(tmp_path / "a.gguf"))
    return engine


async def text_of(engine: Engine, choices: int = 1) -> list[str]:
    request = GenerationRequest(
        "ada",
        (RawPrompt("Hello"),),
        sampling=SamplingOptions(temperature=0.0),
        output=Output(max_tokens=12, choices=choices),
    )
    texts = [""] * choices
    async with open_stream(engine, request, Context("r", clock=FakeClock())) as events:
        async for event in flatten(events):
            if isinstance(event, TextDelta):
                texts[event.choice] += event.text
    return texts


async def test_it_keeps_the_contract_of_engines(tmp_path: Path) -> None:
    tokens = ScriptedTokenEngine(
        Script(text="Hello there, world!", pace=0.001), info=scripted_info(sequences=2)
    )
    (tmp_path / "a.gguf").touch()
    await tokens.add_adapter(DIGEST, str(tmp_path / "a.gguf"))

    async def make() -> AdapterRenderer:
        return AdapterRenderer(Renderer(tokens, prove=prove_here), DIGEST)

    async def load():
        return (await tokens.info()).load

    await check_engine(make, load=load, patience=PATIENCE)
    assert {request.adapter for request in tokens.requests} == {DIGEST}
    assert not tokens.is_closed, "the engine is the base model's to close"


async def test_every_choice_uses_the_adapter_and_the_base_none(
    tokens: ScriptedTokenEngine,
) -> None:
    base = Renderer(tokens, prove=prove_here)
    ada = AdapterRenderer(base, DIGEST)
    first, second = await text_of(ada, choices=2)
    assert first == second != (await text_of(base))[0]
    assert [request.adapter for request in tokens.requests] == [DIGEST, DIGEST, None]


async def test_it_shares_what_the_base_model_knows(tokens: ScriptedTokenEngine) -> None:
    base = Renderer(tokens, prove=prove_here)
    ada = AdapterRenderer(base, DIGEST)
    assert await ada.profile() is await base.profile()
    assert isinstance(ada, TokenizerEngine) and not isinstance(ada, ObservableEngine)
    ids = await ada.encode(RawPrompt("Hello"))
    assert (ids, await ada.decode(ids), await ada.spell(ids)) == (
        await base.encode(RawPrompt("Hello")),
        await base.decode(ids),
        await base.spell(ids),
    )


async def test_an_unloaded_adapter_is_waited_for_while_it_has_a_name(
    tokens: ScriptedTokenEngine,
) -> None:
    ada = AdapterRenderer(Renderer(tokens, prove=prove_here), DIGEST)
    await tokens.remove_adapter(DIGEST)
    with pytest.raises(EngineUnavailable) as waiting:
        await text_of(ada)
    assert waiting.value.retryable
    await ada.aclose()
    with pytest.raises(ModelNotFound, match="'ada' was unloaded"):
        await text_of(ada)


async def test_an_adapter_that_failed_to_reload_names_the_remedy(
    tokens: ScriptedTokenEngine,
) -> None:
    lost = {DIGEST}
    ada = AdapterRenderer(Renderer(tokens, prove=prove_here), DIGEST, lacks_adapter=lost.__contains__)
    await tokens.remove_adapter(DIGEST)
    assert ada.state() is EngineState.FAILED
    with pytest.raises(EngineUnavailable, match=r"could not load its adapter; .*load_lora_adapter"):
        await text_of(ada)
    lost.clear()
    assert ada.state() is EngineState.READY
