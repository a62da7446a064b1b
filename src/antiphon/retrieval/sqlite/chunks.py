"""Chunks of one table: made ready to be kept, added, listed, changed and removed."""

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence

from antiphon.errors import NotFound
from antiphon.retrieval.base import ChunkInput, ChunkPage, DocumentState, IndexUsage, TextChunk
from antiphon.retrieval.halves import encode_floats
from antiphon.retrieval.ready_chunks import ReadyChunk, parse_id, prepare_chunks
from antiphon.retrieval.sqlite.schema import LOOSE
from antiphon.retrieval.sqlite.table import TableChange
from antiphon.retrieval.sqlite.vectors import VectorRow

CHUNK = """
SELECT chunk.id, position, document.id AS owner, text, title, page, metadata, value,
coalesce(nullif(file_name, ''), document.name) AS file_name, chunk.created_at, chunk.updated_at
FROM chunk JOIN document ON number = chunk.document LEFT JOIN vector ON vector.id = chunk.id
"""


def insert_chunks(change: TableChange, document: int, chunks: Sequence[ReadyChunk]) -> range:
    """Adds chunks to a document, without their words. Returns their ids, which are their positions too."""
    change.take_room(IndexUsage(chunks=len(chunks), bytes=sum(each.stored for each in chunks)))
    return _insert_rows(change, document, chunks)


def _insert_rows(change: TableChange, document: int, chunks: Sequence[ReadyChunk]) -> range:
    """Adds chunks for which there is room. Returns their ids."""
    first = read_next_id(change.connection)
    ids = range(first, first + len(chunks))
    change.connection.executemany(
        "INSERT INTO chunk VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (id_, id_, document, *columns, change.now, change.now)
            for id_, columns in zip(ids, map(list_columns, chunks), strict=True)
        ],
    )
    change.connection.executemany(
        "INSERT INTO vector VALUES (?, ?, ?)",
        [(id_, document, each.vector) for id_, each in zip(ids, chunks, strict=True) if each.vector],
    )
    _count_chunks(change, document, len(chunks), sum(each.stored for each in chunks))
    return ids


def list_columns(chunk: ReadyChunk) -> tuple[object, ...]:
    """Returns the columns of `chunk` from the text on."""
    return chunk.text, chunk.title, chunk.page, chunk.file_name, chunk.metadata, chunk.stored


def read_next_id(connection: sqlite3.Connection) -> int:
    """Returns an id of a chunk that was never used."""
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'chunk'").fetchone()
    return 1 + (row[0] if row else 0)


def _count_chunks(change: TableChange, document: int, chunks: int, stored: int) -> None:
    """Adds to a document's numbers of chunks and bytes."""
    change.connection.execute(
        "UPDATE document SET chunks = chunks + ?, stored = stored + ?, updated_at = ? WHERE number = ?",
        (chunks, stored, change.now, document),
    )


def add_loose_chunks(change: TableChange, chunks: Sequence[ChunkInput]) -> tuple[TextChunk, ...]:
    """Adds chunks that belong to no document, and lets search find them."""
    ready = prepare_chunks(change.settings, chunks)
    ids = insert_chunks(change, LOOSE, ready)
    change.index_words(f"id >= ? AND document = {LOOSE}", ids.start)
    _note_vectors(change, ids, LOOSE, ready)
    return tuple(_read_chunk(change.connection, str(id_)) for id_ in ids)


def _note_vectors(
    change: TableChange, ids: Iterable[int], document: int, chunks: Iterable[ReadyChunk]
) -> None:
    change.new_vectors += [
        VectorRow(id_, document, each.vector) for id_, each in zip(ids, chunks, strict=True) if each.vector
    ]


def list_chunks(
    connection: sqlite3.Connection, document: int | None, offset: int, limit: int, *, with_vectors: bool
) -> ChunkPage:
    """Returns chunks of ready documents by their positions."""
    where, values = "state = ?", (DocumentState.READY.value,)
    chosen: tuple[int | str, ...] = values if document is None else (*values, document)
    if document is not None:
        where += " AND number = ?"
    total = connection.execute(f"SELECT sum(chunks) FROM document WHERE {where}", chosen).fetchone()[0]  # noqa: S608
    rows = connection.execute(
        f"{CHUNK} WHERE {where} ORDER BY chunk.position LIMIT ? OFFSET ?", (*chosen, limit, offset)
    )
    return ChunkPage(tuple(build_chunk(row, with_vector=with_vectors) for row in rows), total or 0)


def get_chunk(connection: sqlite3.Connection, chunk: str) -> TextChunk:
    """Returns a chunk of a ready document with its vector. Raises NotFound."""
    return _read_chunk(connection, chunk, with_vector=True)


def _read_chunk(connection: sqlite3.Connection, chunk: str, *, with_vector: bool = False) -> TextChunk:
    return build_chunk(_find_row(connection, chunk), with_vector=with_vector)


def _find_row(connection: sqlite3.Connection, chunk: str) -> sqlite3.Row:
    row: sqlite3.Row | None = connection.execute(
        f"{CHUNK} WHERE chunk.position = ? AND state = ?", (parse_id(chunk), DocumentState.READY)
    ).fetchone()
    if row is None:
        raise NotFound(f"there is no chunk {chunk[:40]!r} in this knowledge table", param="chunk")
    return row


def find_chunks(connection: sqlite3.Connection, ids: Sequence[int]) -> Mapping[int, TextChunk]:
    """Returns the chunks with these internal ids that are in ready documents."""
    rows = connection.execute(
        f"{CHUNK} WHERE chunk.id IN (SELECT value FROM json_each(?)) AND state = ?",  # noqa: S608
        (json.dumps(list(ids)), DocumentState.READY),
    )
    return {row["id"]: build_chunk(row) for row in rows}


def build_chunk(row: sqlite3.Row, *, with_vector: bool = False) -> TextChunk:
    """Makes a chunk of a row of CHUNK."""
    return TextChunk(
        id=str(row["position"]),
        document=row["owner"],
        text=row["text"],
        title=row["title"],
        page=row["page"],
        file_name=row["file_name"],
        metadata=json.loads(row["metadata"] or "{}"),
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        vector=encode_floats(row["value"]) if with_vector and row["value"] else b"",
    )


def update_chunk(change: TableChange, chunk: str, content: ChunkInput) -> TextChunk:
    """Replaces a chunk's content under a new internal id. Raises NotFound, and KnowledgeLimitReached for more
    bytes than before."""
    connection = change.connection
    old = _find_row(connection, chunk)["id"]
    document, stored, created_at = connection.execute(
        "SELECT document, stored, created_at FROM chunk WHERE id = ?", (old,)
    ).fetchone()
    ready = prepare_chunks(change.settings, [content])
    if ready[0].stored > stored:
        change.take_room(IndexUsage(bytes=ready[0].stored - stored))
    _drop_rows(change, "id = ?", old)
    (new,) = _insert_rows(change, document, ready)
    connection.execute(
        "UPDATE chunk SET position = ?, created_at = ? WHERE id = ?", (parse_id(chunk), created_at, new)
    )
    _count_chunks(change, document, -1, -stored)
    change.index_words("id = ?", new)
    _note_vectors(change, [new], document, ready)
    return get_chunk(connection, chunk)


def delete_chunks(change: TableChange, chunks: Sequence[str]) -> int:
    """Removes chunks of ready documents. Returns their number."""
    positions = json.dumps([parse_id(chunk) for chunk in chunks])
    found = change.connection.execute(
        "SELECT chunk.id, chunk.document, chunk.stored FROM chunk JOIN document ON number = chunk.document "
        "WHERE position IN (SELECT value FROM json_each(?)) AND state = ?",
        (positions, DocumentState.READY),
    ).fetchall()
    for id_, document, stored in found:
        _drop_rows(change, "id = ?", id_)
        _count_chunks(change, document, -1, -stored)
    return len(found)


def delete_all_chunks(change: TableChange, document: int) -> None:
    """Removes all chunks of a document."""
    _drop_rows(change, "document = ?", document)
    change.connection.execute("UPDATE document SET chunks = 0, stored = 0 WHERE number = ?", (document,))


def _drop_rows(change: TableChange, where: str, value: object) -> None:
    """Removes the chunks that a condition chooses, with their words and vectors."""
    connection = change.connection
    ids = [row[0] for row in connection.execute(f"SELECT id FROM chunk WHERE {where}", (value,))]  # noqa: S608
    chosen = (json.dumps(ids),)
    for table, column in (("words", "rowid"), ("vector", "id"), ("chunk", "id")):
        connection.execute(
            f"DELETE FROM {table} WHERE {column} IN (SELECT value FROM json_each(?))",  # noqa: S608
            chosen,
        )
    change.removed += ids
