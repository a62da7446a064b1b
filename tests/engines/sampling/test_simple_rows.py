"""The fast ways of the sampler give the tokens of its general way, and report their own defects."""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.domain.request import Sampling
from antiphon.engines.sampling import DrawnToken, SampledToken, Sampler, SamplingState
from antiphon.engines.sampling.logits import NO_NUMBER
from antiphon.engines.sampling.simple_rows import CHECK_INTERVAL, FEW_ROWS, SimpleRows
from antiphon.errors import AntiphonError, EngineError

SIZES = [1, 2, 20, 63, 64, 65, 255, 256, 257, 700, 2048, 16_383, 16_384, 17_000, 49_152]


def make_state(sampling: Sampling, size: int, choice: int = 0, **others: Any) -> SamplingState:
    values: dict[str, Any] = {"logprobs": None, "prompt": (), "end_tokens": (), "stop_tokens": ()} | others
    return SamplingState(sampling, choice, vocabulary_size=size, **values)


def make_row(dice: np.random.Generator, size: int) -> np.ndarray:
    """Logits of a random shape: flat, peaked or equal ones, with or without forbidden ids."""
    spread = dice.choice([0.0, 0.3, 2.0, 8.0, 1e4, 1e25])
    row = (dice.standard_normal(size) * spread).astype(np.float32).round(dice.integers(0, 6))
    if dice.random() < 0.5:  # like the logits of a language model
        row = (-1.6 * np.log(dice.permutation(size) + 1.0)).astype(np.float32) + np.float32(0.1) * row
    if dice.random() < 0.3:
        row[dice.random(size) < dice.choice([0.5, 0.99])] = -np.inf
    if dice.random() < 0.1:
        row[dice.integers(size)] = dice.choice([np.nan, np.inf, -np.inf, 3e38, -0.0])
    shaped: np.ndarray = row
    return shaped


samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 1e-4, 0.3, 0.7, 0.8, 1.0, 2.0, 50.0]),
    top_p=st.sampled_from([1.0, 1.0, 0.95, 0.9, 0.5, 0.01, 0.0]),
    top_k=st.sampled_from([0, 0, 1, 2, 20, 40, 64, 65]),
    min_p=st.sampled_from([0.0, 0.0, 0.05, 0.7, 1.0]),
    seed=st.integers(-(2**63), 2**64),
)


def draw_in_general(sampler: Sampler, logits: np.ndarray, states: list[Any]) -> list[Any]:
    """Tokens or errors of the general way, which does not change the states."""
    results = sampler.draw_without_accepting(logits, states)
    return [result.sampled if isinstance(result, DrawnToken) else result for result in results]


def tell(results: list[Any]) -> list[Any]:
    return [repr(result) if isinstance(result, AntiphonError) else result for result in results]


@given(st.sampled_from(SIZES), st.lists(samplings, min_size=1, max_size=9), st.integers(0, 2**32), st.data())
def test_every_draw_is_the_general_way_s(size: int, asked: list[Sampling], seed: int, data: st.DataObject):
    dice = np.random.default_rng(seed)
    if data.draw(st.booleans(), "all rows have the same options"):
        asked = [asked[0]] * len(asked)
    logits = np.stack([make_row(dice, size) for _ in asked])
    states = [make_state(one, size, row) for row, one in enumerate(asked)]
    padded = [state if dice.random() < 0.8 else None for state in states]
    sampler = Sampler(size)
    for step in range(3):
        expected = draw_in_general(sampler, logits, padded)
        given_logits = logits.copy()
        assert tell(sampler.draw(logits, padded)) == tell(expected), step
        assert np.array_equal(given_logits, logits, equal_nan=True), "the library's own buffer is only read"


@pytest.mark.parametrize("rows", [1, FEW_ROWS, FEW_ROWS + 1, 32])
@pytest.mark.parametrize("size", [2048, 49_152])
@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05},
        {"temperature": 0.7, "top_p": 0.9},
        {"temperature": 0.7, "min_p": 0.1},
    ],
    ids=str,
)
def test_usual_options_are_drawn_in_a_fast_way(rows: int, size: int, options: dict[str, Any]):
    """Otherwise the test above compares the general way with itself."""
    dice = np.random.default_rng(rows)
    ranks = np.stack([dice.permutation(size) for _ in range(rows)])
    logits = (-2.0 * np.log(ranks + 1.0)).astype(np.float32)
    states = [make_state(Sampling(**options, seed=row), size) for row in range(rows)]
    simple = SimpleRows(np.empty((2, size), dtype=np.float32))
    for _ in range(4):
        tokens = simple.draw(logits, states)
        general = draw_in_general(Sampler(size), logits, [*states])
        assert tokens == {row: one.token for row, one in enumerate(general)}
        for state in states:
            state.position += 1


@pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["greedy", "unfiltered"])
def test_few_greedy_and_unfiltered_rows_are_drawn_in_a_fast_way(temperature: float):
    logits = np.random.default_rng(1).standard_normal((FEW_ROWS, 700)).astype(np.float32)
    states = [make_state(Sampling(temperature), 700, row) for row in range(FEW_ROWS)]
    general = draw_in_general(Sampler(700), logits, [*states])
    assert SimpleRows(np.empty((1, 700), dtype=np.float32)).draw(logits, states) == {
        row: one.token for row, one in enumerate(general)
    }


@pytest.mark.parametrize(
    "others",
    [
        {"logprobs": 0},
        {"sampling": Sampling(logit_bias=((1, 1.0),))},
        {"sampling": Sampling(presence_penalty=0.5)},
        {"sampling": Sampling(min_tokens=3)},
        {"sampling": Sampling(typical_p=0.9)},
        {"sampling": Sampling(top_k=65)},
    ],
    ids=str,
)
def test_other_rows_are_left_to_the_general_way(others: dict[str, Any]):
    values: dict[str, Any] = {"sampling": Sampling(top_p=0.9), "size": 300}
    state = make_state(**values | others)
    logits = np.random.default_rng(1).standard_normal((1, 300)).astype(np.float32)
    assert SimpleRows(np.empty((1, 300), dtype=np.float32)).draw(logits, [state]) is None


def test_a_mask_is_obeyed_in_the_draws_that_have_one():
    sampler, state = Sampler(300), make_state(Sampling(top_k=5), 300)
    logits = np.arange(300, dtype=np.float32)[None]
    for allowed in (7, None, 9):
        state.mask = None if allowed is None else np.arange(300) == allowed
        (drawn,) = sampler.draw(logits, [state])
        assert isinstance(drawn, SampledToken)
        assert drawn.token == allowed if allowed is not None else drawn.token > 290


def test_a_row_without_numbers_ends_alone():
    for count in (2, FEW_ROWS + 2):
        logits = np.random.default_rng(1).standard_normal((count, 300)).astype(np.float32)
        logits[1, 5] = np.nan
        results = Sampler(300).draw(logits, [make_state(Sampling(top_k=9), 300, row) for row in range(count)])
        assert isinstance(results[1], EngineError)
        assert results[1].message == NO_NUMBER
        assert all(isinstance(result, SampledToken) for row, result in enumerate(results) if row != 1)


class StateWithDefect(SamplingState):
    """A state that tells the fast ways, which alone ask for it, something wrong about its filters."""

    def __init__(self, has_filter: Callable[[], bool]) -> None:
        super().__init__(Sampling(top_k=2), 0, None, (), (), (), 300)
        self._tell = has_filter

    @property
    def has_filter(self) -> bool:
        return self._tell()

    @has_filter.setter
    def has_filter(self, value: bool) -> None:
        """Ignores the truth."""


def fail() -> bool:
    raise ZeroDivisionError("secret")


def test_an_exception_is_logged_once_and_the_general_way_goes_on(caplog: pytest.LogCaptureFixture):
    sampler, state = Sampler(300), StateWithDefect(fail)
    logits = np.zeros((1, 300), dtype=np.float32)
    with caplog.at_level(logging.ERROR):
        drawn = [sampler.draw(logits, [state])[0] for _ in range(5)]
    assert {one.token for one in drawn if isinstance(one, SampledToken)} <= {0, 1}
    assert state.position == 5
    (message,) = [record.getMessage() for record in caplog.records]
    assert "ZeroDivisionError" in message
    assert "fast ways" in message
    assert "secret" not in message


def test_a_disagreement_is_found_and_logged_once_and_the_general_way_goes_on(
    caplog: pytest.LogCaptureFixture,
):
    sampler, state = Sampler(300), StateWithDefect(lambda: False)
    logits = np.zeros((1, 300), dtype=np.float32)
    with caplog.at_level(logging.ERROR):
        drawn = [sampler.draw(logits, [state])[0] for _ in range(CHECK_INTERVAL + 20)]
    tokens = [one.token for one in drawn if isinstance(one, SampledToken)]
    assert max(tokens[: CHECK_INTERVAL - 1]) > 1, "the fast way has drawn"
    assert {*tokens[CHECK_INTERVAL - 1 :]} == {0, 1}
    (message,) = [record.getMessage() for record in caplog.records]
    assert "other tokens" in message
