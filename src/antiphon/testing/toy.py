"""A toy language model: a distribution made by hashing the last tokens. It has no weights; drawing is in
`toy_sampler`.

It says nothing sensible. It has what conformance needs: true log-probabilities, and an end of turn that comes
by itself now and then.
"""

import math
from functools import lru_cache
from hashlib import blake2b

from antiphon.engines.base import TokenKind, Vocabulary

MEMORY = 3
"""Tokens of the past that the next one depends on."""
CANDIDATES = 6
"""Tokens that are likely at each place."""


class ToyModel:
    """Raw log-probabilities of the next token."""

    def __init__(self, vocabulary: Vocabulary, adapter: str = "") -> None:
        """`adapter`: what makes it another model, if anything."""
        self._salt = adapter.encode()
        kinds = vocabulary.kinds
        self._speakable = [index for index, kind in enumerate(kinds) if kind is TokenKind.NORMAL]
        self._size = len(kinds)
        self._eos = vocabulary.eos_id
        self._cached = lru_cache(maxsize=4096)(self._distribution)

    def logprobs(self, past: tuple[int, ...]) -> tuple[float, ...]:
        """Log-probability of each id after these tokens; sums to one."""
        return self._cached(past[-MEMORY:])

    def _distribution(self, past: tuple[int, ...]) -> tuple[float, ...]:
        noise = blake2b(self._salt + repr(past).encode(), digest_size=64).digest()
        logits = [noise[index % 64] / 256 + (index * 37 % 101) / 101 for index in range(self._size)]
        for place in range(CANDIDATES):
            pick = int.from_bytes(noise[place * 4 : place * 4 + 4], "little")
            logits[self._speakable[pick % len(self._speakable)]] += 5.0 + pick % 997 / 500
        if self._eos is not None and noise[63] < 24:
            logits[self._eos] += 6.0
        total = math.log(math.fsum(map(math.exp, logits)))
        return tuple(logit - total for logit in logits)


def rank(row: tuple[float, ...], token: int) -> int:
    """1 for the likeliest token of a row, and so on."""
    return 1 + sum(value > row[token] for value in row)


def best(row: tuple[float, ...], count: int) -> tuple[tuple[int, float], ...]:
    """The likeliest tokens, best first."""
    return tuple(sorted(enumerate(row), key=lambda pair: -pair[1])[:count])
