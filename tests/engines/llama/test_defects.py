"""A defect of ours in one sequence's draw: it ends that sequence, and the others do not notice."""

import asyncio
import logging
from typing import Any

import pytest

from antiphon.domain.request import Mirostat, Sampling
from antiphon.engines.base import PromptTokens, Steps, TokenRequest
from antiphon.engines.llama import LlamaTokenEngine
from antiphon.engines.llama import decode as decoding
from antiphon.engines.sampling import SamplingState, sampler
from antiphon.errors import InternalError
from tests.engines.llama.conftest import loaded

SECRET = "what was asked"
AFTER = 5
"""Draws of the faulty sequence that go well."""

COMPANY = (
    Sampling(1.0, seed=4, mirostat=Mirostat(3.0, 0.5, 1)),  # drawn before the faulty one, in each step
    Sampling(1.0, seed=1),
    Sampling(1.0, seed=2, top_k=5, repetition_penalty=1.3),
    Sampling(1.0, seed=3, top_p=0.5, frequency_penalty=0.5, presence_penalty=0.5),
    Sampling(0.0),
    Sampling(1.0, seed=5, mirostat=Mirostat(3.0, 0.5), min_tokens=3),
    Sampling(1.0, seed=6, min_p=0.05, banned=((300, 301), (302,))),
)
FAULTY = Sampling(1.0, seed=7, typical_p=0.6, top_k=20)
"""Alone in asking for typical tokens."""


async def said(engine: LlamaTokenEngine, sampling: Sampling, first: int, heard: list[Any]) -> list[Any]:
    prompt = (1, *range(first, first + 30))
    wanted = TokenRequest(PromptTokens(prompt), 24, sampling, logprobs=2)
    async for event in engine.generate(wanted):
        if isinstance(event, Steps):
            heard += [(event.tokens, event.logprobs, event.alternatives)]
    return heard


async def together(engine: LlamaTokenEngine, faulty: list[Any]) -> list[list[Any]]:
    """What the company says, and what the faulty one had said, beside them."""
    async with asyncio.TaskGroup() as group:
        others = [group.create_task(said(engine, one, 300 + at, [])) for at, one in enumerate(COMPANY)]
        other = group.create_task(ended(engine, faulty))
    assert isinstance(other.result(), InternalError | None)
    return [one.result() for one in others]


async def ended(engine: LlamaTokenEngine, heard: list[Any]) -> InternalError | None:
    try:
        await said(engine, FAULTY, 400, heard)
    except InternalError as error:
        return error
    return None


def breaking(real: Any, after: int) -> Any:
    """The same function, until it was called so often."""
    calls = iter(range(after))

    def broken(*given: Any) -> Any:
        if next(calls, None) is None:
            raise IndexError(SECRET)
        return real(*given)

    return broken


async def test_a_draw_that_raises_ends_its_sequence_and_no_other(models, monkeypatch, caplog):
    async with loaded(models / "tiny-q8_0.gguf", exact=True, sequences=8) as engine:
        whole: list[Any] = []
        undisturbed = await together(engine, whole)
        assert len(whole) > AFTER, "the faulty one goes on as long as nothing is broken"
        monkeypatch.setattr(sampler, "find_typical", breaking(sampler.find_typical, AFTER))
        cut: list[Any] = []
        with caplog.at_level(logging.ERROR):
            assert await together(engine, cut) == undisturbed
        assert cut == whole[:AFTER]
        monkeypatch.undo()
        again: list[Any] = []
        assert await together(engine, again) == undisturbed and again == whole
    assert "IndexError at" in caplog.text and SECRET not in caplog.text


@pytest.mark.parametrize("name", ["apply_to", "accept"])
async def test_so_does_what_raises_while_a_draw_is_prepared_or_noted(models, monkeypatch, name):
    real = getattr(SamplingState, name)
    calls = iter(range(AFTER))

    def broken(self: SamplingState, *given: Any) -> None:
        if self.sampling.seed == 3 and next(calls, None) is None:
            raise ValueError(SECRET)
        real(self, *given)

    async with loaded(models / "tiny-q8_0.gguf", exact=True, sequences=8) as engine:
        alone = [await said(engine, one, 300 + at, []) for at, one in enumerate(COMPANY)]
        monkeypatch.setattr(SamplingState, name, broken)
        tries = [said(engine, one, 300 + at, []) for at, one in enumerate(COMPANY)]
        found = await asyncio.gather(*tries, return_exceptions=True)
    assert isinstance(found[3], InternalError) and SECRET not in found[3].message
    assert [*found[:3], *found[4:]] == [*alone[:3], *alone[4:]]


async def test_scores_that_raise_end_their_sequence_only(models, monkeypatch):
    async with loaded(models / "tiny-q8_0.gguf", exact=True, sequences=4) as engine:
        alone = await said(engine, COMPANY[1], 300, [])
        monkeypatch.setattr(decoding, "score_prompt", breaking(None, 0))
        scored = TokenRequest(PromptTokens((1, 2, 3, 4)), 4, Sampling(0.0), prompt_logprobs=1)
        async with asyncio.TaskGroup() as group:
            beside = group.create_task(said(engine, COMPANY[1], 300, []))
            with pytest.raises(InternalError):
                _ = [event async for event in engine.generate(scored)]
        assert beside.result() == alone
