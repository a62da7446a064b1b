"""From one row of logits to a token: temperature, min-p, top-k, top-p, a seeded draw, log-probabilities.

Each row is worked on by itself and each draw depends on hash(seed, choice, position) alone, so nothing of it
changes with what else is in the batch. The vocabulary is never sorted whole: a filter first leaves out what
cannot be in. Temperatures up to `COLD` are greedy.
"""

import struct
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from antiphon.domain.sampling import Sampling
from antiphon.errors import EngineError

Row = NDArray[np.float32]
Ids = NDArray[np.intp]

COLD = 1e-5
"""Temperature up to which the likeliest token is taken: dividing by less overflows, and would say the same.
"""

SORTABLE = 2048
"""Candidates up to which top-p sorts them all; more are first sorted into bins."""

BINS_PER_OCTAVE = 8
"""Fineness of those bins, over halvings of the probability."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A token and what is said of it."""

    token: int
    logprob: float | None = None
    alternatives: tuple[tuple[int, float], ...] = ()
    """The likeliest (id, log-probability), best first."""


def draw(row: Row, sampling: Sampling, choice: int, position: int, logprobs: int | None) -> Drawn:
    """Draws the token of `position`, counted from the sequence's first drawn one, from a row of raw logits.

    `logprobs`: None asks for no log-probabilities, k for the token's and those of the k likeliest. Raises
    EngineError when the logits are no numbers.
    """
    best = int(row.argmax())
    top = row[best]
    if not np.isfinite(top):
        raise EngineError("the model's output is not a number; its weights or the KV cache are damaged")
    if sampling.temperature <= COLD or sampling.top_k == 1:
        token = best
    else:
        token = sample(row - top, sampling, uniform(sampling.seed, choice, position))
    if logprobs is None:
        return Drawn(token)
    normal = float(top) + float(np.log(np.exp(row - top).sum(dtype=np.float64)))
    said = [(int(index), min(0.0, float(row[index]) - normal)) for index in top_ids(row, logprobs)]
    return Drawn(token, min(0.0, float(row[token]) - normal), tuple(said))


def uniform(seed: int, choice: int, position: int) -> float:
    """A number in [0, 1) that depends on these three alone."""
    packed = struct.pack("<QQQ", seed % 2**64, choice, position)
    return (int.from_bytes(blake2b(packed, digest_size=8).digest(), "little") >> 11) * 2.0**-53


def sample(shifted: Row, sampling: Sampling, point: float) -> int:
    """The token at `point` of the distribution's cumulative sum. `shifted`: logits less their maximum."""
    shifted *= np.float32(1.0 / sampling.temperature)
    weights = np.exp(shifted, out=shifted)
    kept = candidates(weights, sampling)
    chosen = weights if kept is None else weights[kept]
    mass = chosen.cumsum(dtype=np.float64)
    index = min(int(mass.searchsorted(point * mass[-1], side="right")), len(mass) - 1)
    return index if kept is None else int(kept[index])


def candidates(weights: Row, sampling: Sampling) -> Ids | None:
    """The ids that may be drawn, ascending; None for all. `weights`: probabilities over the largest one."""
    kept: Ids | None = None
    if sampling.min_p > 0:
        kept = np.flatnonzero(weights >= np.float32(sampling.min_p))
    if 0 < sampling.top_k < (len(weights) if kept is None else len(kept)):
        kept = subset(kept, largest(weights if kept is None else weights[kept], sampling.top_k))
    if sampling.top_p < 1:
        kept = subset(kept, nucleus(weights if kept is None else weights[kept], sampling.top_p))
    return kept


def subset(kept: Ids | None, places: Ids) -> Ids:
    """The ids at these places of what was kept before."""
    return places if kept is None else kept[places]


def largest(weights: Row, count: int) -> Ids:
    """Places of the `count` largest, ascending; of equal ones the first."""
    threshold = np.partition(weights, len(weights) - count)[len(weights) - count]
    above = np.flatnonzero(weights > threshold)
    equal = np.flatnonzero(weights == threshold)[: count - len(above)]
    return np.sort(np.concatenate((above, equal)))


def nucleus(weights: Row, mass: float) -> Ids:
    """Places of the fewest largest whose sum reaches this part of all, ascending; of equal ones the first."""
    if mass <= 0:
        return np.array([weights.argmax()])
    total = float(weights.sum(dtype=np.float64))
    # All weights below this one sum to less than what may be left out.
    places = np.flatnonzero(weights >= np.float32((1.0 - mass) * total / len(weights)))
    certain, places, target = densest(weights, places, mass * total)
    order = np.argsort(-weights[places], kind="stable")
    sums = weights[places[order]].cumsum(dtype=np.float64)
    needed = places[order[: int(sums.searchsorted(target)) + 1]]
    return np.sort(np.concatenate((certain, needed)))


def densest(weights: Row, places: Ids, target: float) -> tuple[Ids, Ids, float]:
    """Parts places into those that are certainly in the nucleus and those that need sorting; and the mass
    that the latter must add.
    """
    if len(places) <= SORTABLE:
        return places[:0], places, target
    with np.errstate(divide="ignore"):
        octaves = np.log2(weights[places] / weights.max())
    bins = np.minimum(-octaves * BINS_PER_OCTAVE, SORTABLE).astype(np.intp)
    sums = np.bincount(bins, weights[places]).cumsum()
    edge = min(int(sums.searchsorted(target)), len(sums) - 1)
    before = float(sums[edge - 1]) if edge else 0.0
    return places[bins < edge], places[bins == edge], target - before


def top_ids(row: Row, count: int) -> Ids:
    """The ids of the `count` largest logits, best first; of equal ones the lower id."""
    count = min(count, len(row))
    if count == 0:
        return np.empty(0, dtype=np.intp)
    found = largest(row, count)
    return found[np.argsort(-row[found], kind="stable")]
