"""cantor in the embedded engine against the reference: transformers in float32, SentencePiece's token ids.

Recorded by `python -m models.cantor.reference`, which names versions; nothing here needs torch.
"""

import asyncio
import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from antiphon.domain.request import Sampling
from antiphon.engines.base import (
    LoadSpec,
    PromptScores,
    SequenceFinished,
    Steps,
    TextPiece,
    TokenEngine,
    TokenRequest,
    TokenSegment,
)
from antiphon.engines.llama import LlamaTokenEngine
from models.cantor.convert import write_gguf

FIXTURES = Path(__file__).parents[1] / "fixtures"
CLOSE = 0.01
"""Two best logits closer than this may come in either order."""
SCORE = 1e-3
ECHO = 1e-2
"""Difference of a prompt token's log-probability."""
PERPLEXITY = 0.005


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
    request = TokenRequest((TokenSegment(tuple(prompt)),), most, Sampling(temperature=0), logprobs=0)
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


@pytest.fixture(scope="session")
def widened(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reference weights as an F32 GGUF."""
    path = tmp_path_factory.mktemp("reference") / "cantor-f32.gguf"
    write_gguf(path, "F32")
    return path


@pytest.mark.parametrize("count", [20, pytest.param(50, marks=pytest.mark.soak)])
async def test_greedy_output_is_the_references_token_for_token(widened: Path, count: int) -> None:
    rows = recorded("cantor_greedy.json")[:count]
    compared, worst = 0, 0.0
    async with loaded(LoadSpec(str(widened), sequences=4, exact=True, kv_type="f32", threads=1)) as engine:
        ends = set((await engine.vocabulary()).end_ids)
        every = await asyncio.gather(*(greedy(engine, row["prompt"], len(row["tokens"])) for row in rows))
        for row, said in zip(rows, every, strict=True):
            for place, token in enumerate(row["tokens"]):
                if row["gaps"][place] < CLOSE and said.tokens[place] != token:
                    break
                assert said.tokens[place] == token, (row["prompt"][:8], place)
                worst = max(worst, abs(said.scores[place] - row["log_probabilities"][place]))
                compared += 1
                if token in ends:
                    assert len(said.tokens) == place + 1, "the end token ends the sequence"
                    break
    assert len(rows) == count and compared > 10 * count
    assert worst < SCORE


async def scores(engine: TokenEngine, prompt: list[int]) -> list[float]:
    """Log-probabilities of the prompt's tokens from the second on, as the engine scores them."""
    request = TokenRequest((TokenSegment(tuple(prompt)),), 0, prompt_logprobs=0)
    said: list[float] = []
    async for event in engine.generate(request):
        if isinstance(event, PromptScores):
            assert event.start == len(said) + 1
            said.extend(np.frombuffer(event.logprobs, "<f4").tolist())
    return said


async def test_scores_of_prompts_are_the_references(widened: Path) -> None:
    *rows, heldout = recorded("cantor_scores.json")
    async with loaded(LoadSpec(str(widened), sequences=2, exact=True, kv_type="f32", threads=1)) as engine:
        for row in rows:
            said = await scores(engine, row["ids"])
            assert said == pytest.approx(row["log_probabilities"], abs=ECHO), row["ids"][:8]
        every = [value for window in heldout["windows"] for value in await scores(engine, window)]
    assert len(rows) == 20
    assert len(every) == sum(len(window) - 1 for window in heldout["windows"]) > 1000
    assert math.exp(-sum(every) / len(every)) == pytest.approx(heldout["perplexity"], rel=PERPLEXITY)


async def test_token_ids_are_the_references() -> None:
    from antiphon.cli.serve_options import CANTOR

    rows = recorded("cantor_tokens.json")
    async with loaded(LoadSpec(str(CANTOR["path"]), sequences=1, threads=1)) as engine:
        for row in rows:
            assert await engine.tokenize([TextPiece(row["text"])], add_bos=False) == tuple(row["ids"]), row[
                "text"
            ]
    assert len(rows) == 1000
