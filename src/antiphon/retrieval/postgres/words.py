"""The words of chunks: as a tsvector, counted for the whole table, and searched by BM25."""

from collections import Counter
from collections.abc import Mapping, Sequence

from antiphon.retrieval.postgres.rows import TableRows
from antiphon.retrieval.word_choice import weigh_word
from antiphon.retrieval.words import QueryWord, split_text

LONGEST_WORD = 500
"""Characters of a word that count. PostgreSQL takes 2,046 bytes."""

MOST_REPEATS = 16
"""Times that a word counts in one chunk."""

LEAST_WEIGHT = 1e-6
"""The weight of a word that is in more than half of the chunks."""

CANDIDATES = 4
"""Chunks for each hit whose words are counted; the others are ranked by which words they have."""

LENGTH_FIT = "2.2 / (1 + 1.2 * (0.25 + 0.75 * share))"
"""BM25's factor for a chunk of this length in mean lengths, where it has a word once (k1 = 1.2, b = 0.75)."""

COUNT_WORDS = """
INSERT INTO {counts} SELECT word, ndoc FROM ts_stat(:chosen) AS seen
ON CONFLICT (word) DO UPDATE SET chunks = {own_counts}.chunks + excluded.chunks
"""

FIND_BY_WORDS = """
WITH sought AS (
    SELECT * FROM unnest(CAST(:terms AS text[]), CAST(:weights AS float8[])) AS each (term, weight)
), matching AS (
    SELECT chunk.id, chunk.length, sum(weight) AS weight FROM sought CROSS JOIN LATERAL (
        SELECT id, length FROM {words} WHERE ready AND words @@ CAST(sought.term AS tsquery) {within}
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
"""Which words a chunk has comes from the index. How often it has them is read for the best ones only.
`ts_rank` of one word is the sum of 1 / n² over its n occurrences, by π² / 6; it grows
about as BM25's factor."""


def encode_words(title: str, text: str) -> tuple[str, int]:
    """Returns the words of a chunk in the notation of tsvector, and their number. A word's positions only
    tell how often it is there."""
    words = Counter(word[:LONGEST_WORD] for part in (title, text) for word in split_text(part))
    terms = (
        f"'{word}':{','.join(map(str, range(1, min(n, MOST_REPEATS) + 1)))}" for word, n in words.items()
    )
    return " ".join(terms), words.total()


def write_positions(repeats: int) -> str:
    """Returns as many positions as a word is repeated."""
    return ",".join(str(place) for place in range(1, min(repeats, MOST_REPEATS) + 1))


def write_term(word: QueryWord) -> str:
    """Returns a word in the notation of tsquery. A word has letters, digits and marks only."""
    return f"'{word.text[:LONGEST_WORD]}'{':*' if word.is_prefix else ''}"


def add_counts(rows: TableRows, where: str) -> None:
    """Counts the words of chunks that search finds from now on."""
    own_counts = rows.names["counts"].partition(".")[2]
    rows.execute(COUNT_WORDS, {"chosen": _choose(rows, where)}, own_counts=own_counts)


def subtract_counts(rows: TableRows, where: str) -> None:
    """Forgets the words of chunks before they are removed."""
    chosen = {"chosen": _choose(rows, where)}
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


def _choose(rows: TableRows, where: str) -> str:
    """Returns the statement that `ts_stat` runs. `where`: a condition without values of callers."""
    return "SELECT words FROM {words} WHERE ready AND ".format_map(rows.names) + where


def count_words(rows: TableRows, words: Sequence[QueryWord]) -> Mapping[QueryWord, int]:
    """Returns how many chunks that search finds have each word."""
    texts = {word: word.text[:LONGEST_WORD] for word in words}
    found = rows.execute(
        "SELECT word, chunks FROM {counts} WHERE word = ANY(:words)",
        {"words": [text for word, text in texts.items() if not word.is_prefix]},
    )
    known = {row.word: row.chunks for row in found}
    return {
        word: _count_prefix(rows, text) if word.is_prefix else known.get(text, 0)
        for word, text in texts.items()
    }


def _count_prefix(rows: TableRows, text: str) -> int:
    return rows.count(
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
    """Returns about the BM25 scores of the chunks that match best, by their ids, the best first."""
    if not words:
        return {}
    found = rows.execute(
        FIND_BY_WORDS,
        {
            "terms": [write_term(word) for word in words],
            "weights": [max(LEAST_WEIGHT, weigh_word(counts.get(word, 0), rows.chunks)) for word in words],
        },
        within=write_filter(documents),
        fit=LENGTH_FIT,
        candidates=str(CANDIDATES * depth),
        depth=str(depth),
    )
    return {row.id: float(row.score) for row in found}


def write_filter(documents: Sequence[int]) -> str:
    """Returns the condition for chunks of these documents; nothing for all."""
    return f"AND {write_choice('document', documents)}" if documents else ""


def write_choice(column: str, numbers: Sequence[int]) -> str:
    """Returns the condition that a column has one of these numbers. They are written into the statement, so
    it is planned for them."""
    return f"{column} = ANY (ARRAY[{', '.join(map(str, numbers))}]::bigint[])"
