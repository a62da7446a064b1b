"""Distributions of the demo model."""

import numpy as np
import pytest

from antiphon.engines.base import LoadSpec, TextPiece
from antiphon.engines.llama.libllama.model import NativeTokenizer
from antiphon.engines.llama.loading import load_model

TEXT = (
    "Once upon a time there was a small fox who lived near the river. Every morning she went to the market "
    "and bought bread, apples and a little honey. One day she met an old owl, who asked her a question that "
    "nobody had asked before: what does a server do when all of its clients leave at once?"
)


@pytest.fixture(scope="session")
def live() -> np.ndarray:
    """(tokens, vocabulary): the logits after each token of a text, computed by the engine's own library."""
    from antiphon.cli.serve_options import CANTOR

    loaded = load_model(LoadSpec(str(CANTOR["path"]), context_length=256, sequences=1, threads=1))
    tokens = list(NativeTokenizer(loaded.model).tokenize([TextPiece(TEXT)], add_bos=True))[:100]
    loaded.context.set_rows(0, tokens, 0, 0, last_has_logits=True, all_have_logits=True)
    assert loaded.context.decode(len(tokens)) == 0
    rows = loaded.context.read_logits(len(tokens)).copy()
    loaded.close()
    return rows


@pytest.fixture(scope="session")
def row(live: np.ndarray) -> np.ndarray:
    """The one of these that is least sure."""
    weights = np.exp((live - live.max(axis=1, keepdims=True)).astype(np.float64))
    chances = weights / weights.sum(axis=1, keepdims=True)
    entropies = -(chances * np.log2(chances, where=chances > 0, out=np.zeros_like(chances))).sum(axis=1)
    found: np.ndarray = live[entropies.argmax()]
    return found
