"""Adds, finishes, lists, changes and removes the documents and chunks of one table."""

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence

from antiphon.errors import Conflict, NotFound
from antiphon.retrieval.base import (
    ChunkInput,
    ChunkPage,
    DocumentInfo,
    DocumentInput,
    DocumentPage,
    DocumentState,
    IndexUsage,
    TextChunk,
)
from antiphon.retrieval.sqlite.schema import LOOSE_DOCUMENT
from antiphon.retrieval.sqlite.table import TableChange
from antiphon.retrieval.sqlite.vectors import VectorRow
from antiphon.retrieval.stored_form import ReadyChunk, encode_floats, parse_id, prepare_chunks

CHUNK = """
SELECT chunk.id, position, document.id AS owner, text, title, page, metadata, value,
coalesce(nullif(file_name, ''), document.name) AS file_name, chunk.created_at, chunk.updated_at
FROM chunk JOIN document ON number = chunk.document LEFT JOIN vector ON vector.id = chunk.id
"""


DOCUMENT = """
SELECT number, id, name, digest, media_type, bytes, chunks, state, error, progress, warnings, created_at,
updated_at FROM document
"""

LONGEST_ERROR = 1000
"""The most characters of a stored error or warning."""

MOST_WARNINGS = 100
"""The most stored warnings of a document."""


def insert_chunks(change: TableChange, document: int, chunks: Sequence[ReadyChunk]) -> range:
    """Adds chunks to a document, but not to the full-text index. Returns their ids, which are also their
    positions."""
    stored_bytes = sum(chunk.stored_bytes for chunk in chunks)
    change.reserve_usage(IndexUsage(chunks=len(chunks), bytes=stored_bytes))
    return _insert_rows(change, document, chunks)


def _insert_rows(change: TableChange, document: int, chunks: Sequence[ReadyChunk]) -> range:
    """Adds chunks whose usage is already reserved. Returns their ids."""
    first_id = read_next_id(change.connection)
    ids = range(first_id, first_id + len(chunks))
    change.connection.executemany(
        "INSERT INTO chunk VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (id_, id_, document, *columns, change.now, change.now)
            for id_, columns in zip(ids, map(list_columns, chunks), strict=True)
        ],
    )
    change.connection.executemany(
        "INSERT INTO vector VALUES (?, ?, ?)",
        [(id_, document, chunk.vector) for id_, chunk in zip(ids, chunks, strict=True) if chunk.vector],
    )
    _change_counts(change, document, len(chunks), sum(chunk.stored_bytes for chunk in chunks))
    return ids


def list_columns(chunk: ReadyChunk) -> tuple[object, ...]:
    """Returns the columns of a chunk's content, in the order of the table `chunk`."""
    return chunk.text, chunk.title, chunk.page, chunk.file_name, chunk.metadata, chunk.stored_bytes


def read_next_id(connection: sqlite3.Connection) -> int:
    """Returns an id that no chunk of the table ever had."""
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'chunk'").fetchone()
    return 1 + (row[0] if row else 0)


def _change_counts(change: TableChange, document: int, chunks: int, stored: int) -> None:
    """Adds to a document's numbers of chunks and stored bytes. Negative numbers are subtracted."""
    change.connection.execute(
        "UPDATE document SET chunks = chunks + ?, stored = stored + ?, updated_at = ? WHERE number = ?",
        (chunks, stored, change.now, document),
    )


def add_loose_chunks(change: TableChange, chunks: Sequence[ChunkInput]) -> tuple[TextChunk, ...]:
    """Adds chunks that belong to no document, and lets search find them."""
    ready_chunks = prepare_chunks(change.settings, chunks)
    ids = insert_chunks(change, LOOSE_DOCUMENT, ready_chunks)
    change.index_words(f"id >= ? AND document = {LOOSE_DOCUMENT}", ids.start)
    _record_new_vectors(change, ids, LOOSE_DOCUMENT, ready_chunks)
    return tuple(_read_chunk(change.connection, str(id_)) for id_ in ids)


def _record_new_vectors(
    change: TableChange, ids: Iterable[int], document: int, chunks: Iterable[ReadyChunk]
) -> None:
    change.new_vectors += [
        VectorRow(id_, document, chunk.vector) for id_, chunk in zip(ids, chunks, strict=True) if chunk.vector
    ]


