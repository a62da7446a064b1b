"""Scores of prompts: raw log-probabilities, packed."""

import numpy as np
import pytest

from antiphon.engines.sampling import score_prompt
from antiphon.errors import EngineError
from tests.engines.sampling import reference


@pytest.mark.parametrize(("count", "size"), [(1, 50), (100, 2048), (5, 40_000)])
@pytest.mark.parametrize("k", [0, 1, 20])
def test_scores_are_those_of_the_raw_distribution(count, size, k):
    dice = np.random.default_rng(count)
    logits = (dice.standard_normal((count, size)) * 4).astype(np.float32)
    tokens = dice.integers(0, size, count)
    before = logits.copy()
    said, ids, values, ranks = score_prompt(logits, tokens.tolist(), k)
    assert (logits == before).all()
    truth = np.array([reference.log_probabilities(row) for row in logits])
    every = np.arange(count)
    assert np.frombuffer(said, "<f4") == pytest.approx(truth[every, tokens], abs=1e-4)
    best = np.argsort(-logits, axis=1, kind="stable")[:, :k]
    assert (np.frombuffer(ids, "<i4").reshape(count, k) == best).all()
    found = np.frombuffer(values, "<f4").reshape(count, k)
    assert found == pytest.approx(np.take_along_axis(truth, best, 1), abs=1e-4)
    likelier = [sum(logits[row] > logits[row, token]) for row, token in enumerate(tokens)]
    assert np.frombuffer(ranks, "<i4").tolist() == [1 + count for count in likelier]


def test_tokens_of_no_probability_fill_up_what_was_asked_for():
    logits = np.full((1, 100), -np.inf, dtype=np.float32)
    logits[0, [3, 50]] = 0.0
    said, ids, values, ranks = score_prompt(logits, [50], 5)
    assert np.frombuffer(ranks, "<i4").tolist() == [1]
    assert np.frombuffer(said, "<f4") == pytest.approx([-np.log(2)])
    assert np.frombuffer(ids, "<i4").tolist() == [3, 50, 0, 1, 2]
    assert np.isneginf(np.frombuffer(values, "<f4")[2:]).all()


def test_no_rows_have_no_scores_and_bad_rows_are_an_error():
    assert score_prompt(np.empty((0, 9), dtype=np.float32), [], 3) == (b"", b"", b"", b"")
    with pytest.raises(EngineError, match="not a number"):
        score_prompt(np.full((2, 9), np.nan, dtype=np.float32), [1, 2], 3)
