"""Writes and reads vectors in the notation of pgvector, and searches for the nearest vectors."""

import json
from collections.abc import Sequence

import numpy as np

from antiphon.retrieval.halves import decode_halves, read_halves
from antiphon.retrieval.postgres.rows import TableRows
from antiphon.retrieval.postgres.words import format_document_condition

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
