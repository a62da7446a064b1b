"""cantor in the embedded engine against the reference: transformers in float32, SentencePiece's token ids.

Recorded by `python -m models.cantor.reference`, which names versions; nothing here needs torch.
"""

import asyncio
import math
from pathlib import Path

import pytest

from antiphon.engines.base import (
    LoadSpec,
    TextPiece,
)
from models.cantor.convert import write_gguf
from tests.support.reference_answers import greedy, loaded, recorded, scores

CLOSE = 0.01
"""Two best logits closer than this may come in either order."""
SCORE = 1e-3
ECHO = 1e-2
"""Difference of a prompt token's log-probability."""
PERPLEXITY = 0.005


@pytest.fixture(scope="session")
def widened(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reference weights as an F32 GGUF."""
    path = tmp_path_factory.mktemp("reference") / "cantor-f32.gguf"
    write_gguf(path, "F32")
    return path


@pytest.mark.parametrize("count", [8, pytest.param(50, marks=pytest.mark.soak)])
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


@pytest.mark.parametrize("count", [5, pytest.param(20, marks=pytest.mark.soak)])
async def test_scores_of_prompts_are_the_references(widened: Path, count: int) -> None:
    rows = recorded("cantor_scores.json")[:-1]
    assert len(rows) == 20
    async with loaded(LoadSpec(str(widened), sequences=2, exact=True, kv_type="f32", threads=1)) as engine:
        for row in rows[:count]:
            said = await scores(engine, row["ids"])
            assert said == pytest.approx(row["log_probabilities"], abs=ECHO), row["ids"][:8]


@pytest.mark.soak
async def test_the_perplexity_of_held_out_texts_is_the_references(widened: Path) -> None:
    heldout = recorded("cantor_scores.json")[-1]
    async with loaded(LoadSpec(str(widened), sequences=2, exact=True, kv_type="f32", threads=1)) as engine:
        every = [value for window in heldout["windows"] for value in await scores(engine, window)]
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
