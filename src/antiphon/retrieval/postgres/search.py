"""Searches one table: by words, by vector, or by both, with fused rankings."""

from collections.abc import Mapping

from antiphon.retrieval.base import SearchHit, SearchQuery, TextChunk
from antiphon.retrieval.halves import prepare_vector
from antiphon.retrieval.postgres.chunks import find_chunks
from antiphon.retrieval.postgres.documents import find_document_numbers
from antiphon.retrieval.postgres.rows import TableRows
from antiphon.retrieval.postgres.vectors import find_nearest
from antiphon.retrieval.postgres.words import count_words, score_by_words
from antiphon.retrieval.ranking import FusedRank, choose_words, find_least_score, fuse
from antiphon.retrieval.words import QueryWord, list_words


def search(rows: TableRows, query: SearchQuery) -> tuple[SearchHit, ...]:
    """Returns the best chunks. Raises InvalidValue for a vector of other dimensions."""
    vector = prepare_vector(rows.settings, query.vector)
    depth = max(query.k, query.depth)
    documents = find_document_numbers(rows, query.documents) if query.documents else []
    if query.documents and not documents:
        return ()
    similarities = find_nearest(rows, vector, depth, documents) if vector else {}
    words = list_words(query.words or "")
    counts = count_words(rows, words) if words else {}

    def get_count(word: QueryWord) -> int:
        return counts.get(word, 0)

    chosen_words = choose_words(words, rows.chunks, get_count)
    scores = score_by_words(rows, counts, chosen_words, depth, documents)
    if vector:
        least_score = find_least_score(chosen_words, rows.chunks, get_count)
        scores = {id_: score for id_, score in scores.items() if score >= least_score}
    ranks = fuse(list(scores), list(similarities), query.k)
    chunks = find_chunks(rows, [rank.id for rank in ranks]) if ranks else {}
    return tuple(_build_hit(rank, chunks, similarities.get(rank.id)) for rank in ranks if rank.id in chunks)


def _build_hit(rank: FusedRank, chunks: Mapping[int, TextChunk], similarity: float | None) -> SearchHit:
    return SearchHit(chunks[rank.id], rank.words_rank, rank.vector_rank, rank.score, similarity)
