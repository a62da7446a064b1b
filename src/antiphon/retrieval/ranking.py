"""Splits texts into words and ranks chunks, in the same way for every index.

For a database, a run of Chinese or Japanese characters is one word, so a search cannot find a part of the
run. Here such runs become overlapping pairs of characters, in texts and in queries. In a text, the last
character of a run is a word too. So a prefix search finds every single character.

Ranking chooses and weighs the words of a query, and fuses rankings. The fusion is the sum of 1 / (60 + rank)
over both rankings (reciprocal rank fusion, Cormack et al. 2009).
"""

import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

from antiphon.domain.values import Struct

SEGMENTATION = 1
"""The version of `segment`. Increase it when `segment` returns other words: tables with an older version are
then indexed again."""

CJK = re.compile(
    "[\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff"
    "\U00020000-\U0003134f]+"
)
"""Han, Hiragana, Katakana and Hangul. In these scripts, spaces do not separate all words."""

ACCENTS = re.compile("[\u0300-\u036f]+")
"""Combining accents of Latin, Greek and Cyrillic letters."""

ASCII_WORD = re.compile("[a-z0-9]+")
"""A word of a folded text in ASCII."""

LONGEST_QUERY = 20_000
"""The most characters of a query; the rest is ignored."""

MOST_WORDS = 256
"""The most different words of a query; further words are ignored."""


FREQUENT_SHARE = 5
"""A word that is in more than 1/FREQUENT_SHARE of the chunks is left out of a query, unless all its words
are. The index would score every chunk with the word, and a frequent word says little about a chunk."""

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
"""Words of a query are searched, the rarest first, until they occur in 1/SCORED_SHARE of the chunks or in
MOST_SCORED chunks. This limits the work of a search in a large table."""

FEWEST_SCORED_WORDS = 3
"""At least this many words of a query are searched, unless they are frequent (FREQUENT_SHARE)."""

MOST_SCORED_WORDS = 32
"""The most words of a query that are searched, the rarest first."""

SMOOTHING = 60
"""The constant of the fusion, from the paper. With a larger one, the best ranks have less advantage."""


class QueryWord(Struct, frozen=True):
    """A word of a query, in the form of the index."""

    text: str
    is_prefix: bool = False
    """Whether every word that begins with this text matches. It is set for a single Chinese or Japanese
    character."""


def fold(text: str) -> str:
    """Removes differences of case, width and accents. SQLite's tokenizer does this too, but not for `ß` and
    for some Greek letters."""
    if text.isascii():
        return text.lower()
    letters = unicodedata.normalize("NFKD", text.casefold())
    return unicodedata.normalize("NFC", ACCENTS.sub("", letters))


def segment(text: str) -> str:
    """Returns the text in the form of the index: folded, with Chinese, Japanese and Korean runs as pairs."""
    return CJK.sub(lambda run: f" {' '.join(_list_pairs(run[0]))} ", fold(text))


def split_text(text: str) -> list[str]:
    """Returns all words of a text in order, in the form of the index."""
    segmented = segment(text)
    if segmented.isascii():
        return ASCII_WORD.findall(segmented)
    return ["".join(letters) for is_word, letters in groupby(segmented, _is_letter) if is_word]


def _list_pairs(run: str) -> list[str]:
    """Returns all pairs of neighbouring characters, and the last character alone."""
    return [run[start : start + 2] for start in range(len(run))]


def list_words(query: str) -> list[QueryWord]:
    """Returns the different words of a query in order, at most MOST_WORDS."""
    text = fold(query[:LONGEST_QUERY])
    words: dict[QueryWord, None] = {}
    for is_word, letters in groupby(text, _is_letter):
        if is_word:
            words.update(dict.fromkeys(_split_scripts("".join(letters))))
        if len(words) >= MOST_WORDS:
            break
    return list(words)[:MOST_WORDS]


def _is_letter(character: str) -> bool:
    """Whether a character is part of a word: a letter, a digit, or a combining mark."""
    return character.isalnum() or unicodedata.category(character).startswith("M")


def _split_scripts(run: str) -> Iterator[QueryWord]:
    """Yields the words of a run of letters. Chinese, Japanese and Korean parts become pairs; other parts stay
    whole."""
    end = 0
    for match in CJK.finditer(run):
        if match.start() > end:
            yield QueryWord(run[end : match.start()])
        yield from _split_pairs(match[0])
        end = match.end()
    if end < len(run):
        yield QueryWord(run[end:])


def _split_pairs(run: str) -> Iterable[QueryWord]:
    if len(run) == 1:
        return [QueryWord(run, is_prefix=True)]
    return [QueryWord(pair) for pair in _list_pairs(run)[:-1]]


CountWord = Callable[[QueryWord], int]
"""Returns approximately how many chunks of the table contain a word."""


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
        exceeds_limit = len(chosen_words) >= FEWEST_SCORED_WORDS and scored_chunks > max_scored_chunks
        if chosen_words and (exceeds_limit or word_count * FREQUENT_SHARE > chunk_count):
            break
        chosen_words.append(word)
    return chosen_words


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
