"""Filters over one whole row of weights. They are used if the largest weights of a row do not decide: for a
large top-p, typical-p, or a large top-k.

A filter sets the weights that it excludes to 0, in place, so a row needs no list of indices. A filter sorts
no list longer than SORTABLE. It finds the boundary by the leading bits of the keys, then by the next bits of
the keys near the boundary, until few or only equal keys are left.
"""

import numpy as np
from numpy.typing import NDArray

from antiphon.domain.sampling import Sampling
from antiphon.engines.sampling.logits import Floats, Ids, find_largest

SORTABLE = 512
"""The most keys for which sorting is fastest."""

SHIFTS = (20, 10, 0)
"""For each pass, the number of lower bits of a key that the pass ignores. A key has 31 bits."""

BINCOUNT_CHUNK = 1 << 14
"""The most numbers that are counted at once: counting copies them, and the copies should fit the cache."""

MAX_FALL = np.float32(1e30)
"""A large number that replaces an infinite distance, so that its product with 0 is 0."""

MIN_MASS = float(np.finfo(np.float64).tiny)
"""A number smaller than any weight. A request for no mass at all, such as a top-p of 0, still gets one
token."""

Wide = NDArray[np.float64]
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
        keep_smallest(0x7FFFFFFF - weights.view(np.int32), weights, sampling.top_p * sum_weights(weights))
    if sampling.typical_p < 1:
        keep_smallest(
            compute_atypicality(weights).view(np.int32), weights, sampling.typical_p * sum_weights(weights)
        )


def sum_weights(weights: Floats) -> float:
    """The sum of a row by pairwise summation."""
    return float(weights.sum())


def keep_only(weights: Floats, places: Ids) -> None:
    """Sets all weights except those at `places` to 0."""
    kept_weights = weights[places]
    weights.fill(0.0)
    weights[places] = kept_weights


def compute_atypicality(weights: Floats) -> Floats:
    """The distance of each token's surprise from the expected one (Meister and others, 2022), in nats."""
    with np.errstate(divide="ignore"):
        falls = np.log(weights)
    np.maximum(falls, -MAX_FALL, out=falls)
    falls -= (weights * falls).sum() / weights.sum()
    return np.abs(falls, out=falls)


def keep_smallest(keys: Keys, weights: Floats, mass: float) -> None:
    """Keeps the fewest smallest keys whose weights sum to `mass`, at least one, and sets the other weights
    to 0. Of equal keys the first are kept.

    `keys`: not negative.
    """
    sums = sum_by_bin(keys, weights).cumsum()
    last_kept = find_first_reaching(sums, mass)
    places = np.flatnonzero(keys >> SHIFTS[0] == last_kept)
    remaining_mass = mass - float(sums[last_kept - 1]) if last_kept else mass
    places = places[find_fewest(keys[places], weights[places], remaining_mass)]
    kept_weights = weights[places]
    weights *= keys < last_kept << SHIFTS[0]
    weights[places] = kept_weights


def sum_by_bin(keys: Keys, weights: Floats) -> Wide:
    """The sums of the weights by their keys' leading bits."""
    sums = np.zeros(1 << 31 - SHIFTS[0])
    for at in range(0, len(keys), BINCOUNT_CHUNK):
        bins = keys[at : at + BINCOUNT_CHUNK] >> SHIFTS[0]
        sums += np.bincount(bins, weights[at : at + BINCOUNT_CHUNK], minlength=len(sums))
    return sums


def find_typical(weights: Wide, mass: float) -> Ids:
    """Indices of the fewest weights that sum to the part `mass` of the total. Tokens whose surprise is
    nearest to the expected one come first."""
    total_mass = float(weights.sum())
    chances = weights / total_mass
    with np.errstate(divide="ignore"):
        surprise = -np.log(chances)
    expected = float((chances * np.where(chances > 0, surprise, 0.0)).sum())
    unusual = np.abs(surprise - expected).astype(np.float32)  # infinite where the weight is 0
    return find_fewest(unusual.view(np.int32), weights, mass * total_mass)


def find_fewest(keys: Keys, weights: Floats | Wide, mass: float) -> Ids:
    """Indices of the fewest smallest keys whose weights sum to `mass`, at least one. Of equal keys the
    first are taken.

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
        last_kept = find_first_reaching(sums, mass)
        sure.append(places[bins < last_kept])
        mass -= float(sums[last_kept - 1]) if last_kept else 0.0
        places = places[bins == last_kept]
    # The remaining keys are few, or all equal.
    if len(places) <= SORTABLE:
        places = places[keys[places].argsort(kind="stable")]
    sums = weights[places].astype(np.float64).cumsum()
    return np.concatenate((*sure, places[: int(sums.searchsorted(mass)) + 1]))


def find_first_reaching(sums: Wide, mass: float) -> int:
    """The index of the first positive running sum that reaches `mass`. If none reaches it, the index of the
    first one that equals the total."""
    return int(sums.searchsorted(min(max(mass, MIN_MASS), float(sums[-1]))))
