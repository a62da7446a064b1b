"""Answers of models that were recorded with their own library."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from antiphon.domain.request import Sampling
from antiphon.engines.base import (
    LoadSpec,
    PromptScores,
    PromptTokens,
    SequenceFinished,
    Steps,
    TokenEngine,
    TokenRequest,
)
from antiphon.engines.llama import LlamaTokenEngine

FIXTURES = Path(__file__).parents[1] / "fixtures"


@dataclass(frozen=True)
class Said:
    tokens: list[int]
    scores: list[float]


@asynccontextmanager
async def loaded(spec: LoadSpec) -> AsyncIterator[TokenEngine]:
    engine = LlamaTokenEngine()
    await engine.load(spec)
    try:
        yield engine
    finally:
        await engine.aclose()


async def greedy(engine: TokenEngine, prompt: list[int], most: int) -> Said:
    request = TokenRequest(PromptTokens(tuple(prompt)), most, Sampling(temperature=0), logprobs=0)
    said = Said([], [])
    async for event in engine.generate(request):
        match event:
            case Steps():
                said.tokens.extend(event.tokens)
                said.scores.extend(event.logprobs)
            case SequenceFinished():
                assert event.counts.completion_tokens == len(said.tokens)
    return said


def recorded(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((FIXTURES / name).read_text("utf-8"))["rows"]
    return rows


async def scores(engine: TokenEngine, prompt: list[int]) -> list[float]:
    """Log-probabilities of the prompt's tokens from the second on, as the engine scores them."""
    request = TokenRequest(PromptTokens(tuple(prompt)), 0, prompt_logprobs=0)
    said: list[float] = []
    async for event in engine.generate(request):
        if isinstance(event, PromptScores):
            assert event.start == len(said) + 1
            said.extend(np.frombuffer(event.logprobs, "<f4").tolist())
    return said
