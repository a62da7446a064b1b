"""Texts to vectors over a scripted engine: what the engine is asked, and what is refused before it is."""

import asyncio
from array import array
from typing import Any

import pytest

from antiphon.domain.context import Context
from antiphon.domain.identity import Actor, ActorKind
from antiphon.domain.messages import Message, Role
from antiphon.domain.request import Conversation, EmbeddingRequest, Embeddings, GenerationRequest, RawPrompt
from antiphon.errors import (
    ContextLengthExceeded,
    DeadlineExceeded,
    EngineDied,
    EngineError,
    InvalidValue,
    TemplateRefused,
    UnsupportedParameter,
)
from antiphon.rendering.renderer import Renderer
from antiphon_testing import EmbeddingScript, FakeClock, ScriptedEmbeddingEngine, ScriptedTokenEngine
from antiphon_testing.scripted_engine import DIMENSIONS, make_vector
from tests.support.waiting import await_until

WHO = Actor(ActorKind.ANONYMOUS, "somebody")


async def embed(
    engine: ScriptedTokenEngine, *inputs: RawPrompt, deadline: float | None = None, **asked: Any
) -> Embeddings:
    context = Context("r", WHO, deadline)
    return await embed_with(Renderer(engine), EmbeddingRequest("m", inputs, **asked), context)


async def embed_with(renderer: Renderer, request: EmbeddingRequest, context: Context) -> Embeddings:
    prepared = await renderer.prepare_embedding(request, context)
    return await prepared.embed(context)


async def test_texts_get_special_tokens_and_ids_stay_as_they_are() -> None:
    engine = ScriptedEmbeddingEngine()
    found = await embed(engine, RawPrompt("hello"), RawPrompt(tokens=(7, 8)))
    (before, after), (asked,) = engine.table.embedding_frame, engine.asked
    plain = engine.tokenizer.encode_plain("hello")
    assert asked.texts == ((*before, *plain, *after), (7, 8))
    assert asked.actor == "somebody"
    assert list(found) == [make_vector(text) for text in asked.texts]
    assert (found.dimensions, found.prompt_tokens) == (DIMENSIONS, sum(map(len, asked.texts)))


async def test_the_text_of_a_control_token_stays_text() -> None:
    engine = ScriptedEmbeddingEngine()
    name = engine.table.names[engine.table.eos_id or 0]
    await embed(engine, RawPrompt(f"a{name}b"))
    assert (engine.table.eos_id or 0) not in engine.asked[0].texts[0][1:-1]


async def test_many_texts_come_in_order() -> None:
    engine = ScriptedEmbeddingEngine()
    found = await embed(engine, *(RawPrompt(tokens=(place % 200, 7)) for place in range(500)))
    assert list(found) == [make_vector((place % 200, 7)) for place in range(500)]


async def test_what_was_made_is_known_of_a_request_that_is_cut_midway() -> None:
    engine = ScriptedEmbeddingEngine(EmbeddingScript(hold=asyncio.Event()))
    context = Context("r", WHO)
    request = EmbeddingRequest("m", (RawPrompt(tokens=(7, 8, 9)), RawPrompt(tokens=(7,))))
    cut = await Renderer(engine).prepare_embedding(request, context)
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(cut.embed(context))
        async with asyncio.timeout(20):
            await await_until(lambda: cut.report.embedded_tokens)
        asking.cancel()
    assert cut.report.embedded_tokens == 3
    whole = await Renderer(ScriptedEmbeddingEngine()).prepare_embedding(request, context)
    found = await whole.embed(context)
    assert whole.report.embedded_tokens == found.prompt_tokens == 4


async def test_tokens_are_shown_as_they_are_embedded() -> None:
    engine = ScriptedEmbeddingEngine()
    shown = await Renderer(engine).encode(RawPrompt("hello"))
    await embed(engine, RawPrompt("hello"))
    assert engine.asked[0].texts == (shown,)
    assert await Renderer(engine).encode(RawPrompt("hello", add_special=False)) == shown[1:-1]