def list_chunks(
    connection: sqlite3.Connection, document: int | None, offset: int, limit: int, *, with_vectors: bool
) -> ChunkPage:
    """Returns chunks of one ready document, or of all, in the order of their positions. `document`: its
    number."""
    where, ready_state = "state = ?", (DocumentState.READY.value,)
    values: tuple[int | str, ...] = ready_state if document is None else (*ready_state, document)
    if document is not None:
        where += " AND number = ?"
    total = connection.execute(f"SELECT sum(chunks) FROM document WHERE {where}", values).fetchone()[0]  # noqa: S608
    rows = connection.execute(
        f"{CHUNK} WHERE {where} ORDER BY chunk.position LIMIT ? OFFSET ?", (*values, limit, offset)
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
    """Builds a chunk from a row of the statement CHUNK."""
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
    """Replaces a chunk's content under a new internal id. Raises NotFound, and KnowledgeLimitReached if the
    new content is larger and the project cannot store it."""
    connection = change.connection
    old_id = _find_row(connection, chunk)["id"]
    document, old_bytes, created_at = connection.execute(
        "SELECT document, stored, created_at FROM chunk WHERE id = ?", (old_id,)
    ).fetchone()
    new_chunks = prepare_chunks(change.settings, [content])
    if new_chunks[0].stored_bytes > old_bytes:
        change.reserve_usage(IndexUsage(bytes=new_chunks[0].stored_bytes - old_bytes))
    _drop_rows(change, "id = ?", old_id)
    (new_id,) = _insert_rows(change, document, new_chunks)
    connection.execute(
        "UPDATE chunk SET position = ?, created_at = ? WHERE id = ?", (parse_id(chunk), created_at, new_id)
    )
    _change_counts(change, document, -1, -old_bytes)
    change.index_words("id = ?", new_id)
    _record_new_vectors(change, [new_id], document, new_chunks)
    return get_chunk(connection, chunk)


def delete_chunks(change: TableChange, chunks: Sequence[str]) -> int:
    """Removes chunks of ready documents. Returns their number."""
    positions = json.dumps([parse_id(chunk) for chunk in chunks])
    rows = change.connection.execute(
        "SELECT chunk.id, chunk.document, chunk.stored FROM chunk JOIN document ON number = chunk.document "
        "WHERE position IN (SELECT value FROM json_each(?)) AND state = ?",
        (positions, DocumentState.READY),
    ).fetchall()
    for id_, document, stored in rows:
        _drop_rows(change, "id = ?", id_)
        _change_counts(change, document, -1, -stored)
    return len(rows)


def delete_all_chunks(change: TableChange, document: int) -> None:
    """Removes all chunks of a document."""
    _drop_rows(change, "document = ?", document)
    change.connection.execute("UPDATE document SET chunks = 0, stored = 0 WHERE number = ?", (document,))


def _drop_rows(change: TableChange, where: str, value: object) -> None:
    """Removes the chunks for which the SQL condition `where` is true, with their words and vectors. `value`:
    the value for its `?`."""
    connection = change.connection
    ids = [row[0] for row in connection.execute(f"SELECT id FROM chunk WHERE {where}", (value,))]  # noqa: S608
    ids_json = json.dumps(ids)
    for table, column in (("words", "rowid"), ("vector", "id"), ("chunk", "id")):
        connection.execute(
            f"DELETE FROM {table} WHERE {column} IN (SELECT value FROM json_each(?))",  # noqa: S608
            (ids_json,),
        )
    change.removed_ids += ids


def begin_document(change: TableChange, document: DocumentInput, id_: str) -> DocumentInfo:
    """Adds a document, or begins a failed document again. If a document with the same digest exists, returns
    that document. `id_`: the id of a new document."""
    existing = change.connection.execute(
        "SELECT id, state FROM document WHERE digest = ? AND number != ?", (document.digest, LOOSE_DOCUMENT)
    ).fetchone()
    if existing is not None and existing[1] != DocumentState.FAILED:
        return get_document(change.connection, existing[0])
    if existing is not None:  # it gets a new number, so that it is the latest document again
        id_ = existing[0]
        change.connection.execute("DELETE FROM document WHERE id = ?", (id_,))
    else:
        if change.connection.execute("SELECT 1 FROM document WHERE id = ?", (id_,)).fetchone() is not None:
            raise Conflict(
                f"this knowledge table has another document with the id {id_!r}: import into a new table",
                param="id",
            )
        change.reserve_usage(IndexUsage(documents=1))
    change.connection.execute(
        "INSERT INTO document (id, name, digest, media_type, bytes, state, created_at, updated_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(id_, document.name, document.digest, document.media_type, document.bytes),
            *(DocumentState.INDEXING.value, change.now, change.now),
        ),
    )
    return get_document(change.connection, id_)


def put_chunks(
    change: TableChange, document: str, batch: int, chunks: Sequence[ChunkInput], progress: int | None
) -> DocumentInfo:
    """Adds a batch to an INDEXING document, unless the batch is stored already. Raises Conflict for a FAILED
    document."""
    number, state = find_document(change.connection, document)
    if state is DocumentState.FAILED:
        raise Conflict(
            "this document has failed, and takes no chunks: begin it again, with the same digest",
            param="document",
        )
    stored_batch = change.connection.execute(
        "SELECT 1 FROM batch WHERE document = ? AND number = ?", (number, batch)
    ).fetchone()
    if state is DocumentState.INDEXING and stored_batch is None:
        change.connection.execute("INSERT INTO batch VALUES (?, ?)", (number, batch))
        insert_chunks(change, number, prepare_chunks(change.settings, chunks))
        change.connection.execute(
            "UPDATE document SET progress = coalesce(?, progress) WHERE number = ?", (progress, number)
        )
    return get_document(change.connection, document)


