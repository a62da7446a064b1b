"""Adds, finishes, reads and removes the documents of one table."""

import json
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
from antiphon.retrieval.postgres.chunks import decode_text, delete_all_chunks, encode_text, insert_chunks
from antiphon.retrieval.postgres.rows import DatabaseRow, TableRows, TableWrite
from antiphon.retrieval.postgres.words import add_counts
from antiphon.retrieval.ready_chunks import prepare_chunks

DOCUMENT = """
SELECT number, id, name, digest, media_type, bytes, chunks, state, error, progress, warnings, created_at,
updated_at, ARRAY(
    SELECT batch.number FROM {batches} AS batch WHERE batch.document = documents.number ORDER BY 1
) AS batches
FROM {documents} AS documents WHERE owner = :owner
"""

LONGEST_ERROR = 1000
"""The most characters of a stored error or warning."""

MOST_WARNINGS = 100
"""The most stored warnings of a document."""


def begin_document(change: TableWrite, document: DocumentInput, id_: str) -> DocumentInfo:
    """Adds a document, or begins a failed document again. If a document with the same digest exists, returns
    that document. `id_`: the id of a new document."""
    rows = change.rows
    owner = {"owner": rows.number}
    existing = rows.execute(
        "SELECT id, state FROM {documents} WHERE owner = :owner AND digest = :digest",
        owner | {"digest": document.digest},
    ).first()
    if existing is not None and existing.state != DocumentState.FAILED:
        return get_document(rows, existing.id)
    if existing is not None:  # it gets a new number, so that it is the latest document again
        id_ = existing.id
        rows.execute("DELETE FROM {documents} WHERE owner = :owner AND id = :id", owner | {"id": id_})
    else:
        require_free_id(rows, id_)
        change.reserve_usage(IndexUsage(documents=1))
        change.change_counts(documents=1)
    rows.execute(
        "INSERT INTO {documents} (owner, id, name, digest, media_type, bytes, state, created_at, updated_at)"
        " VALUES (:owner, :id, :name, :digest, :media_type, :bytes, :state, :now, :now)",
        {
            **owner,
            "id": id_,
            "name": document.name,
            "digest": document.digest,
            "media_type": document.media_type,
            "bytes": document.bytes,
            "state": DocumentState.INDEXING.value,
            "now": change.now,
        },
    )
    return get_document(rows, id_)


def require_free_id(rows: TableRows, id_: str) -> None:
    """Raises Conflict if a document has this id."""
    statement = "SELECT 1 FROM {documents} WHERE owner = :owner AND id = :id"
    if rows.execute(statement, {"owner": rows.number, "id": id_}).first() is not None:
        raise Conflict(
            f"this knowledge table has another document with the id {id_!r}: import into a new table",
            param="id",
        )


def put_chunks(
    change: TableWrite, document: str, batch: int, chunks: Sequence[ChunkInput], progress: int | None
) -> DocumentInfo:
    """Adds a batch to an INDEXING document, unless the batch is stored already. Raises Conflict for a FAILED
    document."""
    rows = change.rows
    number, state = find_document(rows, document)
    if state is DocumentState.FAILED:
        raise Conflict(
            "this document has failed, and takes no chunks: begin it again, with the same digest",
            param="document",
        )
    if state is DocumentState.INDEXING:
        is_new = rows.execute(
            "INSERT INTO {batches} VALUES (:document, :batch) ON CONFLICT DO NOTHING",
            {"document": number, "batch": batch},
        ).rowcount
        if is_new:
            insert_chunks(change, number, prepare_chunks(rows.settings, chunks))
            rows.execute(
                "UPDATE {documents} SET progress = coalesce(:progress, progress) WHERE number = :number",
                {"progress": progress, "number": number},
            )
    return get_document(rows, document)


