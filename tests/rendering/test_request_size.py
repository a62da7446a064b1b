"""How much a request will take is told before an engine gets anything of it."""

from typing import Any

import pytest

from antiphon.domain.collect import collect
from antiphon.domain.context import Context
from antiphon.domain.events import Started
from antiphon.domain.request import (
    Constraint,
    ConstraintKind,
    EmbeddingRequest,
    GenerationRequest,
    Output,
    Overflow,
    RawPrompt,
)
from antiphon.engines.base import RequestSize
from antiphon.errors import EngineUnavailable, RequestError
from antiphon.rendering.renderer import Renderer
from antiphon_testing import Script, ScriptedEmbeddingEngine, ScriptedTokenEngine, flatten
from antiphon_testing.rules import open_stream
from tests.support.chat_templates import prove_here

TEN = RawPrompt(tokens=(7,) * 10)
FIVE = RawPrompt(tokens=(8,) * 5)


async def size_of(engine: ScriptedTokenEngine, *prompts: RawPrompt, **output: Any) -> RequestSize:
    renderer = Renderer(engine, prove=prove_here)
    request = GenerationRequest("m", prompts, output=Output(**output))
    return (await renderer.prepare(request, Context("r"))).size


@pytest.mark.parametrize(
    ("prompts", "output", "size"),
    [
        ((TEN,), {"max_tokens": 8}, (10, 8)),
        ((TEN, FIVE), {"max_tokens": 8, "choices": 3}, (15, 48)),
        ((TEN,), {"max_tokens": 8, "choices": 2, "best_of": 5}, (10, 40)),
        ((TEN,), {"max_tokens": 100_000, "overflow": Overflow.SHORTEN}, (10, -10)),
        ((TEN,), {}, (10, -10)),
    ],
)
async def test_all_prompts_and_the_most_of_all_candidates(prompts, output, size):
    engine = ScriptedTokenEngine(Script(text="Yes."))
    context = (await engine.info()).context_length
    expected = RequestSize(size[0], size[1] if size[1] > 0 else context + size[1])
    assert await size_of(engine, *prompts, **output) == expected
    assert engine.requests == []


@pytest.mark.parametrize(
    "output",
    [
        {"max_tokens": 100_000},
        {"max_tokens": 8, "constraint": Constraint(ConstraintKind.REGEX, "(")},
    ],
)
async def test_what_cannot_be_done_is_refused_when_prepared(output):
    with pytest.raises(RequestError):
        await size_of(ScriptedTokenEngine(Script(text="Yes.")), TEN, **output)


async def test_a_request_prepared_before_a_restart_is_refused():
    engine, generation = ScriptedTokenEngine(Script(text="Yes.")), [1]
    renderer = Renderer(engine, prove=prove_here, generation=lambda: generation[0])
    prepared = await renderer.prepare(GenerationRequest("m", (TEN,)), Context("r"))
    generation[0] = 2
    with pytest.raises(EngineUnavailable, match="restarted"):
        async with prepared.stream(Context("r")) as events:
            await collect(events)
    assert engine.requests == []


async def test_texts_whose_vectors_are_asked_for_have_a_size():
    engine = ScriptedEmbeddingEngine()
    prepared = await Renderer(engine).prepare_embedding(EmbeddingRequest("m", (TEN, FIVE)), Context("r"))
    assert prepared.size == RequestSize(15, 0) and engine.asked == []
    assert (await prepared.embed(Context("r"))).prompt_tokens == 15


async def test_how_long_it_queued_is_told_with_its_first_token():
    renderer = Renderer(ScriptedTokenEngine(Script(text="Yes.")), prove=prove_here)
    async with open_stream(renderer, GenerationRequest("m", (TEN,)), Context("r")) as events:
        started = await anext(flatten(events))
    assert isinstance(started, Started) and started.queued is not None and 0 <= started.queued < 10
