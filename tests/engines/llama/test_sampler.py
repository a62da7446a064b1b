"""The sampler: filters leave what their definitions say, and draws follow the distribution."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.domain.sampling import Sampling
from antiphon.engines.llama.sampler import draw, pick_nucleus, top_ids, uniform
from antiphon.errors import EngineError


def spread(size: int, seed: int = 0, width: float = 2.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(size) * width).astype(np.float32)


# One decimal, so that there are equal ones; width 0 makes them all equal.
rows = st.builds(
    spread, st.integers(2, 700), st.integers(0, 2**32), st.sampled_from([0.0, 0.3, 4.0, 30.0])
).map(lambda row: row.round(1))


def raw(row: np.ndarray) -> np.ndarray:
    """Log-probabilities by the textbook, in double precision."""
    wide = row.astype(np.float64)
    shifted: np.ndarray = wide - wide.max()
    return shifted - math.log(np.exp(shifted).sum())


def reachable(row: np.ndarray, sampling: Sampling, draws: int = 150) -> set[int]:
    """Tokens that come up at evenly spaced seeds and positions."""
    return {draw(row, sampling, 0, position, None).token for position in range(draws)}


@given(rows)
def test_temperature_zero_takes_the_first_of_the_likeliest(row):
    for temperature in (0.0, 1e-9):
        assert draw(row, Sampling(temperature), 0, 0, None).token == int(np.flatnonzero(row == row.max())[0])


@given(rows, st.integers(1, 30), st.integers(0, 2**64))
def test_top_k_leaves_the_k_likeliest_and_of_equal_ones_the_first(row, k, seed):
    allowed = sorted(range(len(row)), key=lambda token: (-row[token], token))[:k]
    assert draw(row, Sampling(2.0, top_k=k, seed=seed), 0, 0, None).token in allowed


@given(rows, st.floats(0.01, 0.99), st.floats(0, 1, exclude_max=True))
def test_top_p_leaves_the_fewest_that_reach_it(row, mass, point):
    weights = np.exp(row - row.max())
    order = sorted(range(len(row)), key=lambda token: (-weights[token], token))
    before = np.cumsum(weights[order].astype(np.float64)) - weights[order]
    needed = {
        token
        for token, sum_before in zip(order, before, strict=True)
        if sum_before < mass * weights.sum() * 1.0001
    }
    assert pick_nucleus(weights, mass, point) in needed


@given(rows, st.floats(0.01, 1.0), st.integers(0, 100))
def test_min_p_leaves_what_is_likely_enough(row, least, seed):
    token = draw(row, Sampling(1.0, min_p=least, seed=seed), 0, 0, None).token
    assert math.exp(float(row[token]) - float(row.max())) >= least * 0.999


def test_filters_leave_all_that_they_may():
    row = np.log(np.array([0.4, 0.3, 0.2, 0.1], dtype=np.float32))
    assert reachable(row, Sampling(1.0)) == {0, 1, 2, 3}
    assert reachable(row, Sampling(1.0, top_k=3)) == {0, 1, 2}
    assert reachable(row, Sampling(1.0, top_p=0.69)) == {0, 1}
    assert reachable(row, Sampling(1.0, top_p=0.71)) == {0, 1, 2}
    assert reachable(row, Sampling(1.0, min_p=0.45)) == {0, 1, 2}
    # min-p and top-k come before top-p, which then counts only what they left
    assert reachable(row, Sampling(1.0, top_k=2, top_p=0.58)) == {0, 1}
    assert reachable(row, Sampling(1.0, top_k=2, top_p=0.56)) == {0}
    assert reachable(row, Sampling(1.0, min_p=0.7, top_p=0.56)) == {0}
    # the temperature comes before all of them
    assert reachable(row, Sampling(0.25, min_p=0.45)) == {0}


@pytest.mark.parametrize("size", [50, 5000])
@pytest.mark.parametrize("top_p", [1.0, 0.8])
def test_draws_follow_the_distribution(size, top_p):
    row = spread(size)
    count = 4000
    drawn = Counter(
        draw(row, Sampling(1.0, top_p=top_p), 0, position, None).token for position in range(count)
    )
    expected = np.exp(raw(row))
    order = np.argsort(-expected)
    if top_p < 1:
        expected[order[np.searchsorted(expected[order].cumsum(), top_p) + 1 :]] = 0
        expected /= expected.sum()
    assert all(expected[token] > 0 for token in drawn)
    for token in order[:20]:
        deviation = math.sqrt(expected[token] * count)
        assert abs(drawn[token] - expected[token] * count) <= 6 * deviation


def test_large_vocabularies_are_drawn_from_by_the_same_rule():
    """Bins and blocks, which only long rows need, change nothing."""
    row = spread(20_000, width=1.0)
    weights = np.exp(row - row.max())
    order = np.argsort(-weights, kind="stable")
    kept = set(
        order[
            : np.searchsorted(weights[order].cumsum(dtype=np.float64), 0.5 * weights.sum(dtype=np.float64))
            + 1
        ].tolist()
    )
    drawn = [pick_nucleus(weights, 0.5, point) for point in np.linspace(0, 1, 300, endpoint=False)]
    assert set(drawn) <= kept
    assert len(set(drawn)) > 250


def test_each_draw_depends_on_seed_choice_and_position_alone():
    numbers = {
        uniform(seed, choice, position)
        for seed in range(10)
        for choice in range(10)
        for position in range(10)
    }
    assert len(numbers) == 1000
    assert all(0 <= number < 1 for number in numbers)
    assert uniform(-1, 0, 0) == uniform(2**64 - 1, 0, 0)
    assert uniform(7, 1, 2) == uniform(7, 1, 2)
    assert 0.45 < sum(numbers) / len(numbers) < 0.55


def test_a_row_is_drawn_the_same_wherever_it_lies():
    matrix = spread(16 * 1001).reshape(16, 1001)
    sampling = Sampling(1.0, top_p=0.9, seed=3)
    for index in range(16):
        alone = matrix[index].copy()
        assert draw(matrix[index], sampling, 0, 5, 20) == draw(alone, sampling, 0, 5, 20)


def test_rows_are_left_as_they_were():
    row = spread(300)
    before = row.copy()
    draw(row, Sampling(0.7, top_p=0.9, top_k=40, min_p=0.01), 0, 0, 5)
    assert (row == before).all()


@given(rows, st.integers(0, 20))
def test_log_probabilities_are_those_of_the_raw_distribution(row, count):
    truth = raw(row)
    drawn = draw(row, Sampling(1.7, top_k=3, seed=1), 0, 0, count)
    assert drawn.logprob == pytest.approx(truth[drawn.token], abs=1e-4)
    assert len(drawn.alternatives) == min(count, len(row))
    best = sorted(range(len(row)), key=lambda token: (-row[token], token))
    assert [token for token, _ in drawn.alternatives] == best[: len(drawn.alternatives)]
    for token, value in drawn.alternatives:
        assert value == pytest.approx(truth[token], abs=1e-4) and value <= 0


def test_no_log_probabilities_unless_asked_for():
    drawn = draw(spread(10), Sampling(0.0), 0, 0, None)
    assert drawn.logprob is None and drawn.alternatives == ()
    assert len(top_ids(spread(10), 0)) == 0


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_logits_that_are_no_numbers_are_an_error(value):
    row = np.full(5, -np.inf, dtype=np.float32)
    row[2] = value
    with pytest.raises(EngineError, match="not a number"):
        draw(row, Sampling(), 0, 0, None)


@pytest.mark.parametrize("temperature", [1e-300, 1e-5, 1e-3, 2.0, 100.0])
def test_extreme_temperatures_and_logits_stay_finite(temperature):
    row = np.array([-3e38, -1e4, 0.0, 1e4, 3e4], dtype=np.float32)
    for sampling in (
        Sampling(temperature),
        Sampling(temperature, top_p=1e-9),
        Sampling(temperature, top_p=0.999999),
    ):
        assert draw(row, sampling, 0, 0, 2).token == 4


def test_masked_tokens_are_never_drawn():
    row = np.full(3000, -np.inf, dtype=np.float32)
    row[[5, 2999]] = 1.0
    assert reachable(row, Sampling(1.0)) == {5, 2999}
    assert reachable(row, Sampling(1.0, top_p=0.99)) == {5, 2999}
    assert reachable(row, Sampling(1.0, top_k=50)) <= {5, 2999}