def finish_document(change: TableWrite, document: str, warnings: Sequence[str]) -> DocumentInfo:
    """Makes a document READY, so that search finds it. Removes earlier documents with the same name."""
    rows = change.rows
    number, state = find_document(rows, document)
    if state is DocumentState.FAILED:
        raise Conflict("this document has failed: begin it again, with the same digest", param="document")
    if state is DocumentState.INDEXING:
        for older_row in rows.execute(
            "SELECT older.number FROM {documents} AS older JOIN {documents} AS newer USING (owner, name) "
            "WHERE newer.number = :number AND older.number < newer.number",
            {"number": number},
        ).all():
            _remove(change, older_row.number)
        stored_warnings = json.dumps([text[:LONGEST_ERROR] for text in warnings[:MOST_WARNINGS]])
        rows.execute(
            "UPDATE {documents} SET state = :state, progress = 100, warnings = :warnings, updated_at = :now "
            "WHERE number = :number",
            {
                "state": DocumentState.READY.value,
                "warnings": stored_warnings,
                "now": change.now,
                "number": number,
            },
        )
        _drop_batches(rows, number)
        rows.execute("UPDATE {words} SET ready = true WHERE document = :number", {"number": number})
        if rows.settings.dimensions:
            rows.execute("UPDATE {vectors} SET ready = true WHERE document = :number", {"number": number})
        add_counts(rows, f"document = {number}")
    return get_document(rows, document)


def _drop_batches(rows: TableRows, number: int) -> None:
    rows.execute("DELETE FROM {batches} WHERE document = :number", {"number": number})


def fail_document(change: TableWrite, document: str, error: str) -> DocumentInfo:
    """Makes an INDEXING document FAILED: stores the error, and removes the chunks."""
    rows = change.rows
    number, state = find_document(rows, document)
    if state is DocumentState.INDEXING:
        delete_all_chunks(change, number)
        _drop_batches(rows, number)
        rows.execute(
            "UPDATE {documents} SET state = :state, error = :error, progress = 0, updated_at = :now "
            "WHERE number = :number",
            {
                "state": DocumentState.FAILED.value,
                "error": encode_text(error[:LONGEST_ERROR]),
                "now": change.now,
                "number": number,
            },
        )
    return get_document(rows, document)


def list_documents(rows: TableRows, offset: int, limit: int) -> DocumentPage:
    """Returns documents, the latest first."""
    owner = {"owner": rows.number}
    total = rows.read_total("SELECT count(*) AS total FROM {documents} WHERE owner = :owner", owner)
    document_rows = rows.execute(
        DOCUMENT + " ORDER BY number DESC LIMIT :limit OFFSET :offset",
        owner | {"limit": limit, "offset": offset},
    )
    return DocumentPage(tuple(map(build_document, document_rows)), total)


def get_document(rows: TableRows, document: str) -> DocumentInfo:
    """Returns one document. Raises NotFound."""
    number, _ = find_document(rows, document)
    row = rows.execute(DOCUMENT + " AND number = :number", {"owner": rows.number, "number": number}).one()
    return build_document(row)


def delete_document(change: TableWrite, document: str) -> None:
    """Removes a document with its chunks. Raises NotFound."""
    number, _ = find_document(change.rows, document)
    _remove(change, number)


def find_document(rows: TableRows, document: str) -> tuple[int, DocumentState]:
    """Returns a document's number and state. Raises NotFound."""
    row = rows.execute(
        "SELECT number, state FROM {documents} WHERE owner = :owner AND id = :id",
        {"owner": rows.number, "id": document.replace("\0", "")},
    ).first()
    if row is None or "\0" in document:
        raise NotFound(f"there is no document {document[:40]!r} in this knowledge table", param="document")
    return row.number, DocumentState(row.state)


def find_document_numbers(rows: TableRows, documents: Sequence[str]) -> list[int]:
    """Returns the numbers of the ready documents with these ids. Skips unknown ids."""
    number_rows = rows.execute(
        "SELECT number FROM {documents} WHERE owner = :owner AND id = ANY(:ids) AND state = :state",
        {
            "owner": rows.number,
            "ids": [id_ for id_ in documents if "\0" not in id_],
            "state": DocumentState.READY.value,
        },
    )
    return [row.number for row in number_rows]


def _remove(change: TableWrite, number: int) -> None:
    """Removes a document with its chunks and batches."""
    delete_all_chunks(change, number)
    change.rows.execute("DELETE FROM {documents} WHERE number = :number", {"number": number})
    change.change_counts(documents=-1)


def build_document(row: DatabaseRow) -> DocumentInfo:
    """Builds a document from a row of DOCUMENT."""
    return DocumentInfo(
        id=row.id,
        name=row.name,
        digest=row.digest,
        media_type=row.media_type,
        bytes=row.bytes,
        chunks=row.chunks,
        batches=tuple(row.batches),
        state=DocumentState(row.state),
        error=None if row.error is None else decode_text(row.error),
        progress=row.progress,
        warnings=tuple(json.loads(row.warnings)),
        created_at=row.created_at,
        updated_at=row.updated_at,
    )
