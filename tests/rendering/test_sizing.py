"""How much a request will take is told before an engine gets anything of it."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from antiphon.domain.collect import collect
from antiphon.domain.constraint import Constraint, ConstraintKind
from antiphon.domain.context import Context
from antiphon.domain.embedding import EmbeddingRequest
from antiphon.domain.events import Started
from antiphon.domain.request import GenerationRequest, Output, Overflow, RawPrompt
from antiphon.errors import BudgetExceeded, RequestError
from antiphon.rendering.renderer import Renderer
from antiphon.testing import Script, ScriptedEmbeddingEngine, ScriptedTokenEngine
from tests.rendering.support import prove_here

TEN = RawPrompt(tokens=(7,) * 10)
FIVE = RawPrompt(tokens=(8,) * 5)


@dataclass
class Sizes:
    """Hears sizes, and refuses where it is told to."""

    refusal: RequestError | None = None
    heard: list[tuple[int, int]] = field(default_factory=list)
    asked_before: list[int] = field(default_factory=list)
    engine: ScriptedTokenEngine | None = None

    async def sized(self, prompt_tokens: int, output_tokens: int) -> None:
        self.heard.append((prompt_tokens, output_tokens))
        if self.engine is not None:
            self.asked_before.append(len(self.engine.requests))
        if self.refusal is not None:
            raise self.refusal


async def told(sizes: Sizes, *prompts: RawPrompt, **output: Any) -> None:
    engine = ScriptedTokenEngine(Script(text="Yes."))
    sizes.engine = engine
    renderer = Renderer(engine, prove=prove_here)
    request = GenerationRequest("m", prompts, output=Output(**output))
    try:
        async with renderer.stream(request, Context("r", sizing=sizes)) as events:
            await collect(events)
    finally:
        if sizes.refusal is not None:
            assert engine.requests == []


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
    sizes = Sizes()
    await told(sizes, *prompts, **output)
    assert sizes.engine is not None
    context = (await sizes.engine.info()).context_length
    expected = (size[0], size[1] if size[1] > 0 else context + size[1])
    assert sizes.heard == [expected] and sizes.asked_before == [0]


async def test_what_is_refused_for_its_size_reaches_no_engine():
    sizes = Sizes(BudgetExceeded("gone"))
    with pytest.raises(BudgetExceeded):
        await told(sizes, TEN, max_tokens=8)


@pytest.mark.parametrize(
    "output",
    [
        {"max_tokens": 100_000},
        {"max_tokens": 8, "constraint": Constraint(ConstraintKind.REGEX, "(")},
    ],
)
async def test_what_is_refused_for_its_shape_has_no_size(output):
    sizes = Sizes()
    with pytest.raises(RequestError):
        await told(sizes, TEN, **output)
    assert sizes.heard == []


async def test_texts_whose_vectors_are_asked_for_have_one_too():
    engine, sizes = ScriptedEmbeddingEngine(), Sizes()
    request = EmbeddingRequest("m", (TEN, FIVE))
    found = await Renderer(engine).embed(request, Context("r", sizing=sizes))
    assert sizes.heard == [(found.prompt_tokens, 0)] == [(15, 0)]
    with pytest.raises(BudgetExceeded):
        await Renderer(engine).embed(request, Context("r", sizing=Sizes(BudgetExceeded("gone"))))
    assert len(engine.asked) == 1


async def test_how_long_it_queued_is_told_with_its_first_token():
    renderer = Renderer(ScriptedTokenEngine(Script(text="Yes.")), prove=prove_here)
    async with renderer.stream(GenerationRequest("m", (TEN,)), Context("r")) as events:
        started = await anext(events)
    assert isinstance(started, Started) and started.queued is not None and 0 <= started.queued < 10
