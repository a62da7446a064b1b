"""Mirostat: cutting the tail of a distribution so that the surprise of the tokens keeps to a target.

After Basu and others, 2020, "Mirostat: a neural text decoding algorithm that directly controls perplexity".
It holds the threshold of one sequence; the distribution is the sampler's.
"""

from math import exp, log

import numpy as np
from numpy.typing import NDArray

from antiphon.domain.sampling import Mirostat
from antiphon.errors import InvalidValue

ESTIMATED = 100
"""Likeliest tokens from which version 1 estimates the exponent of Zipf's law."""

VERSIONS = (1, 2)


class Steering:
    """The threshold, in bits, of one sequence: twice the target at first."""

    __slots__ = ("_rate", "_target", "limit", "version")

    def __init__(self, wanted: Mirostat) -> None:
        if wanted.version not in VERSIONS:
            raise InvalidValue("Mirostat has the versions 1 and 2", param="mirostat_mode")
        if not 0 < wanted.target < float("inf"):
            raise InvalidValue(
                "mirostat_target is the surprise to hold, in bits; it must be above 0",
                param="mirostat_target",
            )
        if not 0 <= wanted.rate <= 1:
            raise InvalidValue("mirostat_lr must be from 0 to 1", param="mirostat_lr")
        self.version = wanted.version
        self._target = wanted.target
        self._rate = wanted.rate
        self.limit = 2.0 * wanted.target

    def least(self, mass: float) -> float:
        """Version 2: the weight below which a token is more surprising than the threshold, of weights that
        sum to `mass`."""
        return float(mass * 2.0 ** -max(self.limit, 0.0))

    def count(self, best: NDArray[np.float64], vocabulary: int) -> int:
        """Version 1: how many of the likeliest tokens to keep, by Zipf's law fitted to the weights of the
        best ones, in descending order."""
        best = best[:ESTIMATED][best[:ESTIMATED] > 0]
        if len(best) < 2:
            return 1
        ranks = np.arange(1, len(best) + 1, dtype=np.float64)
        steps, falls = np.log(ranks[1:] / ranks[:-1]), np.log(best[:-1] / best[1:])
        exponent = float((steps * falls).sum() / (steps * steps).sum())
        bits = max(self.limit, 0.0) * log(2.0)
        if exponent <= 0:
            return vocabulary  # all alike: there is no tail to cut
        excess = exponent - 1.0
        # (excess * 2^limit / (1 - vocabulary^-excess)) ^ (1 / exponent), by logarithms; its limit where
        # excess is 0
        scale = log(vocabulary) if abs(excess) < 1e-9 else (1.0 - vocabulary**-excess) / excess
        size = (bits - log(scale)) / exponent
        return vocabulary if size > log(vocabulary) else max(1, round(exp(size)))

    def observe(self, surprise: float) -> None:
        """Moves the threshold after a token of so many bits."""
        self.limit -= self._rate * (surprise - self._target)
