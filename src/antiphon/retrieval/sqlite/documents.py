"""Adds, finishes, reads and removes the documents of one table."""

import json
import sqlite3
from collections.abc import Sequence

from antiphon.errors import Conflict, NotFound
from antiphon.retrieval.base import (
    ChunkInput,
    DocumentInfo,
    DocumentInput,
    DocumentPage,
    DocumentState,
    IndexUsage,
)
from antiphon.retrieval.ready_chunks import prepare_chunks
from antiphon.retrieval.sqlite.chunks import delete_all_chunks, insert_chunks
from antiphon.retrieval.sqlite.schema import LOOSE_DOCUMENT
from antiphon.retrieval.sqlite.table import TableChange

DOCUMENT = """
SELECT number, id, name, digest, media_type, bytes, chunks, state, error, progress, warnings, created_at,
updated_at FROM document
"""

LONGEST_ERROR = 1000
"""The most characters of a stored error or warning."""

MOST_WARNINGS = 100
"""The most stored warnings of a document."""


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
