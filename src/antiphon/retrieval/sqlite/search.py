"""Searches one table: by words, by vector, or by both, with fused rankings."""

import json
import sqlite3
import time
from collections.abc import Sequence
from functools import partial

import numpy as np

from antiphon.retrieval.base import (
    SearchHit,
    SearchQuery,
)
from antiphon.retrieval.ranking import QueryWord, choose_words, find_least_score, fuse, list_words
from antiphon.retrieval.sqlite.documents import find_chunks, find_document_numbers
from antiphon.retrieval.sqlite.schema import name_document, read_revision
from antiphon.retrieval.sqlite.table import TableFile
from antiphon.retrieval.sqlite.vectors import Nearest, score_candidates
from antiphon.retrieval.stored_form import Floats, decode_halves, prepare_vector, read_halves

STALE_SHARE = 10
"""The cached count of a word's chunks is read again after the table has grown or shrunk by one of this many
parts, a tenth."""

MOST_COUNTED_WORDS = 50_000
"""The most words whose counts are cached for a table."""

ATTEMPTS = 20

ATTEMPT_PAUSE_S = 0.005
"""The most attempts of a search, and the seconds between two of them. A search is repeated if a write changes
the vectors during the search."""


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
    """Searches one revision of the table. Returns None if the vectors in memory belong to another revision,
    so that the search must be repeated. `is_last`: whether to search nevertheless, because this is the last
    attempt. It then ranks by another revision's vectors, or by words only."""
    depth = max(query.k, query.depth)
    with table.reading() as connection:
        revision = read_revision(connection)
        document_numbers = find_document_numbers(connection, query.documents) if query.documents else []
        if query.documents and not document_numbers:
            return ()
        nearest = (
            _find_nearest(table, connection, vector, depth, document_numbers) if vector is not None else None
        )
        if vector is not None and not is_last and (nearest is None or not table.memory.is_current(revision)):
            return None
        chunk_count, get_count = table.counts.chunks, partial(count_word, table, connection)
        words = choose_words(list_words(query.words or ""), chunk_count, get_count)
        scores = score_by_words(connection, words, depth, document_numbers)
        if nearest is not None:
            least_score = find_least_score(words, chunk_count, get_count)
            scores = {id_: score for id_, score in scores.items() if score >= least_score}
        return _fuse_hits(connection, list(scores), nearest, query.k)


def _find_nearest(
    table: TableFile,
    connection: sqlite3.Connection,
    vector: Floats,
    depth: int,
    document_numbers: Sequence[int],
) -> Nearest | None:
    """Returns the nearest chunks. Returns None if the vectors in memory belong to another revision of the
    table.

    `document_numbers`: the only documents to search; empty for all.
    """
    rows = table.memory.get(connection, read_revision(connection))
    if rows is None:
        return None
    nearest = rows.find(vector, depth, document_numbers)
    if nearest.similarities is not None:
        return nearest
    candidate_rows = connection.execute(
        "SELECT id, value FROM vector WHERE id IN (SELECT value FROM json_each(?))",
        (json.dumps(np.sort(nearest.ids).tolist()),),
    ).fetchall()
    ids, values = [row["id"] for row in candidate_rows], (row["value"] for row in candidate_rows)
    return score_candidates(ids, values, vector, depth)


def score_by_words(
    connection: sqlite3.Connection, words: Sequence[QueryWord], depth: int, document_numbers: Sequence[int]
) -> dict[int, float]:
    """Returns the BM25 scores of the chunks that match best, keyed by chunk id, the best first.

    `document_numbers`: the only documents to search; empty for all.
    """
    if not words:
        return {}
    rows = connection.execute(
        "SELECT rowid, -rank FROM words WHERE words MATCH ? ORDER BY rank LIMIT ?",
        (build_match(words, document_numbers), depth),
    )
    return dict(rows.fetchall())


def build_match(words: Sequence[QueryWord], document_numbers: Sequence[int]) -> str:
    """Returns the MATCH expression for chunks with any of the words. `document_numbers`: the only documents
    to search; empty for all."""
    match = f"{{title body}} : ({' OR '.join(write_word(word) for word in words)})"
    if not document_numbers:
        return match
    documents = " OR ".join(f'"{name_document(number)}"' for number in document_numbers)
    return f"{match} AND doc : ({documents})"


def write_word(word: QueryWord) -> str:
    """Returns a word in the syntax of MATCH."""
    return f'"{word.text}"*' if word.is_prefix else f'"{word.text}"'


def count_word(table: TableFile, connection: sqlite3.Connection, word: QueryWord) -> int:
    """Returns approximately how many chunks contain a word."""
    chunk_count = table.counts.chunks
    cached_count, old_chunk_count = table.word_counts.get(write_word(word), (None, 0))
    if cached_count is not None and abs(old_chunk_count - chunk_count) * STALE_SHARE <= chunk_count:
        return cached_count
    if len(table.word_counts) > MOST_COUNTED_WORDS:
        table.word_counts.clear()
    count = _read_count(connection, word)
    table.word_counts[write_word(word)] = (count, chunk_count)
    return count


def _read_count(connection: sqlite3.Connection, word: QueryWord) -> int:
    first_term = word.text
    last_term = first_term + "\U0010ffff" if word.is_prefix else first_term
    row = connection.execute(
        "SELECT sum(doc) FROM word_count WHERE term >= ? AND term <= ?", (first_term, last_term)
    ).fetchone()
    return row[0] or 0


def _fuse_hits(
    connection: sqlite3.Connection, ids_by_words: Sequence[int], nearest: Nearest | None, limit: int
) -> tuple[SearchHit, ...]:
    """Fuses the ranking of chunk ids by words with the ranking by vectors, and reads the best chunks."""
    if nearest is None or nearest.similarities is None:
        similarities: dict[int, float] = {}
    else:
        similarities = dict(zip(nearest.ids.tolist(), nearest.similarities.tolist(), strict=True))
    ranks = fuse(ids_by_words, list(similarities), limit)
    chunks = find_chunks(connection, [rank.id for rank in ranks])
    return tuple(
        SearchHit(chunks[rank.id], rank.words_rank, rank.vector_rank, rank.score, similarities.get(rank.id))
        for rank in ranks
        if rank.id in chunks
    )
