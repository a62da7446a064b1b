"""A toy language model: a distribution made by hashing the last tokens, and a sampler. It has no weights.

It says nothing sensible. It has what conformance needs: true log-probabilities, draws that depend on seed,
choice and position alone, and an end of turn that comes by itself now and then.
"""

import math
from functools import lru_cache
from hashlib import blake2b
from operator import itemgetter

from antiphon.domain.sampling import Sampling
from antiphon.engines.base import TokenKind, Vocabulary

MEMORY = 3
"""Tokens of the past that the next one depends on."""
CANDIDATES = 6
"""Tokens that are likely at each place."""


def draw(seed: int, choice: int, position: int) -> float:
    """A number in [0, 1) that depends on nothing else."""
    key = b"".join((value & (2**64 - 1)).to_bytes(8, "little") for value in (seed, choice, position))
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "little") / 2**64


class ToyModel:
    """Raw log-probabilities of the next token, and the choice among them."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        kinds = vocabulary.kinds
        self._speakable = [index for index, kind in enumerate(kinds) if kind is TokenKind.NORMAL]
        self._size = len(kinds)
        self._eos = vocabulary.eos_id
        self._cached = lru_cache(maxsize=4096)(self._distribution)

    def logprobs(self, past: tuple[int, ...]) -> tuple[float, ...]:
        """Log-probability of each id after these tokens; sums to one."""
        return self._cached(past[-MEMORY:])

    def _distribution(self, past: tuple[int, ...]) -> tuple[float, ...]:
        noise = blake2b(repr(past).encode(), digest_size=64).digest()
        logits = [noise[index % 64] / 256 + (index * 37 % 101) / 101 for index in range(self._size)]
        for place in range(CANDIDATES):
            pick = int.from_bytes(noise[place * 4 : place * 4 + 4], "little")
            logits[self._speakable[pick % len(self._speakable)]] += 5.0 + pick % 997 / 500
        if self._eos is not None and noise[63] < 24:
            logits[self._eos] += 6.0
        total = math.log(math.fsum(map(math.exp, logits)))
        return tuple(logit - total for logit in logits)

    def pick(self, past: tuple[int, ...], sampling: Sampling, choice: int, position: int) -> int:
        """The next token; `position` counts generated tokens."""
        raw = self.logprobs(past)
        if sampling.temperature == 0:
            return raw.index(max(raw))
        ranked = sorted(
            ((value / sampling.temperature, index) for index, value in enumerate(raw)), reverse=True
        )
        kept = _truncated(ranked, sampling)
        target = draw(sampling.seed, choice, position) * sum(weight for weight, _ in kept)
        for weight, index in kept:
            target -= weight
            if target < 0:
                return index
        return kept[-1][1]


def _truncated(ranked: list[tuple[float, int]], sampling: Sampling) -> list[tuple[float, int]]:
    """Min-p, top-k, top-p, in this order, over (scaled log-probability, id) from the likeliest; gives
    weights."""
    best = ranked[0][0]
    weights = [(math.exp(value - best), index) for value, index in ranked]
    weights = [pair for pair in weights if pair[0] >= sampling.min_p]
    if sampling.top_k > 0:
        weights = weights[: sampling.top_k]
    room = sampling.top_p * sum(map(itemgetter(0), weights))
    kept: list[tuple[float, int]] = []
    for pair in weights:
        kept.append(pair)
        room -= pair[0]
        if room <= 0:
            break
    return kept
