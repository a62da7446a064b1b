"""The sampler against a slow and obvious one: whatever is asked for, together, on any logits."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.domain.request import Mirostat, Sampling
from antiphon.engines.sampling import SampledToken, Sampler, SamplingState
from antiphon.errors import EngineError, InvalidValue
from tests.engines.sampling import reference

END, STOP = 2, 3
COPIES = 24


def logits(size: int, seed: int, width: float, decimals: int, hidden: float = 0.0) -> np.ndarray:
    """Random logits; few decimals make equal ones, and some may be -infinity."""
    dice = np.random.default_rng(seed)
    row = (dice.standard_normal(size) * width).round(decimals).astype(np.float32)
    row[dice.random(size) < hidden] = -np.inf
    row[dice.integers(size)] = row[np.isfinite(row)].max() if np.isfinite(row).any() else 0.0
    return row


rows = st.builds(
    logits,
    st.sampled_from([5, 9, 50, 257, 400, 700, 2048, 2500]),
    st.integers(0, 2**32),
    st.sampled_from([0.0, 0.3, 3.0, 30.0, 1e4, 1e25]),
    st.sampled_from([0, 1, 6]),
    st.sampled_from([0.0, 0.0, 0.5, 0.99]),
)
tokens = st.lists(st.integers(0, 4), max_size=9)
samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.3, 0.7, 1.0, 2.0]),
    top_p=st.sampled_from([1.0, 1.0, 0.95, 0.5, 0.01]),
    top_k=st.sampled_from([0, 0, 2, 40, 64, 65, 200, 1000]),
    min_p=st.sampled_from([0.0, 0.0, 0.05, 0.7]),
    typical_p=st.sampled_from([1.0, 1.0, 0.9, 0.3]),
    seed=st.integers(-(2**63), 2**64),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.5]),
    presence_penalty=st.sampled_from([0.0, 1.5, -2.0]),
    frequency_penalty=st.sampled_from([0.0, 0.7, -0.5]),
    logit_bias=st.sampled_from([(), ((1, -100.0), (4, 5.0)), ((0, 100.0),), ((1, -math.inf), (2, 1e300))]),
    allowed_token_ids=st.sampled_from([None, None, (0, 1, 3), tuple(range(5))]),
    banned=st.sampled_from([(), (), ((3,),), ((0, 1), (2, 2), (4,)), ((1, 0, 2), (0, 2), (0, 0, 0, 0, 1))]),
)


def drawing(asked: Sampling, size: int, choice: int = 0, **others: Any) -> SamplingState:
    values: dict[str, Any] = {
        "logprobs": None,
        "prompt": (),
        "end_tokens": (END,),
        "stop_tokens": (STOP,),
    } | others
    return SamplingState(asked, choice, vocabulary_size=size, **values)


def copies(row: np.ndarray, asked: Sampling, count: int = COPIES, **others: Any) -> list[int]:
    """Tokens that as many choices draw from the same row."""
    block = np.tile(row, (count, 1))
    drawn = Sampler(len(row)).draw(block, [drawing(asked, len(row), n, **others) for n in range(count)])
    assert all(isinstance(one, SampledToken) for one in drawn), drawn[0]
    return [one.token for one in drawn if isinstance(one, SampledToken)]


def history(one: SamplingState, output: list[int]) -> SamplingState:
    for token in output:
        one.accept(token)
    return one


@given(rows, samplings, tokens, tokens)
def test_what_is_drawn_is_what_masks_penalties_and_filters_leave(row, asked, prompt, output):
    expected = reference.changed(row, asked, prompt, output)
    block = np.tile(row, (COPIES, 1))
    drawings = [history(drawing(asked, len(row), n, prompt=prompt), output) for n in range(COPIES)]
    drawn = Sampler(len(row)).draw(block, drawings)
    if expected.max() == -math.inf:
        assert all(isinstance(one, InvalidValue) for one in drawn)
        return
    allowed = reference.possible(np.minimum(expected, 1e30), asked)
    assert {one.token for one in drawn if isinstance(one, SampledToken)} <= allowed
    assert (block == row).all(), "the library's own buffer is left alone"


@given(rows, samplings, tokens, tokens)
def test_temperature_zero_takes_the_likeliest_after_penalties(row, asked, prompt, output):
    greedy = Sampling(
        temperature=0.0,
        repetition_penalty=asked.repetition_penalty,
        presence_penalty=asked.presence_penalty,
        frequency_penalty=asked.frequency_penalty,
        logit_bias=asked.logit_bias,
        allowed_token_ids=asked.allowed_token_ids,
        banned=asked.banned,
        mirostat=Mirostat(),
    )
    expected = np.minimum(reference.changed(row, greedy, prompt, output), 1e30)
    one = history(drawing(greedy, len(row), prompt=prompt), output)
    (drawn,) = Sampler(len(row)).draw(row[None], [one])
    if expected.max() == -math.inf:
        assert isinstance(drawn, InvalidValue)
    else:
        assert isinstance(drawn, SampledToken)
        assert expected[drawn.token] >= expected.max() - 1e-6 * abs(expected.max())


@pytest.mark.parametrize("size", [2048, 20_011])
@pytest.mark.parametrize("beside", [2, 7, 32])
def test_a_draw_does_not_depend_on_the_rows_beside_it(size, beside):
    dice = np.random.default_rng(beside)
    block = (dice.standard_normal((beside, size)) * 2).astype(np.float32)
    kinds = [
        Sampling(0.0),
        Sampling(0.8),
        Sampling(0.7, top_p=0.9, top_k=40, repetition_penalty=1.2),
        Sampling(1.0, top_p=0.9),
        Sampling(1.0, top_k=100),
        Sampling(1.0, typical_p=0.5),
        Sampling(1.0, min_p=0.1, presence_penalty=0.5),
        Sampling(1.0, mirostat=Mirostat(3.0)),
        Sampling(1.3, allowed_token_ids=(1, 5, 9)),
    ]
    asked = [kinds[row % len(kinds)] for row in range(beside)]
    for logprobs in (None, 5):
        made = [
            [drawing(one, size, row, prompt=[1, 2], logprobs=logprobs) for row, one in enumerate(asked)]
            for _ in range(2)
        ]
        together = Sampler(size).draw(block, made[0])
        sampler = Sampler(size)
        alone = [sampler.draw(block[row : row + 1].copy(), [one])[0] for row, one in enumerate(made[1])]
        assert together == alone


def test_each_draw_depends_on_seed_choice_and_position_alone():
    row = np.zeros(2000, dtype=np.float32)

    def sequence(seed: int, choice: int) -> list[int]:
        one = drawing(Sampling(seed=seed), len(row), choice)
        sampler = Sampler(len(row))
        drawn = [sampler.draw(row[None], [one])[0] for _ in range(6)]
        return [each.token for each in drawn if isinstance(each, SampledToken)]

    assert sequence(7, 1) == sequence(7, 1)
    everything = {tuple(sequence(seed, choice)) for seed in range(6) for choice in range(6)}
    assert len(everything) == 36
    assert sequence(-1, 0) == sequence(2**64 - 1, 0)
    assert len(set(sequence(7, 1))) > 3, "positions differ"


@given(rows, st.integers(0, 20))
def test_log_probabilities_are_those_of_the_raw_distribution(row, count):
    asked = Sampling(1.7, top_k=3, logit_bias=((1, 50.0),), repetition_penalty=1.5)
    (drawn,) = Sampler(len(row)).draw(row[None], [drawing(asked, len(row), logprobs=count, prompt=[0, 1])])
    assert isinstance(drawn, SampledToken)
    truth = reference.log_probabilities(row)
    assert drawn.logprob == pytest.approx(truth[drawn.token], rel=1e-5, abs=1e-4)
    best = [t for t in sorted(range(len(row)), key=lambda t: (-row[t], t)) if row[t] > -math.inf][:count]
    assert [token for token, _ in drawn.alternatives] == best
    for token, value in drawn.alternatives:
        assert value == pytest.approx(truth[token], rel=1e-5, abs=1e-4) and value <= 0


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    "asked", [Sampling(0.0), Sampling(0.9), Sampling(0.9, top_p=0.5, presence_penalty=1)]
)
def test_logits_that_are_no_numbers_end_their_row_alone(value, asked):
    block = np.tile(logits(300, 1, 2.0, 6), (3, 1))
    block[1] = -np.inf
    block[1, 7] = value
    drawn = Sampler(300).draw(block, [drawing(asked, 300, row) for row in range(3)])
    assert isinstance(drawn[1], EngineError) and "not a number" in drawn[1].message
    assert isinstance(drawn[0], SampledToken) and isinstance(drawn[2], SampledToken)


def test_a_row_without_a_legal_token_fails_alone():
    block = np.tile(logits(300, 1, 2.0, 6), (3, 1))
    stuck = drawing(Sampling(min_tokens=2, allowed_token_ids=(END, STOP)), 300)
    drawn = Sampler(300).draw(block, [drawing(Sampling(), 300), stuck, None])
    assert isinstance(drawn[0], SampledToken) and drawn[2] is None
    assert isinstance(drawn[1], InvalidValue) and "no token is left" in drawn[1].message


def test_a_banned_sequence_may_begin_and_is_never_completed():
    dice = np.random.default_rng(3)
    banned = ((1, 2), (0, 1, 1), (3, 3, 3), (2, 0))
    one = drawing(Sampling(seed=4, banned=banned), 4, end_tokens=(), stop_tokens=())
    said = []
    for _ in range(600):
        (found,) = Sampler(4).draw(dice.normal(0, 1, (1, 4)).astype(np.float32), [one])
        assert isinstance(found, SampledToken)
        said.append(found.token)
    for sequence in banned:
        assert all(tuple(said[at : at + len(sequence)]) != sequence for at in range(len(said)))
        begun = sequence[:-1]
        assert any(tuple(said[at : at + len(begun)]) == begun for at in range(len(said)))


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_end_and_stop_tokens_wait_for_min_tokens(ignore_eos):
    row = np.array([0, 0, 9, 9, 0], dtype=np.float32)
    asked = Sampling(min_tokens=3, ignore_eos=ignore_eos)
    many = [drawing(asked, 5, n) for n in range(40)]
    sampler = Sampler(5)
    for made in range(4):
        seen = {
            one.token for one in sampler.draw(np.tile(row, (40, 1)), many) if isinstance(one, SampledToken)
        }
        assert (STOP in seen) == (made == 3)
        assert (END in seen) == (made == 3 or ignore_eos)


def test_mirostat_cuts_surprising_tokens_and_moves_its_threshold():
    dice = np.random.default_rng(5)
    sampler = Sampler(600)
    for version, target in ((2, 1.0), (2, 3.0), (2, 7.0), (1, 3.0), (1, 5.0)):
        one = drawing(Sampling(0.9, mirostat=Mirostat(target, 0.3, version), top_k=1, min_p=1.0), 600)
        limit = 2 * target
        for _ in range(40):
            row = (dice.standard_normal(600) * 3).astype(np.float32)
            (drawn,) = sampler.draw(row[None], [one])
            assert isinstance(drawn, SampledToken)
            if version == 2:
                assert drawn.token in reference.mirostat_2(row, 0.9, limit + 1e-4)
            else:
                best = np.argsort(-row, kind="stable")[: reference.mirostat_1(row, 0.9, limit)]
                assert drawn.token in best
            limit -= 0.3 * (reference.surprise(row, 0.9, drawn.token) - target)
            assert one.mirostat is not None
            assert one.mirostat.threshold == pytest.approx(limit, abs=1e-3)


@pytest.mark.parametrize("temperature", [1e-300, 1e-5, 1e-3, 2.0, 100.0])
def test_extreme_temperatures_and_logits_stay_numbers(temperature):
    row = np.array([-3e38, -1e4, 0.0, 1e4, 3e4], dtype=np.float32)
    for asked in (
        Sampling(temperature),
        Sampling(temperature, top_p=1e-9),
        Sampling(temperature, typical_p=0.9),
    ):
        assert set(copies(row, asked, logprobs=2)) == {4}


def test_equal_logits_are_cut_at_the_lower_ids():
    row = np.zeros(5000, dtype=np.float32)
    assert set(copies(row, Sampling(top_k=50), 400)) == set(range(50))
    assert set(copies(row, Sampling(top_k=300), 400)) <= set(range(300))
    likeliest = copies(row, Sampling(top_p=0.1), 400)
    assert set(likeliest) <= set(range(500)) and max(likeliest) > 450


@pytest.mark.parametrize("size", [1, 2, 255, 256, 257, 1000])
def test_vocabularies_of_any_size(size):
    row = logits(size, 3, 2.0, 6)
    for asked in (Sampling(), Sampling(top_p=0.9), Sampling(top_k=100), Sampling(mirostat=Mirostat())):
        assert set(copies(row, asked, logprobs=20)) <= set(range(size))


@pytest.mark.parametrize("width", [0.1, 3.0])
@pytest.mark.parametrize("asked", [{"top_p": 0.5}, {"typical_p": 0.5}, {"top_p": 0.9, "typical_p": 0.5}])
def test_flat_rows_of_a_large_vocabulary_are_cut_as_defined(asked, width):
    row, sampling = logits(8_000, 5, width, 6), Sampling(**asked)
    kept = reference.distribution(row, sampling)
    drawn = copies(row, sampling, 400)
    assert sum(token not in kept for token in drawn) <= 1, "but for one at the edge, as float32 has it"
    middle = (min(kept.values()) + max(kept.values())) / 2
    expected = sum(chance for chance in kept.values() if chance <= middle)
    assert abs(sum(kept.get(token, 0.0) <= middle for token in drawn) / len(drawn) - expected) < 0.12


def test_rows_list_what_each_asks_for_whatever_the_others_ask() -> None:
    size = 300
    block = np.stack([logits(size, seed, 3.0, 6, hidden=0.2) for seed in range(6)])
    asked: list[dict[str, Any]] = [
        {"logprobs": 3}, {"logprobs": size}, {"logprobs": 0}, {"logprobs": 5, "listed_tokens": (7, 299, 0)},
        {"logprobs": None}, {"logprobs": 100},
    ]  # fmt: skip
    cold = Sampling(temperature=0.0)
    together = Sampler(size).draw(block, [drawing(cold, size, **each) for each in asked])
    for row, (each, drawn) in enumerate(zip(asked, together, strict=True)):
        assert isinstance(drawn, SampledToken)
        assert [drawn] == Sampler(size).draw(block[row : row + 1], [drawing(cold, size, **each)])
        known = block[row].astype(np.float64)
        known -= known.max() + math.log(np.exp(known - known.max()).sum())
        finite = int(np.isfinite(known).sum())
        tokens = [token for token, _ in drawn.alternatives]
        wanted = each.get("listed_tokens") or [
            *np.argsort(-known, kind="stable")[: min(each["logprobs"] or 0, finite)]
        ]
        assert tokens == [*wanted]
        for token, value in drawn.alternatives:
            assert value == known[token] or abs(value - known[token]) < 1e-4


def test_listed_tokens_are_of_the_vocabulary() -> None:
    for wrong in (-1, 5):
        with pytest.raises(InvalidValue, match=f"logprob_token_ids holds {wrong}, no token id"):
            drawing(Sampling(), 5, logprobs=0, listed_tokens=(1, wrong))
