"""Ranks chunks in the same way for every index: chooses and weighs the words of a query, and fuses rankings.

The fusion is the sum of 1 / (60 + rank) over both rankings (reciprocal rank fusion, Cormack et al. 2009).
"""

import math
from collections.abc import Callable, Sequence

from antiphon.domain.values import Struct
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
weight of a word is its BM25 score in a chunk of average length that contains the word once. Without this
rule, two poor hits count more than the nearest vector, and a question that uses other words than the text
finds nothing (benchmarks/retrieval_quality.py)."""

WEIGHED_FROM = 50
"""LEAST_MATCH applies to tables with at least this many chunks. In a tiny table every word has the weight
0."""

SCORED_SHARE = 10
MOST_SCORED = 50_000
"""Words of a query are searched, the rarest first, until they occur in one of SCORED_SHARE chunks or in
MOST_SCORED chunks. This limits the work of a search in a large table."""

FEWEST_SCORED_WORDS = 3
"""At least this many words of a query are searched, unless they are frequent (FREQUENT_SHARE)."""

MOST_SCORED_WORDS = 32
"""The most words of a query that are searched, the rarest first."""


def weigh_word(word_count: int, chunk_count: int) -> float:
    """Returns the BM25 score of a chunk of average length that contains a word once. `word_count`: number of
    chunks with the word. `chunk_count`: number of all chunks."""
    word_count = min(word_count, chunk_count)
    return max(0.0, math.log((chunk_count - word_count + 0.5) / (word_count + 0.5)))


def find_least_score(words: Sequence[QueryWord], chunk_count: int, count_word: CountWord) -> float:
    """Returns the lowest allowed score of a hit by words, for a search by words and vectors. `chunk_count`:
    number of chunks in the table."""
    if chunk_count < WEIGHED_FROM:
        return 0.0
    return LEAST_MATCH * sum(weigh_word(count_word(word), chunk_count) for word in words)


def choose_words(words: Sequence[QueryWord], chunk_count: int, count_word: CountWord) -> Sequence[QueryWord]:
    """Returns the words to search: all words if the table is small and the words are few, otherwise rare
    words, the rarest first. Words that no chunk seems to contain come last. They stay, because the counts are
    approximate.

    `chunk_count`: number of chunks in the table.
    """
    if chunk_count < FREQUENT_FROM and len(words) <= MOST_SCORED_WORDS:
        return words
    counts = {word: count_word(word) for word in words}
    present_words = sorted((word for word in words if counts[word]), key=lambda word: counts[word])
    absent_words = [word for word in words if not counts[word]]
    if chunk_count >= FREQUENT_FROM:
        present_words = choose_rare_words([(counts[word], word) for word in present_words], chunk_count)
    return [*present_words, *absent_words][:MOST_SCORED_WORDS]


def choose_rare_words(counted_words: Sequence[tuple[int, QueryWord]], chunk_count: int) -> list[QueryWord]:
    """Returns the words to search in a large table. `counted_words`: words with the number of their chunks,
    the rarest first. `chunk_count`: number of chunks in the table."""
    max_scored_chunks = min(chunk_count // SCORED_SHARE, MOST_SCORED)
    chosen_words: list[QueryWord] = []
    scored_chunks = 0
    for word_count, word in counted_words:
        scored_chunks += word_count
        has_enough = len(chosen_words) >= FEWEST_SCORED_WORDS and scored_chunks > max_scored_chunks
        if chosen_words and (has_enough or word_count * FREQUENT_SHARE > chunk_count):
            break
        chosen_words.append(word)
    return chosen_words


SMOOTHING = 60
"""The constant of the fusion, from the paper. With a larger one, the best ranks have less advantage."""


class FusedRank(Struct, frozen=True):
    """The ranks of one chunk, from 1; None if a ranking does not have the chunk."""

    id: int
    words_rank: int | None
    vector_rank: int | None
    score: float


def fuse(ids_by_words: Sequence[int], ids_by_vector: Sequence[int], limit: int) -> list[FusedRank]:
    """Fuses two rankings of chunk ids, the best first. Returns at most `limit` chunks, the best first. Of two
    chunks with the same score, the lower id comes first."""
    words_ranks = {id_: rank for rank, id_ in enumerate(ids_by_words, 1)}
    vector_ranks = {id_: rank for rank, id_ in enumerate(ids_by_vector, 1)}
    fused: list[FusedRank] = []
    for id_ in words_ranks.keys() | vector_ranks.keys():
        ranks = words_ranks.get(id_), vector_ranks.get(id_)
        fused.append(FusedRank(id_, *ranks, score_ranks(ranks)))
    return sorted(fused, key=lambda rank: (-rank.score, rank.id))[:limit]


def score_ranks(ranks: Sequence[int | None]) -> float:
    """Returns the sum of 1 / (60 + rank). None counts as 0."""
    return sum(1 / (SMOOTHING + rank) for rank in ranks if rank is not None)
