"""What a drawing refuses, and randomness."""

import math

import numpy as np
import pytest

from antiphon.domain.request import Mirostat, Sampling
from antiphon.engines.sampling import SamplingState
from antiphon.engines.sampling.sampler import apply_filters
from antiphon.engines.sampling.sampling_state import draw_uniform, hash_seed
from antiphon.errors import InvalidValue


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        (Sampling(-1.0), "temperature"),
        (Sampling(math.nan), "temperature"),
        (Sampling(top_p=1.5), "top_p"),
        (Sampling(min_p=-0.1), "min_p"),
        (Sampling(typical_p=math.nan), "typical_p"),
        (Sampling(top_k=-1), "top_k"),
        (Sampling(repetition_penalty=0.0), "repetition_penalty"),
        (Sampling(presence_penalty=math.inf), "presence_penalty"),
        (Sampling(frequency_penalty=math.nan), "frequency_penalty"),
        (Sampling(logit_bias=((1, math.nan),)), "logit_bias"),
        (Sampling(logit_bias=((10, 1.0),)), "logit_bias"),
        (Sampling(logit_bias=((-1, 1.0),)), "logit_bias"),
        (Sampling(allowed_token_ids=()), "allowed_token_ids"),
        (Sampling(allowed_token_ids=(3, 10)), "allowed_token_ids"),
        (Sampling(banned=((1,), ())), "banned"),
        (Sampling(banned=((1, 10),)), "banned"),
        (Sampling(mirostat=Mirostat(version=3)), "mirostat_mode"),
        (Sampling(mirostat=Mirostat(target=0.0)), "mirostat_target"),
        (Sampling(mirostat=Mirostat(rate=-1.0)), "mirostat_lr"),
    ],
)
def test_what_has_no_meaning_is_refused_by_name(asked, param):
    with pytest.raises(InvalidValue) as refusal:
        SamplingState(asked, 0, None, (), (), (), 10)
    assert refusal.value.param == param


def test_points_are_spread_evenly_and_differ():
    keys = [hash_seed(seed, choice) for seed in range(50) for choice in range(20)]
    table = np.array([draw_uniform(keys, [position] * len(keys)) for position in range(20)])
    assert len(np.unique(table)) == table.size
    assert (table >= 0).all() and (table < 1).all()
    counts, _ = np.histogram(table, bins=50, range=(0, 1))
    assert ((counts - 400) ** 2 / 400).sum() < 120, "chi-square of 49 degrees of freedom, far beyond its tail"
    assert abs(np.corrcoef(table[0], table[1])[0, 1]) < 0.1


def test_the_table_of_occurrences_grows_with_the_output():
    one = SamplingState(Sampling(frequency_penalty=1.0), 0, None, range(100), (), (), 1000)
    for token in [*range(500), 7, 7]:
        one.accept(token)
    row = np.zeros(1000, dtype=np.float32)
    one.apply_to(row)
    assert row[7] == -3 and row[499] == -1 and row[500] == 0 and row[:500].sum() == -502


@pytest.mark.parametrize("asked", [{"top_p": 0.0}, {"typical_p": 0.0}, {"top_p": 0.0, "typical_p": 0.0}])
@pytest.mark.parametrize("size", [8, 5000])
def test_who_asks_for_no_mass_at_all_gets_one_token(asked, size):
    weights = np.exp(np.random.default_rng(size).normal(size=size)).astype(np.float32)
    weights /= weights.max()
    apply_filters(Sampling(**asked), weights)
    assert np.count_nonzero(weights) == 1
