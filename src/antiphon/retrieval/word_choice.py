"""Chooses the words of a query that are looked for, and weighs them, the same for every index."""

import math
from collections.abc import Callable, Sequence

from antiphon.retrieval.words import QueryWord

CountWord = Callable[[QueryWord], int]
"""Returns about how many chunks of the table have a word."""

FREQUENT_SHARE = 5
"""A word in more than one in so many chunks is left out of a query: the index scores every chunk that has a
word of it, and such words tell little."""

FREQUENT_FROM = 5000
"""Chunks of the smallest table with that rule. In a tiny table every word is frequent."""

LEAST_MATCH = 1 / 3
"""Beside vectors a hit by words counts from this part of the query's weight on. The weight of a word is its
BM25 score in a chunk of average length that has it once. Without this rule two poor hits outweigh the nearest
vector, and a question in other words than the text's finds nothing (benchmarks/retrieval_quality.py)."""

WEIGHED_FROM = 50
"""Chunks of the smallest table with that rule. In a tiny table every word weighs nothing."""

SCORED_SHARE = 10
MOST_SCORED = 50_000
"""The rarest words are taken until they are together in one of so many chunks, or in so many. So a search of
a large table has a bound."""

FEWEST_SCORED_WORDS = 3
"""Words that are taken in any case, where they are not frequent."""

MOST_SCORED_WORDS = 32
"""Words of a query that are looked for, the rarest ones."""


def weigh_word(count: int, chunks: int) -> float:
    """Returns the BM25 score of a chunk of average length that has a word once. `count`: chunks with the
    word, of so many `chunks`."""
    count = min(count, chunks)
    return max(0.0, math.log((chunks - count + 0.5) / (count + 0.5)))


def find_least_score(words: Sequence[QueryWord], chunks: int, count: CountWord) -> float:
    """Returns the least score of a hit by words beside vectors."""
    if chunks < WEIGHED_FROM:
        return 0.0
    return LEAST_MATCH * sum(weigh_word(count(word), chunks) for word in words)


def choose_words(words: Sequence[QueryWord], chunks: int, count: CountWord) -> Sequence[QueryWord]:
    """Returns the words to look for: all of a few in a small table, otherwise the rare ones, or the rarest.
    Words that seem absent come last, since another spelling of them may be there. `chunks`: of the table."""
    if chunks < FREQUENT_FROM and len(words) <= MOST_SCORED_WORDS:
        return words
    counted = sorted((count(word), place) for place, word in enumerate(words))
    absent = [words[place] for number, place in counted if not number]
    there = [(number, words[place]) for number, place in counted if number]
    rare = take_rare_words(there, chunks) if chunks >= FREQUENT_FROM else [word for _, word in there]
    return [*rare, *absent][:MOST_SCORED_WORDS]


def take_rare_words(counted: Sequence[tuple[int, QueryWord]], chunks: int) -> list[QueryWord]:
    """Returns the words of a large table's query that are looked for. `counted`: the rarest first."""
    most = min(chunks // SCORED_SHARE, MOST_SCORED)
    taken, scored = [word for _, word in counted[:1]], sum(count for count, _ in counted[:1])
    for count, word in counted[1:]:
        scored += count
        enough = len(taken) >= FEWEST_SCORED_WORDS and scored > most
        if enough or count * FREQUENT_SHARE > chunks:
            break
        taken.append(word)
    return taken