def finish_document(change: TableChange, document: str, warnings: Sequence[str]) -> DocumentInfo:
    """Makes a document READY, so that search finds it. Removes earlier documents with the same name."""
    number, state = find_document(change.connection, document)
    if state is DocumentState.FAILED:
        raise Conflict("this document has failed: begin it again, with the same digest", param="document")
    if state is DocumentState.INDEXING:
        for (older_number,) in change.connection.execute(
            "SELECT older.number FROM document AS older JOIN document USING (name) "
            "WHERE document.number = ? AND older.number < document.number AND older.number != ?",
            (number, LOOSE_DOCUMENT),
        ).fetchall():
            _remove(change, older_number)
        stored_warnings = json.dumps([text[:LONGEST_ERROR] for text in warnings[:MOST_WARNINGS]])
        change.connection.execute(
            "UPDATE document SET state = ?, progress = 100, warnings = ?, updated_at = ? WHERE number = ?",
            (DocumentState.READY, stored_warnings, change.now, number),
        )
        change.connection.execute("DELETE FROM batch WHERE document = ?", (number,))
        change.index_words("document = ?", number)
        change.new_documents.append(number)
    return get_document(change.connection, document)


def fail_document(change: TableChange, document: str, error: str) -> DocumentInfo:
    """Makes an INDEXING document FAILED: stores the error, and removes the chunks."""
    number, state = find_document(change.connection, document)
    if state is DocumentState.INDEXING:
        delete_all_chunks(change, number)
        change.connection.execute("DELETE FROM batch WHERE document = ?", (number,))
        change.connection.execute(
            "UPDATE document SET state = ?, error = ?, progress = 0, updated_at = ? WHERE number = ?",
            (DocumentState.FAILED, error[:LONGEST_ERROR], change.now, number),
        )
    return get_document(change.connection, document)


def list_documents(connection: sqlite3.Connection, offset: int, limit: int) -> DocumentPage:
    """Returns documents, the latest first."""
    total = connection.execute("SELECT count(*) - 1 FROM document").fetchone()[0]
    rows = connection.execute(
        f"{DOCUMENT} WHERE number != ? ORDER BY number DESC LIMIT ? OFFSET ?", (LOOSE_DOCUMENT, limit, offset)
    ).fetchall()
    return DocumentPage(tuple(_build_document(connection, row) for row in rows), total)


def get_document(connection: sqlite3.Connection, document: str) -> DocumentInfo:
    """Returns one document. Raises NotFound."""
    number, _ = find_document(connection, document)
    row = connection.execute(f"{DOCUMENT} WHERE number = ?", (number,)).fetchone()
    return _build_document(connection, row)


def delete_document(change: TableChange, document: str) -> None:
    """Removes a document with its chunks. Raises NotFound."""
    number, _ = find_document(change.connection, document)
    _remove(change, number)


def delete_unready(connection: sqlite3.Connection) -> None:
    """Removes all documents that are not ready, from the copy of a table."""
    for table in ("vector", "chunk", "batch", "document"):
        column = "number" if table == "document" else "document"
        connection.execute(
            f"DELETE FROM {table} WHERE {column} IN (SELECT number FROM document WHERE state != ?)",  # noqa: S608
            (DocumentState.READY,),
        )


def find_document(connection: sqlite3.Connection, document: str) -> tuple[int, DocumentState]:
    """Returns a document's number and state. Raises NotFound."""
    row = connection.execute(
        "SELECT number, state FROM document WHERE id = ? AND number != ?", (document, LOOSE_DOCUMENT)
    ).fetchone()
    if row is None:
        raise NotFound(f"there is no document {document[:40]!r} in this knowledge table", param="document")
    return row[0], DocumentState(row[1])


def find_document_numbers(connection: sqlite3.Connection, documents: Sequence[str]) -> list[int]:
    """Returns the numbers of the ready documents with these ids. Skips unknown ids."""
    rows = connection.execute(
        "SELECT number FROM document WHERE id IN (SELECT value FROM json_each(?)) AND state = ? "
        "AND number != ?",
        (json.dumps(list(documents)), DocumentState.READY, LOOSE_DOCUMENT),
    )
    return [row[0] for row in rows]


def _remove(change: TableChange, number: int) -> None:
    """Removes a document with its chunks and batches."""
    delete_all_chunks(change, number)
    change.connection.execute("DELETE FROM batch WHERE document = ?", (number,))
    change.connection.execute("DELETE FROM document WHERE number = ?", (number,))


def _build_document(connection: sqlite3.Connection, row: sqlite3.Row) -> DocumentInfo:
    """Builds a document from a row of DOCUMENT."""
    batches = connection.execute(
        "SELECT number FROM batch WHERE document = ? ORDER BY number", (row["number"],)
    )
    return DocumentInfo(
        id=row["id"],
        name=row["name"],
        digest=row["digest"],
        media_type=row["media_type"],
        bytes=row["bytes"],
        chunks=row["chunks"],
        batches=tuple(batch for (batch,) in batches),
        state=DocumentState(row["state"]),
        error=row["error"],
        progress=row["progress"],
        warnings=tuple(json.loads(row["warnings"])),
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )
