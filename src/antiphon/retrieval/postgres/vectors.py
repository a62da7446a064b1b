"""Writes and reads vectors in the notation of pgvector, and searches for the nearest vectors."""

import json
from collections.abc import Sequence

import numpy as np

from antiphon.retrieval.halves import decode_halves, read_halves
from antiphon.retrieval.postgres.rows import TableRows
from antiphon.retrieval.postgres.words import write_filter

LEAST_EXPLORED = 100
MOST_EXPLORED = 1000
"""The least and the most vectors that HNSW explores (`hnsw.ef_search`). pgvector allows no more."""

EXPLORED = 2
"""How many vectors HNSW explores for each hit."""

FIND_NEAREST = """
SELECT id, -(value {product} CAST(:vector AS {vector_type})) AS similarity FROM {vectors} WHERE ready {within}
ORDER BY {order} LIMIT {depth}
"""
BY_INDEX = "value {product} CAST(:vector AS {vector_type})"
EXACTLY = "(value {product} CAST(:vector AS {vector_type})) + 0, id"
"""No index has this expression, so PostgreSQL compares all vectors."""


def encode_vector(halves: bytes) -> str:
    """Returns a vector in the notation of pgvector. `halves`: half precision."""
    return str(decode_halves(read_halves(halves)).tolist())


def decode_vector(text: str | None) -> bytes:
    """Returns a vector in single precision. `text`: in the notation of pgvector; None becomes an empty
    vector."""
    return np.array(json.loads(text), "<f4").tobytes() if text else b""


def find_nearest(rows: TableRows, halves: bytes, depth: int, documents: Sequence[int]) -> dict[int, float]:
    """Returns the similarities of the nearest chunks by id, the nearest first.

    HNSW also explores removed rows that are not vacuumed yet, so it can find too few chunks. Then all vectors
    are compared.
    """
    vector = encode_vector(halves)
    if not documents and depth <= MOST_EXPLORED:
        found = _find(rows, vector, depth, BY_INDEX, ())
        if len(found) >= min(depth, rows.chunks):
            return found
    return _find(rows, vector, depth, EXACTLY, documents)


def _find(rows: TableRows, vector: str, depth: int, order: str, documents: Sequence[int]) -> dict[int, float]:
    explored = min(MOST_EXPLORED, max(LEAST_EXPLORED, EXPLORED * depth))
    rows.execute("SELECT set_config('hnsw.ef_search', :explored, true)", {"explored": str(explored)})
    found = rows.execute(
        FIND_NEAREST,
        {"vector": vector},
        within=write_filter(documents),
        order=order.format_map(rows.names),
        depth=str(depth),
    )
    return {row.id: float(row.similarity) for row in found}
