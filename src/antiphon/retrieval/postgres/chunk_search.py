"""Finds the chunks of a table by words and by vectors, and writes what these searches read.

Words are a tsvector, counted for the whole table and scored by BM25. Vectors are in the notation of pgvector.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from antiphon.retrieval.postgres.tables import TableRows
from antiphon.retrieval.ranking import QueryWord, split_text, weigh_word
from antiphon.retrieval.stored_form import decode_halves, read_halves

LONGEST_WORD = 500
"""The most characters of a word. PostgreSQL allows 2,046 bytes."""

MOST_REPEATS = 16
"""How often a word counts in one chunk, at most."""

LEAST_WEIGHT = 1e-6
"""The least weight of a word. A word in more than half of the chunks has it."""

CANDIDATES_PER_HIT = 4
"""For this many chunks per requested hit, the search reads how often they contain each word. It ranks other
chunks only by which words they contain."""

LENGTH_FIT = "2.2 / (1 + 1.2 * (0.25 + 0.75 * share))"
"""BM25's factor for a chunk that contains a word once (k1 = 1.2, b = 0.75). `share`: the chunk's length
divided by the mean length."""

COUNT_WORDS = """
INSERT INTO {counts} SELECT word, ndoc FROM ts_stat(:chosen) AS seen
ON CONFLICT (word) DO UPDATE SET chunks = {own_counts}.chunks + excluded.chunks
"""

FIND_BY_WORDS = """
WITH sought AS (
    SELECT * FROM unnest(CAST(:terms AS text[]), CAST(:weights AS float8[])) AS each (term, weight)
), matching AS (
    SELECT chunk.id, chunk.length, sum(weight) AS weight FROM sought CROSS JOIN LATERAL (
        SELECT id, length FROM {words}
        WHERE ready AND words @@ CAST(sought.term AS tsquery) {document_condition}
    ) AS chunk GROUP BY chunk.id, chunk.length
), fitting AS (
    SELECT id, weight, {fit} AS fit FROM (
        SELECT id, weight, length / CAST(avg(length) OVER () AS float8) AS share FROM matching
    ) AS measured ORDER BY weight * {fit} DESC, id LIMIT {candidates}
)
SELECT id, fit * 1.6449340668 * (
    SELECT sum(sought.weight * ts_rank('{{1, 1, 1, 1}}', words, CAST(sought.term AS tsquery))) FROM sought
) AS score FROM fitting JOIN {words} USING (id) ORDER BY score DESC, id LIMIT {depth}
"""
"""The index knows which words a chunk contains. Only for the best chunks, the statement reads how often they
contain the words. `ts_rank` of one word is the sum of 1 / i² over its occurrences i, divided by π² / 6. It
grows approximately as BM25's factor does."""


LEAST_EXPLORED = 100
MOST_EXPLORED = 1000
"""The least and the most vectors that HNSW explores (`hnsw.ef_search`). pgvector allows no more."""

EXPLORED_PER_HIT = 2
"""How many vectors HNSW explores for each hit."""

FIND_NEAREST = """
SELECT id, -(value {product} CAST(:vector AS {vector_type})) AS similarity FROM {vectors}
WHERE ready {document_condition} ORDER BY {order} LIMIT {depth}
"""
BY_INDEX = "value {product} CAST(:vector AS {vector_type})"
BY_COMPARISON = "(value {product} CAST(:vector AS {vector_type})) + 0, id"
"""The orders of FIND_NEAREST: by the HNSW index, or by a comparison of all vectors. PostgreSQL compares all
vectors for the second expression, because no index has it."""


def encode_words(title: str, text: str) -> tuple[str, int]:
    """Returns the words of a chunk in the notation of tsvector, and the number of words. The positions of a
    word only say how often the chunk contains it."""
    words = Counter(word[:LONGEST_WORD] for word in (*split_text(title), *split_text(text)))
    terms = (f"'{word}':{write_positions(repeats)}" for word, repeats in words.items())
    return " ".join(terms), words.total()


def write_positions(repeats: int) -> str:
    """Returns the positions of a word that a chunk contains `repeats` times."""
    return ",".join(map(str, range(1, min(repeats, MOST_REPEATS) + 1)))


def write_term(word: QueryWord) -> str:
    """Returns a word in the notation of tsquery. A word has only letters, digits and combining marks, so it
    needs no escape."""
    return f"'{word.text[:LONGEST_WORD]}'{':*' if word.is_prefix else ''}"


def add_counts(rows: TableRows, where: str) -> None:
    """Adds the words of chunks that become ready to the counts. `where`: the condition for the chunks."""
    own_counts = rows.names["counts"].partition(".")[2]
    rows.execute(COUNT_WORDS, {"chosen": _select_words(rows, where)}, own_counts=own_counts)


