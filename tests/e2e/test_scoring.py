"""What is scored on the model that ships, checked by scoring it again: candidates, seeds, kept prefixes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from statistics import fmean

from antiphon.domain.collect import CollectedGeneration, collect
from antiphon.domain.context import Context
from antiphon.domain.events import Scores
from antiphon.domain.request import GenerationRequest, Output, RawPrompt, SamplingOptions
from antiphon.domain.values import replace
from antiphon.engines.base import LoadSpec
from antiphon.engines.llama import LlamaTokenEngine
from antiphon.rendering.renderer import Renderer
from antiphon_testing.rules import open_stream
from tests.support.model_files import CANTOR

PROMPT = RawPrompt("Once upon a time there was a fox who")
HOT = SamplingOptions(temperature=1.0, seed=4, ignore_eos=True)
NEAR = 1e-2
"""Between computing tokens one by one and all at once."""


@asynccontextmanager
async def cantor() -> AsyncIterator[Renderer]:
    tokens = LlamaTokenEngine()
    await tokens.load(LoadSpec(str(CANTOR), sequences=4, context_length=512, threads=1, exact=True))
    engine = Renderer(tokens)
    try:
        yield engine
    finally:
        await engine.aclose()


async def answer(engine: Renderer, request: GenerationRequest) -> CollectedGeneration:
    async with open_stream(engine, request, Context("scoring")) as events:
        return await collect(events)


def asking(output: Output, prompt: RawPrompt = PROMPT, sampling: SamplingOptions = HOT) -> GenerationRequest:
    return GenerationRequest("cantor", (prompt,), sampling, output)


def values(scores: Scores | None) -> list[float]:
    return [score.logprob for score in scores or () if score.logprob is not None]


async def rescored(engine: Renderer, scores: Scores | None) -> list[float]:
    """Log-probabilities of a completion as part of a prompt."""
    made = tuple(score.token for score in scores or ())
    prompt = RawPrompt(tokens=await engine.encode(PROMPT) + made)
    found = await answer(engine, asking(Output(max_tokens=0, echo=True, logprobs=0), prompt))
    return values(found.choices[0].scores)[-len(made) :]


async def test_the_two_best_of_eight_score_highest_again() -> None:
    async with cantor() as engine:
        every = await answer(engine, asking(Output(max_tokens=12, choices=8, logprobs=0)))
        best = await answer(engine, asking(Output(max_tokens=12, choices=2, best_of=8)))
        means = [fmean(await rescored(engine, choice.scores)) for choice in every.choices]
        for choice, mean in zip(every.choices, means, strict=True):
            assert abs(fmean(values(choice.scores)) - mean) < NEAR
    ranked = sorted(range(8), key=lambda index: -means[index])
    assert means[ranked[1]] - means[ranked[2]] > NEAR  # else this seed shows nothing
    assert [choice.text for choice in best.choices] == [every.choices[index].text for index in ranked[:2]]
    assert best.usage.completion_tokens == every.usage.completion_tokens == 8 * 12


async def test_seeds_and_scores_go_together() -> None:
    async with cantor() as engine:
        asked = asking(Output(max_tokens=10, echo=True, logprobs=3))
        first, second = await answer(engine, asked), await answer(engine, asked)
        other = await answer(engine, replace(asked, sampling=replace(HOT, seed=5)))
    assert first.choices[0].text == second.choices[0].text != other.choices[0].text
    assert values(first.choices[0].scores) == values(second.choices[0].scores)


async def test_a_cached_prompt_is_found_unless_the_salt_differs() -> None:
    async with cantor() as engine:
        asked = asking(Output(max_tokens=2), RawPrompt("The hen and the fox went to the river. " * 8))
        first, second = await answer(engine, asked), await answer(engine, asked)
        salted = await answer(engine, replace(asked, cache_salt="mine"))
        scored = await answer(engine, replace(asked, output=Output(max_tokens=2, echo=True, logprobs=0)))
    assert first.usage.cached_tokens == salted.usage.cached_tokens == scored.usage.cached_tokens == 0
    assert first.usage.prompt_tokens / 2 < second.usage.cached_tokens < first.usage.prompt_tokens
