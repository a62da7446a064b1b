"""Every sampling parameter does what its definition says: thousands of draws from the demo model's
distributions.

Each case is also held against the distribution without the parameter, which the draws must not fit.
"""

import math
from collections import Counter

import numpy as np
import pytest

from antiphon.domain.request import Mirostat, Sampling
from antiphon.engines.sampling import SampledToken, Sampler, SamplingState
from tests.engines.sampling import reference

DRAWS = 1000


def drawn(
    row: np.ndarray, asked: Sampling, output: list[int], prompt: list[int], ends: list[int]
) -> Counter[int]:
    """How often each token was drawn, by as many choices with the same history."""
    many = [SamplingState(asked, n, None, prompt, ends, (), len(row)) for n in range(DRAWS)]
    for one in many:
        for token in output:
            one.accept(token)
    results = Sampler(len(row)).draw(np.broadcast_to(row, (DRAWS, len(row))), many)
    return Counter(one.token for one in results if isinstance(one, SampledToken))


def fits(counts: Counter[int], chances: reference.Chances) -> bool:
    """Pearson's test, far beyond what chance gives; rare tokens are one."""
    if not {*counts} <= {*chances}:
        return False
    often = {token for token, chance in chances.items() if chance * DRAWS >= 8}
    bins = [(counts[token], chances[token] * DRAWS) for token in often]
    rest = sum(chance for token, chance in chances.items() if token not in often) * DRAWS
    if rest >= 1:
        bins.append((DRAWS - sum(count for count, _ in bins), rest))
    distance = sum((count - expected) ** 2 / expected for count, expected in bins)
    return distance < len(bins) + 6 * math.sqrt(2 * len(bins)) + 12


def best(row: np.ndarray, count: int) -> list[int]:
    return [int(token) for token in np.argsort(-row)[:count]]


CASES = {
    "temperature, colder": Sampling(0.5),
    "temperature, hotter": Sampling(1.7),
    "top_p": Sampling(top_p=0.6),
    "top_k": Sampling(top_k=3),
    "min_p": Sampling(min_p=0.3),
    "typical_p": Sampling(typical_p=0.3),
    "top_p after top_k and temperature": Sampling(0.8, top_k=5, top_p=0.8),
    "typical_p after min_p": Sampling(min_p=0.1, typical_p=0.5),
}


@pytest.mark.parametrize("asked", CASES.values(), ids=[*CASES])
def test_filters_leave_the_distribution_of_their_definition(row, asked):
    counts = drawn(row, asked, [], [], [])
    assert fits(counts, reference.distribution(row.astype(np.float64), asked))
    assert not fits(counts, reference.distribution(row.astype(np.float64), Sampling()))


def test_without_parameters_the_distribution_is_the_models(row):
    assert fits(
        drawn(row, Sampling(), [], [], []), reference.distribution(row.astype(np.float64), Sampling())
    )


def changes(row: np.ndarray) -> dict[str, tuple[Sampling, list[int], list[int]]]:
    """By parameter: what is asked, the output so far and the prompt, of likely tokens so that they matter."""
    first, second, third, *_ = likely = best(row, 6)
    return {
        "repetition_penalty of the prompt": (Sampling(repetition_penalty=1.8), [], likely[:3]),
        "repetition_penalty of the output": (Sampling(repetition_penalty=1.8), likely[:3], []),
        "presence_penalty": (Sampling(presence_penalty=1.5), [first, second, second], []),
        "frequency_penalty": (Sampling(frequency_penalty=0.6), [first, first, first, second], []),
        "negative penalties": (
            Sampling(presence_penalty=-1.0, frequency_penalty=-0.5),
            [third, third],
            [first],
        ),
        "logit_bias": (Sampling(logit_bias=((first, -100.0), (likely[5], 2.0))), [], []),
        "allowed_token_ids": (Sampling(allowed_token_ids=tuple(likely[1:5])), [], []),
    }


@pytest.mark.parametrize(
    "name",
    [
        "repetition_penalty of the prompt",
        "repetition_penalty of the output",
        "presence_penalty",
        "frequency_penalty",
        "negative penalties",
        "logit_bias",
        "allowed_token_ids",
    ],
)
def test_masks_bias_and_penalties_give_their_distribution(row, name):
    asked, output, prompt = changes(row)[name]
    counts = drawn(row, asked, output, prompt, [])
    assert fits(counts, reference.distribution(reference.changed(row, asked, prompt, output), asked))
    assert not fits(counts, reference.distribution(row.astype(np.float64), Sampling()))


def test_presence_and_frequency_look_at_the_output_alone(row):
    asked = Sampling(presence_penalty=2.0, frequency_penalty=2.0)
    counts = drawn(row, asked, [], best(row, 5), [])
    assert fits(counts, reference.distribution(row.astype(np.float64), Sampling()))


def test_min_tokens_and_ignore_eos(row):
    ends = best(row, 2)
    early = reference.changed(row, Sampling(), forbidden=ends)
    waiting = drawn(row, Sampling(min_tokens=1), [], [], ends)
    assert fits(waiting, reference.distribution(early, Sampling()))
    late = drawn(row, Sampling(min_tokens=1), [5], [], ends)
    assert fits(late, reference.distribution(row.astype(np.float64), Sampling()))
    ignoring = drawn(row, Sampling(min_tokens=1, ignore_eos=True), [], [], ends)
    assert fits(ignoring, reference.distribution(row.astype(np.float64), Sampling()))


@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_keeps_the_mean_surprise_to_its_target(live, version):
    live = live[20:60]
    chances = np.array([reference.softmax(one) for one in live])
    surprises = -np.log2(chances, where=chances > 0, out=np.zeros_like(chances))
    expected = float((chances * surprises).sum(axis=1).mean())
    least = float(-np.log2(chances.max(axis=1)).mean())
    """Of greedy decoding: no target below is reached."""

    def mean(asked: Sampling, rounds: int = 8) -> float:
        one, sampler, found = (
            SamplingState(asked, 0, None, (), (), (), live.shape[1]),
            Sampler(live.shape[1]),
            [],
        )
        for _ in range(rounds):
            for at, logits in enumerate(live):
                (result,) = sampler.draw(logits[None], [one])
                assert isinstance(result, SampledToken)
                found.append(surprises[at, result.token])
        return float(np.mean(found[len(found) // 4 :]))

    assert mean(Sampling()) == pytest.approx(expected, rel=0.15)
    for part in (0.3, 0.7):
        target = least + part * (expected - least)
        assert mean(Sampling(mirostat=Mirostat(target, 0.1, version))) == pytest.approx(target, rel=0.15)
