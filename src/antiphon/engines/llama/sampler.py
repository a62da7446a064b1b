"""From one row of logits to a token: temperature, min-p, top-k, top-p, a seeded draw, log-probabilities.

Each row is worked on by itself and each draw depends on hash(seed, choice, position) alone, so nothing of it
changes with what else is in the batch. The vocabulary is never sorted whole: a filter first leaves out what
cannot be in. Temperatures up to `COLD` are greedy.
"""

import struct
from dataclasses import dataclass
from hashlib import blake2b
from math import isfinite, log, nextafter

import numpy as np
from numpy.typing import NDArray

from antiphon.domain.sampling import Sampling
from antiphon.errors import EngineError

Row = NDArray[np.float32]
Ids = NDArray[np.intp]

COLD = 1e-5
"""Temperature up to which the likeliest token is taken: dividing by less overflows, and would say the
same.
"""

SORTABLE = 512
"""Candidates up to which top-p sorts them all; more are first sorted into bins."""

BIN_SHIFT = 18
"""Bits of a float32 below those that name its bin: the exponent and five bits of the fraction stay."""

BLOCK = 256
"""Weights that are summed as one before a draw looks inside."""


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
    top = float(row[best])
    if not isfinite(top):
        raise EngineError("the model's output is not a number; its weights or the KV cache are damaged")
    greedy = sampling.temperature <= COLD or sampling.top_k == 1
    if greedy and logprobs is None:
        return Drawn(best)
    with np.errstate(over="ignore"):  # what is masked by a very small number becomes minus infinity
        shifted = row - row[best]
        scaled = None if greedy else shifted * np.float32(1.0 / sampling.temperature)
    token = best if scaled is None else sample(scaled, sampling, uniform(sampling.seed, choice, position))
    if logprobs is None:
        return Drawn(token)
    normal = top + log(np.exp(shifted).sum())
    said = [(int(index), min(0.0, float(row[index]) - normal)) for index in top_ids(row, logprobs)]
    return Drawn(token, min(0.0, float(row[token]) - normal), tuple(said))


def uniform(seed: int, choice: int, position: int) -> float:
    """A number in [0, 1) that depends on these three alone."""
    packed = struct.pack("<QQQ", seed % 2**64, choice, position)
    return (int.from_bytes(blake2b(packed, digest_size=8).digest(), "little") >> 11) * 2.0**-53


def sample(scaled: Row, sampling: Sampling, point: float) -> int:
    """The token at `point`, from 0 to 1, of the distribution that the filters leave.

    `scaled`: logits less their maximum, over the temperature; overwritten.
    """
    weights = np.exp(scaled, out=scaled)
    kept: Ids | None = None
    if sampling.min_p > 0:
        kept = np.flatnonzero(weights >= np.float32(sampling.min_p))
        weights = weights[kept]
    if 0 < sampling.top_k < len(weights):
        places = largest(weights, sampling.top_k)
        kept = places if kept is None else kept[places]
        weights = weights[places]
    index = pick(weights, point) if sampling.top_p >= 1 else pick_nucleus(weights, sampling.top_p, point)
    return index if kept is None else int(kept[index])


def pick(weights: Row, point: float) -> int:
    """The place at which the running sum of the weights passes `point` of the whole."""
    sums = np.add.reduceat(weights, np.arange(0, len(weights), BLOCK), dtype=np.float64).cumsum()
    target = point * float(sums[-1])
    block = passing(sums, target)
    inside = weights[block * BLOCK : (block + 1) * BLOCK].cumsum(dtype=np.float64)
    return block * BLOCK + passing(inside, target - (float(sums[block - 1]) if block else 0.0))


def passing(sums: NDArray[np.float64], target: float) -> int:
    """The first place whose running sum is above the target; the last that adds anything when none is."""
    return int(sums.searchsorted(min(target, nextafter(float(sums[-1]), 0.0)), side="right"))


def pick_nucleus(weights: Row, mass: float, point: float) -> int:
    """The same among the fewest largest weights whose sum reaches `mass` of the whole, of equal ones the
    first.
    """
    total = float(weights.sum(dtype=np.float64))
    wanted = mass * total
    # All weights below this one sum to less than what may be left out.
    places = np.flatnonzero(weights >= np.float32((total - wanted) / len(weights)))
    weights = weights[places]
    certain, sure, border = densest(weights, wanted)
    order = border[(-weights[border]).argsort(kind="stable")]
    sums = weights[order].cumsum(dtype=np.float64)
    needed = sums[: int(sums.searchsorted(wanted - sure)) + 1]
    target = point * (sure + float(needed[-1]))
    if certain is not None and target < sure:
        return int(places[pick(certain, target / sure)])
    return int(places[order[passing(needed, target - sure)]])


def densest(weights: Row, wanted: float) -> tuple[Row | None, float, Ids]:
    """Parts weights into those that are certainly among the fewest largest that sum to `wanted`, and those
    that need sorting to know, by bins of the float's own leading bits.

    Returns the certain ones, with zeros in the places of all others; their sum; and the places to sort.
    """
    if len(weights) <= SORTABLE:
        return None, 0.0, np.arange(len(weights))
    bits = weights.view(np.int32) >> BIN_SHIFT
    lowest = int(bits.min())
    masses = np.bincount(bits - lowest, weights)[::-1].cumsum()
    edge = min(int(masses.searchsorted(wanted)), len(masses) - 1)
    bin_of_edge = lowest + len(masses) - 1 - edge
    sure = float(masses[edge - 1]) if edge else 0.0
    return weights * (bits > bin_of_edge), sure, np.flatnonzero(bits == bin_of_edge)


def largest(weights: Row, count: int) -> Ids:
    """Places of the `count` largest, ascending; of equal ones the first."""
    threshold = np.partition(weights, len(weights) - count)[len(weights) - count]
    above = np.flatnonzero(weights > threshold)
    equal = np.flatnonzero(weights == threshold)[: count - len(above)]
    return np.sort(np.concatenate((above, equal)))


def top_ids(row: Row, count: int) -> Ids:
    """The ids of the `count` largest logits, best first; of equal ones the lower id."""
    count = min(count, len(row))
    if count == 0:
        return np.empty(0, dtype=np.intp)
    found = largest(row, count)
    return found[(-row[found]).argsort(kind="stable")]