async def test_a_conversation_is_refused_and_not_sent_elsewhere() -> None:
    with pytest.raises(TemplateRefused, match="send its text as prompt") as caught:
        await Renderer(ScriptedEmbeddingEngine()).encode(Conversation((Message(Role.USER, "hi"),)))
    assert caught.value.param == "messages" and "completions" not in caught.value.message


async def test_the_profile_says_what_vectors_there_are() -> None:
    profile = await Renderer(ScriptedEmbeddingEngine()).profile()
    assert profile.embedding is not None
    assert (profile.embedding.dimensions, profile.chat) == (DIMENSIONS, False)
    assert (await Renderer(ScriptedTokenEngine()).profile()).embedding is None


async def test_dimensions_are_taken_where_they_are_the_models_own() -> None:
    assert (await embed(ScriptedEmbeddingEngine(), RawPrompt("a"), dimensions=DIMENSIONS)).dimensions == 8
    with pytest.raises(UnsupportedParameter, match="have 8 dimensions and cannot be made with 4"):
        await embed(ScriptedEmbeddingEngine(), RawPrompt("a"), dimensions=4)


@pytest.mark.parametrize(
    ("inputs", "error", "param"),
    [
        ([RawPrompt(tokens=(7,) * 513)], ContextLengthExceeded, "input"),
        ([RawPrompt("a"), RawPrompt("b " * 600)], ContextLengthExceeded, "input[1]"),
        ([RawPrompt("a"), RawPrompt(tokens=(10**9,))], InvalidValue, "input[1]"),
        ([RawPrompt("a"), RawPrompt(tokens=())], InvalidValue, "input[1]"),
    ],
)
async def test_the_input_at_fault_is_named(
    inputs: list[RawPrompt], error: type[InvalidValue], param: str
) -> None:
    engine = ScriptedEmbeddingEngine()
    with pytest.raises(error) as caught:
        await embed(engine, *inputs)
    assert caught.value.param == param
    assert not engine.asked, "nothing is computed of a request that is refused"


async def test_a_model_does_one_or_the_other() -> None:
    with pytest.raises(UnsupportedParameter, match="m generates text and makes no vectors"):
        await embed(ScriptedTokenEngine(), RawPrompt("a"))
    renderer = Renderer(ScriptedEmbeddingEngine())
    with pytest.raises(UnsupportedParameter, match="m is an embedding model"):
        await renderer.prepare(GenerationRequest("m", (RawPrompt("a"),)), Context("r"))


async def test_the_deadline_is_kept_and_ends_the_work() -> None:
    engine = ScriptedEmbeddingEngine(EmbeddingScript(hold=asyncio.Event()))
    clock = FakeClock()  # it stands still, so that the work begins on any machine before its time is up
    context = Context("r", WHO, clock.monotonic() + 0.05, clock=clock)
    with pytest.raises(DeadlineExceeded):
        await embed_with(Renderer(engine), EmbeddingRequest("m", (RawPrompt("a"), RawPrompt("b"))), context)
    assert engine.ended_count == 1


async def test_an_engines_failure_is_its_own() -> None:
    engine = ScriptedEmbeddingEngine(EmbeddingScript(error=EngineDied("it ended")))
    with pytest.raises(EngineDied, match="it ended"):
        await embed(engine, RawPrompt("a"), RawPrompt("b"))


async def test_an_engine_that_leaves_texts_out_is_not_believed() -> None:
    class Lazy(ScriptedEmbeddingEngine):
        async def embed(self, request: Any) -> Any:
            async for event in super().embed(request):
                yield event
                if getattr(event, "start", -1) == 0:
                    return

    with pytest.raises(EngineError, match="did not make a vector of each text"):
        await embed(Lazy(), RawPrompt("a"), RawPrompt("b"))


def test_embeddings_are_split_by_their_dimensions() -> None:
    made = Embeddings(array("f", range(6)).tobytes(), 3, 1)
    assert len(made) == 2
    assert [list(array("f", vector)) for vector in made] == [[0, 1, 2], [3, 4, 5]]