def subtract_counts(rows: TableRows, where: str) -> None:
    """Subtracts the words of chunks from the counts, before the chunks are removed. `where`: the condition
    for the chunks."""
    chosen = {"chosen": _select_words(rows, where)}
    rows.execute(
        "DELETE FROM {counts} AS counted USING ts_stat(:chosen) AS gone "
        "WHERE counted.word = gone.word AND counted.chunks <= gone.ndoc",
        chosen,
    )
    rows.execute(
        "UPDATE {counts} AS counted SET chunks = counted.chunks - gone.ndoc FROM ts_stat(:chosen) AS gone "
        "WHERE counted.word = gone.word",
        chosen,
    )


def _select_words(rows: TableRows, where: str) -> str:
    """Returns the statement that `ts_stat` runs. `where`: a condition without values of callers."""
    return "SELECT words FROM {words} WHERE ready AND ".format_map(rows.names) + where


def count_words(rows: TableRows, words: Sequence[QueryWord]) -> Mapping[QueryWord, int]:
    """Returns for each word how many ready chunks contain it."""
    texts = {word: word.text[:LONGEST_WORD] for word in words}
    count_rows = rows.execute(
        "SELECT word, chunks FROM {counts} WHERE word = ANY(:words)",
        {"words": [text for word, text in texts.items() if not word.is_prefix]},
    )
    counts = {row.word: row.chunks for row in count_rows}
    return {
        word: _count_prefix(rows, text) if word.is_prefix else counts.get(text, 0)
        for word, text in texts.items()
    }


def _count_prefix(rows: TableRows, text: str) -> int:
    return rows.read_total(
        "SELECT coalesce(sum(chunks), 0) AS total FROM {counts} WHERE word >= :first AND word < :last",
        {"first": text, "last": text + "\U0010ffff"},
    )


def score_by_words(
    rows: TableRows,
    counts: Mapping[QueryWord, int],
    words: Sequence[QueryWord],
    depth: int,
    documents: Sequence[int],
) -> dict[int, float]:
    """Returns approximate BM25 scores of the best chunks, by id, the best first. `counts`: the number of
    chunks with each word. `documents`: numbers of the only documents to search; empty for all."""
    if not words:
        return {}
    score_rows = rows.execute(
        FIND_BY_WORDS,
        {
            "terms": [write_term(word) for word in words],
            "weights": [max(LEAST_WEIGHT, weigh_word(counts.get(word, 0), rows.chunks)) for word in words],
        },
        document_condition=format_document_condition(documents),
        fit=LENGTH_FIT,
        candidates=str(CANDIDATES_PER_HIT * depth),
        depth=str(depth),
    )
    return {row.id: float(row.score) for row in score_rows}


def format_document_condition(documents: Sequence[int]) -> str:
    """Returns the SQL condition for chunks of these documents; empty for all documents."""
    return f"AND {format_number_condition('document', documents)}" if documents else ""


def format_number_condition(column: str, numbers: Sequence[int]) -> str:
    """Returns the SQL condition that a column has one of these numbers. The numbers are part of the
    statement, so that PostgreSQL considers them in its plan."""
    return f"{column} = ANY (ARRAY[{', '.join(map(str, numbers))}]::bigint[])"


def encode_vector(halves: bytes) -> str:
    """Returns a vector in the notation of pgvector. `halves`: half precision."""
    return str(decode_halves(read_halves(halves)).tolist())


def decode_vector(text: str | None) -> bytes:
    """Returns a vector in single precision. `text`: in the notation of pgvector; None becomes an empty
    vector."""
    return np.array(json.loads(text), "<f4").tobytes() if text else b""


def find_nearest(rows: TableRows, halves: bytes, depth: int, documents: Sequence[int]) -> dict[int, float]:
    """Returns the similarities of the nearest chunks by id, the nearest first.

    HNSW also explores removed rows that are not vacuumed yet, so it can find too few chunks. If so, all
    vectors are compared. `halves`: the query's vector in half precision. `documents`: numbers of the only
    documents to search; empty for all.
    """
    vector = encode_vector(halves)
    if not documents and depth <= MOST_EXPLORED:
        similarities = _query_nearest(rows, vector, depth, BY_INDEX, ())
        if len(similarities) >= min(depth, rows.chunks):
            return similarities
    return _query_nearest(rows, vector, depth, BY_COMPARISON, documents)


def _query_nearest(
    rows: TableRows, vector: str, depth: int, order: str, documents: Sequence[int]
) -> dict[int, float]:
    explored_count = min(MOST_EXPLORED, max(LEAST_EXPLORED, EXPLORED_PER_HIT * depth))
    rows.execute("SELECT set_config('hnsw.ef_search', :explored, true)", {"explored": str(explored_count)})
    nearest_rows = rows.execute(
        FIND_NEAREST,
        {"vector": vector},
        document_condition=format_document_condition(documents),
        order=order.format_map(rows.names),
        depth=str(depth),
    )
    return {row.id: float(row.similarity) for row in nearest_rows}
