"""Search in one table: by words, by vector, or by both, fused."""

import json
import sqlite3
import time
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from antiphon.retrieval.base import SearchHit, SearchQuery, TextChunk
from antiphon.retrieval.fusion import FusedRank, fuse
from antiphon.retrieval.halves import Floats, decode_halves, prepare_vector, read_halves
from antiphon.retrieval.sqlite.chunks import find_chunks
from antiphon.retrieval.sqlite.documents import find_numbers
from antiphon.retrieval.sqlite.match import build_match, write_word
from antiphon.retrieval.sqlite.schema import read_revision
from antiphon.retrieval.sqlite.table import TableFile
from antiphon.retrieval.sqlite.vectors import Nearest, score_candidates
from antiphon.retrieval.word_choice import choose_words, find_least_score
from antiphon.retrieval.words import QueryWord, list_words

STALE_SHARE = 10
"""The chunks with a word are counted again when the table has grown or shrunk by one in so many."""

MOST_COUNTED_WORDS = 50_000
"""Words whose counts a table remembers."""

ATTEMPTS = 20
ATTEMPT_PAUSE_S = 0.005
"""Attempts, and seconds between them, for a search during which a write is applied."""


def search(table: TableFile, query: SearchQuery) -> tuple[SearchHit, ...]:
    """Returns the best chunks. Raises InvalidValue for a vector of other dimensions."""
    halves = prepare_vector(table.settings, query.vector)
    vector = decode_halves(read_halves(halves)) if halves else None
    for attempt in range(1, ATTEMPTS + 1):
        hits = _search_once(table, query, vector, is_last=attempt == ATTEMPTS)
        if hits is not None:
            return hits
        time.sleep(ATTEMPT_PAUSE_S)
    return ()


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
        chunks, count = table.counts.chunks, partial(count_word, table, connection)
        words = choose_words(list_words(query.words or ""), chunks, count)
        scores = score_by_words(connection, words, depth, numbers)
        if nearest is not None:
            least = find_least_score(words, chunks, count)
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


def count_word(table: TableFile, connection: sqlite3.Connection, word: QueryWord) -> int:
    """Returns about how many chunks have a word."""
    chunks, known = table.counts.chunks, table.word_counts.get(write_word(word))
    if known is not None and abs(known[1] - chunks) * STALE_SHARE <= chunks:
        return known[0]
    if len(table.word_counts) > MOST_COUNTED_WORDS:
        table.word_counts.clear()
    count = _read_count(connection, word)
    table.word_counts[write_word(word)] = (count, chunks)
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
