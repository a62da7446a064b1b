"""Search in one table: by words, by vector, or by both, fused."""

import json
import math
import sqlite3
import time
from collections.abc import Mapping, Sequence

import numpy as np

from antiphon.errors import InvalidValue
from antiphon.retrieval.base import SearchHit, SearchQuery, TextChunk
from antiphon.retrieval.fusion import FusedRank, fuse
from antiphon.retrieval.sqlite.chunks import find_chunks
from antiphon.retrieval.sqlite.documents import find_numbers
from antiphon.retrieval.sqlite.schema import read_revision
from antiphon.retrieval.sqlite.table import TableFile
from antiphon.retrieval.sqlite.vectors import (
    Floats,
    Nearest,
    decode_halves,
    normalize,
    read_halves,
    score_candidates,
)
from antiphon.retrieval.sqlite.words import QueryWord, build_match, list_words

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

STALE_SHARE = 10
"""The chunks with a word are counted again when the table has grown or shrunk by one in so many."""

MOST_COUNTED_WORDS = 50_000
"""Words whose counts a table remembers."""

ATTEMPTS = 20
ATTEMPT_PAUSE_S = 0.005
"""Attempts, and seconds between them, for a search during which a write is applied."""


def search(table: TableFile, query: SearchQuery) -> tuple[SearchHit, ...]:
    """Returns the best chunks. Raises InvalidValue for a vector of other dimensions."""
    vector = prepare_vector(table, query.vector)
    for attempt in range(1, ATTEMPTS + 1):
        hits = _search_once(table, query, vector, is_last=attempt == ATTEMPTS)
        if hits is not None:
            return hits
        time.sleep(ATTEMPT_PAUSE_S)
    return ()


def prepare_vector(table: TableFile, vector: bytes) -> Floats | None:
    """Returns the query's vector with length 1; None for a search by words."""
    if not vector:
        return None
    dimensions = table.settings.dimensions
    if not dimensions:
        raise InvalidValue(
            "this knowledge table finds by words only: search it without a vector", param="vector"
        )
    return decode_halves(read_halves(normalize(vector, dimensions, "vector")))


def _search_once(
    table: TableFile, query: SearchQuery, vector: Floats | None, *, is_last: bool
) -> tuple[SearchHit, ...] | None:
    """Searches one moment of the table. Returns None where the vectors in memory were of another moment; the
    last attempt takes them as they are."""
    depth = max(query.k, query.depth)
    with table.read() as connection:
        revision = read_revision(connection)
        numbers = find_numbers(connection, query.documents) if query.documents else []
        if query.documents and not numbers:
            return ()
        nearest = _find_nearest(table, connection, vector, depth, numbers) if vector is not None else None
        if vector is not None and not is_last and (nearest is None or not table.memory.is_current(revision)):
            return None
        words = choose_words(table, connection, list_words(query.words or ""))
        scores = score_by_words(connection, words, depth, numbers)
        if nearest is not None and table.counts.chunks >= WEIGHED_FROM:
            least = LEAST_MATCH * weigh_words(table, connection, words)
            scores = {id_: score for id_, score in scores.items() if score >= least}
        return _fuse_hits(connection, list(scores), nearest, query.k)


def _find_nearest(
    table: TableFile, connection: sqlite3.Connection, vector: Floats, depth: int, numbers: Sequence[int]
) -> Nearest | None:
    """Returns the nearest chunks; None where the memory has those of another moment."""
    rows = table.memory.get(connection, read_revision(connection))
    if rows is None:
        return None
    nearest = rows.find(vector, depth, numbers)
    if nearest.similarities is not None:
        return nearest
    found = connection.execute(
        "SELECT id, value FROM vector WHERE id IN (SELECT value FROM json_each(?))",
        (json.dumps(np.sort(nearest.ids).tolist()),),
    ).fetchall()
    return score_candidates([row["id"] for row in found], (row["value"] for row in found), vector, depth)


def score_by_words(
    connection: sqlite3.Connection, words: Sequence[QueryWord], depth: int, numbers: Sequence[int]
) -> dict[int, float]:
    """Returns the BM25 scores of the chunks that match best, by their ids, the best first."""
    if not words:
        return {}
    rows = connection.execute(
        "SELECT rowid, -rank FROM words WHERE words MATCH ? ORDER BY rank LIMIT ?",
        (build_match(words, numbers), depth),
    )
    return dict(rows.fetchall())


def weigh_words(table: TableFile, connection: sqlite3.Connection, words: Sequence[QueryWord]) -> float:
    """Returns the BM25 score of a chunk of average length that has each of the words once."""
    chunks = table.counts.chunks
    counts = (min(chunks, count_word(table, connection, word)) for word in words)
    return sum(max(0.0, math.log((chunks - count + 0.5) / (count + 0.5))) for count in counts)


def choose_words(
    table: TableFile, connection: sqlite3.Connection, words: Sequence[QueryWord]
) -> Sequence[QueryWord]:
    """Returns the words to look for: all of a few in a small table, otherwise the rare ones, or the rarest.
    Words that seem absent come last, since another spelling of them may be there."""
    chunks = table.counts.chunks
    if chunks < FREQUENT_FROM and len(words) <= MOST_SCORED_WORDS:
        return words
    counted = sorted((count_word(table, connection, word), place) for place, word in enumerate(words))
    absent = [words[place] for count, place in counted if not count]
    there = [(count, words[place]) for count, place in counted if count]
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


def count_word(table: TableFile, connection: sqlite3.Connection, word: QueryWord) -> int:
    """Returns about how many chunks have a word."""
    chunks, known = table.counts.chunks, table.word_counts.get(word.expression)
    if known is not None and abs(known[1] - chunks) * STALE_SHARE <= chunks:
        return known[0]
    if len(table.word_counts) > MOST_COUNTED_WORDS:
        table.word_counts.clear()
    count = _read_count(connection, word)
    table.word_counts[word.expression] = (count, chunks)
    return count


def _read_count(connection: sqlite3.Connection, word: QueryWord) -> int:
    term = word.text
    last = term + "\U0010ffff" if word.is_prefix else term
    row = connection.execute(
        "SELECT sum(doc) FROM word_count WHERE term >= ? AND term <= ?", (term, last)
    ).fetchone()
    return row[0] or 0


def _fuse_hits(
    connection: sqlite3.Connection, words: Sequence[int], nearest: Nearest | None, most: int
) -> tuple[SearchHit, ...]:
    """Fuses the rankings, and reads the chunks."""
    if nearest is None or nearest.similarities is None:
        similarities: dict[int, float] = {}
    else:
        similarities = dict(zip(nearest.ids.tolist(), nearest.similarities.tolist(), strict=True))
    ranks = fuse(words, list(similarities), most)
    chunks = find_chunks(connection, [rank.id for rank in ranks])
    return tuple(_build_hit(rank, chunks, similarities.get(rank.id)) for rank in ranks if rank.id in chunks)


def _build_hit(rank: FusedRank, chunks: Mapping[int, TextChunk], similarity: float | None) -> SearchHit:
    return SearchHit(chunks[rank.id], rank.words_rank, rank.vector_rank, rank.score, similarity)
