"""Filters over one row of weights, for what the largest of them cannot decide: wide nuclei, typical tokens,
large k.

Nothing is sorted that is longer than SORTABLE: what is cut off is found by the leading bits of the keys, then
by the next ones, until all that is left is equal.
"""

import numpy as np
from numpy.typing import NDArray

from antiphon.domain.sampling import Sampling
from antiphon.engines.llama.sampling.block import Floats, Ids, largest

SORTABLE = 512
"""Keys up to which sorting them is quickest."""

SHIFTS = (20, 10, 0)
"""Bits of a key below those looked at in each pass; a key has 31."""

Wide = NDArray[np.float64]
Keys = NDArray[np.int32]


def keep(sampling: Sampling, weights: Floats) -> Ids:
    """Ids that min-p, top-k, top-p and typical-p leave, one after the other; at least one.

    `weights`: the largest is 1.
    """
    kept = np.flatnonzero(weights >= np.float32(sampling.min_p))
    if 0 < sampling.top_k < len(kept):
        kept = kept[largest(weights[kept], sampling.top_k)]
    if sampling.top_p < 1:
        kept = kept[keep_likeliest(weights[kept], sampling.top_p)]
    if sampling.typical_p < 1:
        kept = kept[keep_typical(weights[kept], sampling.typical_p)]
    return kept


def keep_likeliest(weights: Floats, mass: float) -> Ids:
    """Places of the fewest largest weights that sum to `mass` of the whole."""
    keys = 0x7FFFFFFF - weights.view(np.int32)
    return fewest(keys, weights, mass * float(weights.sum(dtype=np.float64)))


def keep_typical(weights: Floats | Wide, mass: float) -> Ids:
    """Places of the fewest weights that sum to `mass` of the whole, those first whose surprise is nearest to
    the expected one (Meister and others, 2022)."""
    total = float(weights.sum(dtype=np.float64))
    chances = weights.astype(np.float64) / total
    with np.errstate(divide="ignore"):
        surprise = -np.log(chances)
    expected = float((chances * np.where(chances > 0, surprise, 0.0)).sum())
    unusual = np.abs(surprise - expected).astype(np.float32)  # infinite where the weight is nothing
    return fewest(unusual.view(np.int32), weights, mass * total)


def fewest(keys: Keys, weights: Floats | Wide, wanted: float) -> Ids:
    """Places of the fewest smallest keys whose weights sum to `wanted`, at least one; of equal ones the
    first.

    `keys`: not negative.
    """
    places = np.arange(len(keys))
    sure: list[Ids] = []
    for shift in SHIFTS:
        if len(places) <= SORTABLE:
            break
        bins = keys[places] >> shift
        bins -= bins.min()
        sums = np.bincount(bins, weights[places]).cumsum()
        edge = min(int(sums.searchsorted(wanted)), len(sums) - 1)
        sure.append(places[bins < edge])
        wanted -= float(sums[edge - 1]) if edge else 0.0
        places = places[bins == edge]
    # Now few, or all equal.
    if len(places) <= SORTABLE:
        places = places[keys[places].argsort(kind="stable")]
    sums = weights[places].astype(np.float64).cumsum()
    return np.concatenate((*sure, places[: int(sums.searchsorted(wanted)) + 1]))


def pick(weights: Floats, point: float) -> int:
    """The place at which the running sum of the weights passes `point` of the whole."""
    sums = weights.astype(np.float64).cumsum()
    target = min(point * sums[-1], np.nextafter(sums[-1], 0.0))
    return int(sums.searchsorted(target, side="right"))
