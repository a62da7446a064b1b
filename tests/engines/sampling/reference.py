"""The sampler as the definitions say it: float64, everything sorted, one row at a time. Slow and obvious.

Written independently of the fast one, which is held against it.
"""

import itertools
import math
from collections.abc import Collection, Sequence

import numpy as np

from antiphon.domain.request import Sampling
from antiphon.domain.values import replace

Chances = dict[int, float]

SLACK = 1e-4


def softmax(logits: np.ndarray) -> np.ndarray:
    wide = np.asarray(logits, dtype=np.float64)
    weights: np.ndarray = np.exp(wide - wide.max())
    chances: np.ndarray = weights / weights.sum()
    return chances


def log_probabilities(logits: np.ndarray) -> np.ndarray:
    wide = np.asarray(logits, dtype=np.float64)
    shifted: np.ndarray = wide - wide.max()
    scores: np.ndarray = shifted - math.log(np.exp(shifted).sum())
    return scores


def changed(
    logits: np.ndarray,
    sampling: Sampling,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    forbidden: Collection[int] = (),
) -> np.ndarray:
    """Masks, bias, penalties. `forbidden`: end and stop tokens that min_tokens bans now."""
    row = np.asarray(logits, dtype=np.float64).copy()
    for token, bias in sampling.logit_bias:
        row[token] += bias
    for token in {*prompt, *output}:
        penalty = sampling.repetition_penalty
        row[token] = row[token] / penalty if row[token] > 0 else row[token] * penalty
    for token in set(output):
        row[token] -= sampling.presence_penalty
        row[token] -= sampling.frequency_penalty * list(output).count(token)
    for token in range(len(row)):
        if sampling.allowed_token_ids is not None and token not in sampling.allowed_token_ids:
            row[token] = -math.inf
        if token in forbidden:
            row[token] = -math.inf
        for *before, last in sampling.banned:
            if last == token and list(output)[max(0, len(output) - len(before)) :] == before:
                row[token] = -math.inf
    return row


def by_chance(chances: Chances) -> list[int]:
    return sorted(chances, key=lambda token: (-chances[token], token))


def first_to_reach(order: list[int], chances: Chances, mass: float) -> list[int]:
    """The first of the order whose probabilities sum to `mass`; at least one."""
    total, kept = 0.0, []
    for token in order:
        kept.append(token)
        total += chances[token]
        if total >= mass:
            break
    return kept


def restricted(chances: Chances, kept: Collection[int]) -> Chances:
    total = sum(chances[token] for token in kept)
    return {token: chances[token] / total for token in kept}


def distribution(row: np.ndarray, sampling: Sampling) -> Chances:
    """Probabilities of the tokens that the filters leave of changed logits."""
    chances = dict(enumerate(softmax(row / sampling.temperature).tolist()))
    least = sampling.min_p * max(chances.values())
    chances = restricted(chances, [token for token in chances if chances[token] >= least > 0 or least == 0])
    chances = {token: chance for token, chance in chances.items() if chance > 0}
    if sampling.top_k:
        chances = restricted(chances, by_chance(chances)[: sampling.top_k])
    if sampling.top_p < 1:
        chances = restricted(chances, first_to_reach(by_chance(chances), chances, sampling.top_p))
    if sampling.typical_p < 1:
        entropy = -sum(chance * math.log(chance) for chance in chances.values())
        order = sorted(chances, key=lambda token: (abs(-math.log(chances[token]) - entropy), token))
        chances = restricted(chances, first_to_reach(order, chances, sampling.typical_p))
    return chances


def possible(row: np.ndarray, sampling: Sampling) -> set[int]:
    """What the filters may leave when each is a little wider or narrower, as float32 has it."""
    shifts = [1 - SLACK, 1 + SLACK]
    found: set[int] = set()
    for min_p, top_p, typical_p in itertools.product(shifts, repeat=3):
        near = replace(
            sampling,
            min_p=min(1.0, sampling.min_p * min_p),
            top_p=min(1.0, sampling.top_p * top_p) if sampling.top_p < 1 else 1.0,
            typical_p=min(1.0, sampling.typical_p * typical_p) if sampling.typical_p < 1 else 1.0,
        )
        found |= {*distribution(row, near)}
    return found


def mirostat_2(row: np.ndarray, temperature: float, limit: float) -> Chances:
    """The tokens whose surprise is at most `limit` bits, at least the likeliest."""
    chances = dict(enumerate(softmax(row / temperature).tolist()))
    kept = [token for token, chance in chances.items() if chance > 0 and -math.log2(chance) <= limit]
    return restricted(chances, kept or by_chance(chances)[:1])


def mirostat_1(row: np.ndarray, temperature: float, limit: float) -> int:
    """How many of the likeliest tokens version 1 keeps."""
    best = np.sort(softmax(row / temperature))[::-1][:100]
    best = best[best > 0]
    above = below = 0.0
    for rank in range(1, len(best)):
        step, fall = math.log((rank + 1) / rank), math.log(best[rank - 1] / best[rank])
        above += step * fall
        below += step * step
    exponent = above / below
    excess = exponent - 1
    size = float((excess * 2**limit / (1 - len(row) ** -excess)) ** (1 / exponent))
    return max(1, round(size))


def surprise(row: np.ndarray, temperature: float, token: int) -> float:
    return -math.log2(float(softmax(row / temperature)[token]))
