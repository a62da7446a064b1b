"""Ranks chunks in the same way for every index: chooses and weighs the words of a query, and fuses rankings.

The fusion is the sum of 1 / (60 + rank) over both rankings (reciprocal rank fusion, Cormack et al. 2009).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from antiphon.retrieval.words import QueryWord

CountWord = Callable[[QueryWord], int]
"""Returns approximately how many chunks of the table contain a word."""

FREQUENT_SHARE = 5
"""A word that is in more than one of this many chunks is left out of a query. The index would score every
chunk with the word, and a frequent word says little about a chunk."""

FREQUENT_FROM = 5000
"""FREQUENT_SHARE applies to tables with at least this many chunks. In a tiny table every word is frequent."""

LEAST_MATCH = 1 / 3
"""In a search by words and vectors, a hit by words must have at least this share of the query's weight. The
weight of a word is its BM25 score in a chunk of average length that contains the word once. Otherwise two
poor hits count more than the nearest vector, and a question that uses other words than the text finds nothing
(benchmarks/retrieval_quality.py)."""

WEIGHED_FROM = 50
"""LEAST_MATCH applies to tables with at least this many chunks. In a tiny table every word has the weight
0."""

SCORED_SHARE = 10
MOST_SCORED = 50_000
"""Words are added, the rarest first, until one in SCORED_SHARE chunks or MOST_SCORED chunks contain one of
them. This limits the work of a search in a large table."""

FEWEST_SCORED_WORDS = 3
"""This many words are always added, unless they are frequent."""

MOST_SCORED_WORDS = 32
"""The most words of a query that are searched, the rarest first."""


def weigh_word(count: int, chunks: int) -> float:
    """Returns the BM25 score of a chunk of average length that contains a word once. `count`: number of
    chunks with the word. `chunks`: number of all chunks."""
    count = min(count, chunks)
    return max(0.0, math.log((chunks - count + 0.5) / (count + 0.5)))


def find_least_score(words: Sequence[QueryWord], chunks: int, count: CountWord) -> float:
    """Returns the lowest allowed score of a hit by words, for a search by words and vectors."""
    if chunks < WEIGHED_FROM:
        return 0.0
    return LEAST_MATCH * sum(weigh_word(count(word), chunks) for word in words)


def choose_words(words: Sequence[QueryWord], chunks: int, count: CountWord) -> Sequence[QueryWord]:
    """Returns the words to search: all words if the table is small and the words are few, otherwise rare
    words, the rarest first. Words that no chunk seems to contain come last: the table may have another
    spelling.

    `chunks`: number of chunks in the table.
    """
    if chunks < FREQUENT_FROM and len(words) <= MOST_SCORED_WORDS:
        return words
    counts = {word: count(word) for word in words}
    present = sorted((word for word in words if counts[word]), key=lambda word: counts[word])
    absent = [word for word in words if not counts[word]]
    if chunks >= FREQUENT_FROM:
        present = choose_rare_words([(counts[word], word) for word in present], chunks)
    return [*present, *absent][:MOST_SCORED_WORDS]


def choose_rare_words(counted: Sequence[tuple[int, QueryWord]], chunks: int) -> list[QueryWord]:
    """Returns the words to search in a large table. `counted`: words with the number of their chunks, the
    rarest first."""
    most = min(chunks // SCORED_SHARE, MOST_SCORED)
    chosen: list[QueryWord] = []
    scored = 0
    for count, word in counted:
        scored += count
        has_enough = len(chosen) >= FEWEST_SCORED_WORDS and scored > most
        if chosen and (has_enough or count * FREQUENT_SHARE > chunks):
            break
        chosen.append(word)
    return chosen


SMOOTHING = 60
"""With a larger number, the first places count less compared to later places. 60 is from the paper."""


@dataclass(frozen=True, slots=True)
class FusedRank:
    """The ranks of one chunk, from 1; None if a ranking does not have the chunk."""

    id: int
    words_rank: int | None
    vector_rank: int | None
    score: float


def fuse(words: Sequence[int], vectors: Sequence[int], most: int) -> list[FusedRank]:
    """Fuses two rankings of chunk ids, the best first. Returns at most `most` chunks, the best first. Of two
    chunks with the same score, the lower id comes first."""
    words_ranks = {id_: rank for rank, id_ in enumerate(words, 1)}
    vector_ranks = {id_: rank for rank, id_ in enumerate(vectors, 1)}
    fused: list[FusedRank] = []
    for id_ in words_ranks.keys() | vector_ranks.keys():
        ranks = words_ranks.get(id_), vector_ranks.get(id_)
        fused.append(FusedRank(id_, *ranks, score_ranks(ranks)))
    return sorted(fused, key=lambda each: (-each.score, each.id))[:most]


def score_ranks(ranks: Sequence[int | None]) -> float:
    """Returns the sum of 1 / (60 + rank). None counts as 0."""
    return sum(1 / (SMOOTHING + rank) for rank in ranks if rank is not None)
