"""Rerankers on the embedded engine: the scores of their head, and what is not served."""

from array import array
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from antiphon.domain.request import EmbedRequest, Pooling, Vectors
from antiphon.engines.base import LoadSpec, TextPiece
from antiphon.engines.llama import LlamaTokenEngine
from antiphon.engines.llama.embedding import LARGEST_ODDS, LoadedEmbedder, compute_log_odds, load_any
from antiphon.errors import ModelFileError
from antiphon.weights.gguf import read_header
from antiphon_testing import check_embedding_engine
from tests.engines.llama.conftest import loaded
from tests.engines.llama.holding import PATIENCE
from tests.support.model_files import ROWS, copy_with_pooling, make_head, write_reranker


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_reranker(tmp_path_factory.mktemp("reranker") / "reranker.gguf")


async def score(engine: LlamaTokenEngine, texts: Sequence[Sequence[int]]) -> list[float]:
    """The engine's number of each text."""
    numbers = array("f")
    async for event in engine.embed(EmbedRequest(tuple(map(tuple, texts)))):
        if isinstance(event, Vectors):
            numbers.frombytes(event.values)
    return numbers.tolist()


def compute_rows(path: Path, texts: Sequence[Sequence[int]]) -> np.ndarray:
    """The rows of the texts' first tokens, before anything is scaled."""
    embedder = load_any(LoadSpec(str(path)))
    assert isinstance(embedder, LoadedEmbedder)
    with closing(embedder):
        return np.concatenate([embedder.context.compute([array("i", text)])[1] for text in texts])


async def test_scores_are_those_of_the_head(reranker: Path, tmp_path: Path) -> None:
    texts = [row["ids"] for row in ROWS]
    encoder = copy_with_pooling(reranker, tmp_path / "encoder.gguf", Pooling.CLS)
    head = make_head()
    rows = np.tanh(compute_rows(encoder, texts) @ head["cls.weight"].T + head["cls.bias"])
    expected = (rows @ head["cls.output.weight"].T)[:, 0] + head["cls.output.bias"]
    async with loaded(reranker, context_length=None, exact=True) as engine:
        facts = (await engine.info()).embedding
        assert facts is not None and facts.ranks and facts.dimensions == 1
        found = await score(engine, texts)
    assert np.ptp(expected) > 1
    assert np.allclose(found, expected, atol=1e-3)


async def test_a_reranker_keeps_the_contract_of_vectors(reranker: Path) -> None:
    async with loaded(reranker, context_length=None) as engine:
        await check_embedding_engine(engine, tolerance=0.05, patience=PATIENCE)


async def test_a_pair_has_the_tokens_of_a_text_and_a_separator(reranker: Path) -> None:
    async with loaded(reranker, context_length=None) as engine:
        vocabulary = await engine.vocabulary()
        assert (
            await engine.tokenize([TextPiece("[SEP]", control=True)], False)
        ) == vocabulary.pair_frame.between
        frame = (vocabulary.pair_frame.before, vocabulary.pair_frame.after)
    assert frame == vocabulary.embedding_frame
    assert vocabulary.pair_frame.after == vocabulary.pair_frame.between


async def test_a_templates_text_of_a_pair_is_read(tmp_path: Path) -> None:
    template = "Q: {query} [SEP] D: {document}"
    async with loaded(write_reranker(tmp_path / "t.gguf", template), context_length=None) as engine:
        assert (await engine.info()).rerank_template == template
    async with loaded(write_reranker(tmp_path / "u.gguf", "no places"), context_length=None) as engine:
        assert (await engine.info()).rerank_template is None


def test_a_reranker_with_token_types_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="token type"):
        read_header(write_reranker(tmp_path / "typed.gguf", types=2))


def test_a_reranker_without_a_head_is_refused(reranker: Path, tmp_path: Path) -> None:
    headless = copy_with_pooling(reranker, tmp_path / "headless.gguf", Pooling.RANK)
    with pytest.raises(ModelFileError, match="without the tensors that compute scores"):
        read_header(headless)


def test_probabilities_of_yes_and_no_become_odds() -> None:
    odds, usable = compute_log_odds(np.array([[0.75, 0.25], [0, 1], [1, 0], [np.nan, 1]], np.float32))
    assert np.allclose(odds[:3, 0], [np.log(3), -LARGEST_ODDS, LARGEST_ODDS])
    assert usable.tolist() == [True, True, True, False]
