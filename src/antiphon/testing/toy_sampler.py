"""Drawing a token as the seam defines it, slowly and obviously: masks, bias and penalties, temperature, then
min-p, top-k, top-p, typical-p, or Mirostat in their place.

Log-probabilities stand for logits. Every draw depends on seed, choice and position alone. Mirostat is version
2 only.
"""

import math
from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b

from antiphon.domain.sampling import Mirostat, Sampling
from antiphon.errors import InvalidValue

Weighted = list[tuple[float, int]]
"""Probabilities with their ids, likeliest first; they need not sum to one."""


def draw(seed: int, choice: int, position: int) -> float:
    """A number in [0, 1) that depends on nothing else."""
    key = b"".join((value & (2**64 - 1)).to_bytes(8, "little") for value in (seed, choice, position))
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "little") / 2**64


class ToySampler:
    """The draws of one sequence."""

    def __init__(self, sampling: Sampling, choice: int, prompt: Sequence[int], ends: frozenset[int]) -> None:
        """`ends`: tokens that would end the sequence, which is forbidden for the first `min_tokens`."""
        if sampling.mirostat is not None and sampling.mirostat.version != Mirostat().version:
            raise InvalidValue("the toy knows version 2 of Mirostat only")
        self._sampling = sampling
        self._choice = choice
        self._ends = ends
        self._prompt = frozenset(prompt)
        self._said: Counter[int] = Counter()
        self._output: list[int] = []
        self._bias = dict(sampling.logit_bias)
        self._allowed = None if sampling.allowed_token_ids is None else frozenset(sampling.allowed_token_ids)
        self._threshold = 2 * sampling.mirostat.target if sampling.mirostat is not None else 0.0

    def next(self, raw: Sequence[float]) -> int:
        """The next token after `raw` log-probabilities."""
        position = self._said.total()
        legal = [
            (self._logit(token, value), token) for token, value in enumerate(raw) if self._is_legal(token)
        ]
        token = self._draw(sorted(legal, key=lambda pair: (-pair[0], pair[1])), position)
        self._said[token] += 1
        self._output.append(token)
        return token

    def _is_legal(self, token: int) -> bool:
        early = self._said.total() < self._sampling.min_tokens and token in self._ends
        return not early and (self._allowed is None or token in self._allowed) and not self._is_banned(token)

    def _is_banned(self, token: int) -> bool:
        output = tuple(self._output)
        ended = [banned for banned in self._sampling.banned if banned[-1] == token]
        return any(output[len(output) - len(banned) + 1 :] == banned[:-1] for banned in ended)

    def _logit(self, token: int, value: float) -> float:
        sampling, count = self._sampling, self._said[token]
        value += self._bias.get(token, 0.0)
        if count or token in self._prompt:
            factor = sampling.repetition_penalty
            value = value / factor if value > 0 else value * factor
        return value - sampling.frequency_penalty * count - sampling.presence_penalty * bool(count)

    def _draw(self, ranked: Weighted, position: int) -> int:
        sampling = self._sampling
        if sampling.temperature == 0:
            return ranked[0][1]
        best = ranked[0][0]
        weights = [(math.exp((value - best) / sampling.temperature), token) for value, token in ranked]
        number = draw(sampling.seed, self._choice, position)
        if sampling.mirostat is None:
            return _pick(_truncate(weights, sampling), number)
        return self._draw_mirostat(_shares(weights), number, sampling.mirostat)

    def _draw_mirostat(self, shares: Weighted, number: float, mirostat: Mirostat) -> int:
        near = [pair for pair in shares if pair[0] > 0 and -math.log2(pair[0]) <= self._threshold]
        kept = _shares(near or shares[:1])
        token = _pick(kept, number)
        surprise = -math.log2(next(share for share, other in kept if other == token))
        self._threshold -= mirostat.rate * (surprise - mirostat.target)
        return token


def _shares(weights: Weighted) -> Weighted:
    total = math.fsum(weight for weight, _ in weights)
    return [(weight / total, token) for weight, token in weights]


def _pick(weights: Weighted, number: float) -> int:
    target = number * math.fsum(weight for weight, _ in weights)
    for weight, token in weights:
        target -= weight
        if target < 0:
            return token
    return weights[-1][1]


def _truncate(weights: Weighted, sampling: Sampling) -> Weighted:
    """Min-p, top-k, top-p, typical-p, in this order."""
    weights = [pair for pair in weights if pair[0] >= sampling.min_p]
    if sampling.top_k > 0:
        weights = weights[: sampling.top_k]
    weights = _keep_share(weights, sampling.top_p)
    return weights if sampling.typical_p >= 1 else _apply_typical(weights, sampling.typical_p)


def _keep_share(weights: Weighted, share: float) -> Weighted:
    """The first of them that together have this share; at least one."""
    kept: Weighted = []
    room = share * math.fsum(weight for weight, _ in weights)
    for pair in weights:
        kept.append(pair)
        room -= pair[0]
        if room <= 0:
            break
    return kept


def _apply_typical(weights: Weighted, share: float) -> Weighted:
    shares = [pair for pair in _shares(weights) if pair[0] > 0]
    entropy = -math.fsum(part * math.log(part) for part, _ in shares)
    near = sorted(shares, key=lambda pair: abs(-math.log(pair[0]) - entropy))
    return sorted(_keep_share(near, share), reverse=True)
