"""Fuses two rankings by the sum of 1 / (60 + rank) (reciprocal rank fusion, Cormack et al. 2009)."""

from collections.abc import Sequence
from dataclasses import dataclass

SMOOTHING = 60
"""The larger it is, the less the first places count against the later ones. 60 is the paper's."""


@dataclass(frozen=True, slots=True)
class FusedRank:
    """The places of one chunk."""

    id: int
    words_rank: int | None
    vector_rank: int | None
    """Places from 1; None where a ranking does not have the chunk."""
    score: float


def fuse(words: Sequence[int], vectors: Sequence[int], most: int) -> list[FusedRank]:
    """Returns at most `most` chunks, the best first. Each ranking has ids, the best first. Among equals the
    lower id is first."""
    words_ranks = {id_: rank for rank, id_ in enumerate(words, 1)}
    vector_ranks = {id_: rank for rank, id_ in enumerate(vectors, 1)}
    fused = [
        FusedRank(id_, words_ranks.get(id_), vector_ranks.get(id_), score_ranks(ranks))
        for id_ in words_ranks.keys() | vector_ranks.keys()
        for ranks in [(words_ranks.get(id_), vector_ranks.get(id_))]
    ]
    return sorted(fused, key=lambda each: (-each.score, each.id))[:most]


def score_ranks(ranks: Sequence[int | None]) -> float:
    """Returns the sum of 1 / (60 + rank) over the ranks that there are."""
    return sum(1 / (SMOOTHING + rank) for rank in ranks if rank is not None)
