"""Filters of one whole row of weights. They are needed if the largest weights of a row are not enough: for a
large top-p, a large top-k, or typical-p.

The weight of a token is exp((logit - largest logit) / temperature), at most 1. A filter sets the excluded
weights to 0, in place. Top-p and typical-p keep the weights with the smallest integer keys, up to a sum. To
find the boundary without sorting more than SORTABLE keys, they sum the weights by the leading bits of the
keys, then by the next bits of the keys near the boundary, until few keys, or only equal keys, are left.
"""

import numpy as np
from numpy.typing import NDArray

from antiphon.domain.sampling import Sampling
from antiphon.engines.sampling.logits import Floats, Ids, find_largest

SORTABLE = 512
"""The most keys that are sorted. For more keys, bins are faster."""

SHIFTS = (20, 10, 0)
"""The number of low bits of a key that each pass ignores. A key has 31 bits."""

BINCOUNT_CHUNK = 1 << 14
"""The most keys that are counted at once. Counting copies the keys, and the copies should fit the cache."""

MAX_SURPRISE = np.float32(1e30)
"""Replaces an infinite surprise, so that its product with a weight of 0 is 0."""

MIN_MASS = float(np.finfo(np.float64).tiny)
"""A number below any weight above 0. It replaces a mass of 0, which a top-p of 0 gives, so that one token is
kept."""

Doubles = NDArray[np.float64]
Keys = NDArray[np.int32]


def apply_filters(sampling: Sampling, weights: Floats) -> None:
    """Applies min-p, top-k, top-p and typical-p in this order. Excluded weights become 0; at least one stays.

    `weights`: one row, the largest is 1.
    """
    if sampling.min_p > 0:
        weights *= weights >= np.float32(sampling.min_p)
    if 0 < sampling.top_k < len(weights):
        keep_only(weights, find_largest(weights, sampling.top_k))
    if sampling.top_p < 1:
        largest_first = 0x7FFFFFFF - weights.view(np.int32)
        keep_smallest(largest_first, weights, sampling.top_p * sum_weights(weights))
    if sampling.typical_p < 1:
        most_typical_first = compute_atypicality(weights).view(np.int32)
        keep_smallest(most_typical_first, weights, sampling.typical_p * sum_weights(weights))


def sum_weights(weights: Floats) -> float:
    """Returns the sum of a row, by pairwise summation."""
    return float(weights.sum())


def keep_only(weights: Floats, indices: Ids) -> None:
    """Sets all weights to 0, except at `indices`."""
    kept_weights = weights[indices]
    weights.fill(0.0)
    weights[indices] = kept_weights


def compute_atypicality(weights: Floats) -> Floats:
    """Returns the distance of each token's surprise from the expected surprise, in nats (Meister and others,
    2022)."""
    with np.errstate(divide="ignore"):
        distances = np.log(weights)
    np.maximum(distances, -MAX_SURPRISE, out=distances)
    distances -= (weights * distances).sum() / weights.sum()
    return np.abs(distances, out=distances)


def keep_smallest(keys: Keys, weights: Floats, mass: float) -> None:
    """Keeps the weights with the smallest keys: as few as possible, but at least one, so that they sum to
    `mass`. Sets all other weights to 0. Of equal keys, those with the lowest indices are kept.

    `keys`: not negative.
    """
    sums = sum_by_bin(keys, weights).cumsum()
    boundary_bin = find_first_reaching(sums, mass)
    indices = np.flatnonzero(keys >> SHIFTS[0] == boundary_bin)
    remaining_mass = mass - float(sums[boundary_bin - 1]) if boundary_bin else mass
    indices = indices[find_smallest(keys[indices], weights[indices], remaining_mass)]
    kept_weights = weights[indices]
    weights *= keys < boundary_bin << SHIFTS[0]
    weights[indices] = kept_weights


def sum_by_bin(keys: Keys, weights: Floats) -> Doubles:
    """Returns the sum of the weights for each value of the keys' leading bits."""
    sums = np.zeros(1 << 31 - SHIFTS[0])
    for index in range(0, len(keys), BINCOUNT_CHUNK):
        bins = keys[index : index + BINCOUNT_CHUNK] >> SHIFTS[0]
        sums += np.bincount(bins, weights[index : index + BINCOUNT_CHUNK], minlength=len(sums))
    return sums


def find_typical(weights: Doubles, mass: float) -> Ids:
    """Returns the indices of the most typical tokens: as few as possible so that their weights sum to the
    fraction `mass` of the total. A token is typical if its surprise is near the expected surprise."""
    total_mass = float(weights.sum())
    probabilities = weights / total_mass
    with np.errstate(divide="ignore"):
        surprise = -np.log(probabilities)
    expected = float((probabilities * np.where(probabilities > 0, surprise, 0.0)).sum())
    atypicality = np.abs(surprise - expected).astype(np.float32)  # infinite where the weight is 0
    return find_smallest(atypicality.view(np.int32), weights, mass * total_mass)


def find_smallest(keys: Keys, weights: Floats | Doubles, mass: float) -> Ids:
    """Returns the indices of the smallest keys: as few as possible, but at least one, so that their weights
    sum to `mass`. Of equal keys, those with the lowest indices are taken.

    `keys`: not negative.
    """
    indices = np.arange(len(keys))
    included: list[Ids] = []
    for shift in SHIFTS:
        if len(indices) <= SORTABLE:
            break
        bins = keys[indices] >> shift
        bins -= bins.min()
        sums = np.bincount(bins, weights[indices]).cumsum()
        boundary_bin = find_first_reaching(sums, mass)
        included.append(indices[bins < boundary_bin])
        mass -= float(sums[boundary_bin - 1]) if boundary_bin else 0.0
        indices = indices[bins == boundary_bin]
    # The remaining keys are few, or all equal.
    if len(indices) <= SORTABLE:
        indices = indices[keys[indices].argsort(kind="stable")]
    sums = weights[indices].astype(np.float64).cumsum()
    return np.concatenate((*included, indices[: int(sums.searchsorted(mass)) + 1]))


def find_first_reaching(sums: Doubles, mass: float) -> int:
    """Returns the index of the first positive running sum that reaches `mass`. If none reaches it, returns
    the index of the first sum that equals the total."""
    return int(sums.searchsorted(min(max(mass, MIN_MASS), float(sums[-1]))))
