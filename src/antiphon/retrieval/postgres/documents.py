"""Adds, finishes, lists, changes and removes the documents and chunks of one table."""

import json
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
from antiphon.retrieval.postgres.chunk_search import (
    add_counts,
    decode_vector,
    encode_vector,
    encode_words,
    format_number_condition,
    subtract_counts,
)
from antiphon.retrieval.postgres.tables import DatabaseRow, TableRows, TableWrite
from antiphon.retrieval.stored_form import ReadyChunk, parse_id, prepare_chunks

CHUNK = """
SELECT chunk.id, coalesce(document.id, '') AS owner, text, title, page, metadata,
coalesce(nullif(file_name, ''), document.name, '') AS file_name, chunk.created_at, chunk.updated_at,
{vector} AS vector
FROM {chunks} AS chunk LEFT JOIN {documents} AS document ON document.number = chunk.document {join_vectors}
WHERE coalesce(document.state, 'ready') = 'ready'
"""
JOIN_VECTORS = "LEFT JOIN {vectors} AS vector ON vector.id = chunk.id"


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


def encode_text(text: str) -> str:
    """Returns a text in the form that is stored. It has no NUL, which PostgreSQL does not accept in text."""
    return text.replace("\x01", "\x01.").replace("\0", "\x01:")


def decode_text(text: str) -> str:
    """Returns a text that `encode_text` encoded."""
    return text.replace("\x01:", "\0").replace("\x01.", "\x01")


def insert_chunks(
    change: TableWrite, document: int | None, chunks: Sequence[ReadyChunk], *, ready: bool = False
) -> range:
    """Adds chunks, and returns their ids. `document`: its number; None for chunks without a document.
    `ready`: whether search finds the chunks."""
    stored_bytes = sum(chunk.stored_bytes for chunk in chunks)
    change.reserve_usage(IndexUsage(chunks=len(chunks), bytes=stored_bytes))
    ids = change.take_ids(len(chunks))
    change.rows.execute_many(
        "INSERT INTO {chunks} VALUES "
        "(:id, :document, :text, :title, :page, :file_name, :metadata, :stored, :now, :now)",
        [
            {"id": id_, "document": document, "now": change.now, **list_columns(chunk)}
            for id_, chunk in zip(ids, chunks, strict=True)
        ],
    )
    insert_search_rows(change.rows, document, zip(ids, chunks, strict=True), ready=ready)
    _change_counts(change, document, len(chunks), stored_bytes)
    return ids


def list_columns(chunk: ReadyChunk) -> dict[str, object]:
    """Returns the columns of a chunk's content."""
    return {
        "text": encode_text(chunk.text),
        "title": encode_text(chunk.title),
        "page": chunk.page,
        "file_name": chunk.file_name,
        "metadata": chunk.metadata,
        "stored": chunk.stored_bytes,
    }


def insert_search_rows(
    rows: TableRows, document: int | None, chunks: Iterable[tuple[int, ReadyChunk]], *, ready: bool
) -> None:
    """Inserts the rows that search reads, words and vectors, for (id, chunk) pairs. `ready`: whether search
    already finds them."""
    words, vectors = list[dict[str, object]](), list[dict[str, object]]()
    for id_, chunk in chunks:
        terms, length = encode_words(chunk.title, chunk.text)
        row = {"id": id_, "document": document, "ready": ready}
        words.append({**row, "length": length, "words": terms})
        if chunk.vector:
            vectors.append({**row, "value": encode_vector(chunk.vector)})
    rows.execute_many(
        "INSERT INTO {words} VALUES (:id, :document, :ready, :length, CAST(:words AS tsvector))", words
    )
    rows.execute_many(
        "INSERT INTO {vectors} VALUES (:id, :document, :ready, CAST(:value AS {vector_type}))", vectors
    )


def _change_counts(change: TableWrite, document: int | None, chunks: int, stored: int) -> None:
    """Adds to the numbers of chunks and of stored bytes of a document and of its table. Negative numbers are
    subtracted."""
    change.change_counts(chunks=chunks, stored=stored)
    if document is not None:
        change.rows.execute(
            "UPDATE {documents} SET chunks = chunks + :chunks, stored = stored + :stored, updated_at = :now "
            "WHERE number = :document",
            {"chunks": chunks, "stored": stored, "now": change.now, "document": document},
        )


def add_loose_chunks(change: TableWrite, chunks: Sequence[ChunkInput]) -> tuple[TextChunk, ...]:
    """Adds chunks that belong to no document, and lets search find them."""
    ids = insert_chunks(change, None, prepare_chunks(change.rows.settings, chunks), ready=True)
    add_counts(change.rows, f"id >= {ids.start} AND id < {ids.stop}")
    added_chunks = find_chunks(change.rows, ids)
    return tuple(added_chunks[id_] for id_ in ids)


def list_chunks(
    rows: TableRows, document: int | None, offset: int, limit: int, *, with_vectors: bool
) -> ChunkPage:
    """Returns chunks of one ready document, or of all, in the order of their ids. `document`: its number."""
    where = "" if document is None else f" AND chunk.document = {document}"
    chunk_rows = _select(
        rows,
        f"{where} ORDER BY chunk.id LIMIT :limit OFFSET :offset",
        {"limit": limit, "offset": offset},
        with_vectors=with_vectors,
    )
    return ChunkPage(tuple(map(build_chunk, chunk_rows)), _count_listed(rows, document))


def _count_listed(rows: TableRows, document: int | None) -> int:
    """Returns the number of chunks of a ready document, or of all ready documents and of no document."""
    select_total = "SELECT coalesce(sum(chunks), 0) AS total FROM {documents} WHERE "
    if document is not None:
        return rows.read_total(select_total + "number = :number AND state = 'ready'", {"number": document})
    unready_condition = "owner = :owner AND state != 'ready'"
    return rows.chunks - rows.read_total(select_total + unready_condition, {"owner": rows.number})


def _select(
    rows: TableRows, statement_end: str, values: Mapping[str, object], *, with_vectors: bool = False
) -> Sequence[DatabaseRow]:
    """Reads chunks of ready documents. `statement_end`: follows the condition in CHUNK."""
    has_vectors = with_vectors and rows.settings.dimensions > 0
    return rows.execute(
        CHUNK + statement_end,
        values,
        vector="CAST(vector.value AS text)" if has_vectors else "''",
        join_vectors=JOIN_VECTORS.format_map(rows.names) if has_vectors else "",
    ).all()


def get_chunk(rows: TableRows, chunk: str) -> TextChunk:
    """Returns a chunk of a ready document with its vector. Raises NotFound."""
    chunk_rows = _select(rows, " AND chunk.id = :id", {"id": parse_id(chunk)}, with_vectors=True)
    if not chunk_rows:
        raise NotFound(f"there is no chunk {chunk[:40]!r} in this knowledge table", param="chunk")
    return build_chunk(chunk_rows[0])


def find_chunks(rows: TableRows, ids: Sequence[int]) -> Mapping[int, TextChunk]:
    """Returns the chunks with these ids that are in ready documents."""
    chunk_rows = _select(rows, " AND chunk.id = ANY(:ids)", {"ids": list(ids)})
    return {row.id: build_chunk(row) for row in chunk_rows}


def build_chunk(row: DatabaseRow) -> TextChunk:
    """Builds a chunk from a row of the statement CHUNK."""
    return TextChunk(
        id=str(row.id),
        document=row.owner,
        text=decode_text(row.text),
        title=decode_text(row.title),
        page=row.page,
        file_name=row.file_name,
        metadata=json.loads(row.metadata or "{}"),
        created_at=row.created_at,
        updated_at=row.updated_at,
        vector=decode_vector(row.vector),
    )


def update_chunk(change: TableWrite, chunk: str, content: ChunkInput) -> TextChunk:
    """Replaces a chunk's content. Raises NotFound, and KnowledgeLimitReached if the new content is larger and
    the project cannot store it."""
    rows, id_ = change.rows, int(get_chunk(change.rows, chunk).id)
    (new_chunk,) = prepare_chunks(rows.settings, [content])
    old_row = rows.execute("SELECT document, stored FROM {chunks} WHERE id = :id", {"id": id_}).one()
    added_bytes = new_chunk.stored_bytes - old_row.stored
    if added_bytes > 0:
        change.reserve_usage(IndexUsage(bytes=added_bytes))
    _delete_search_rows(rows, f"id = {id_}")
    rows.execute(
        "UPDATE {chunks} SET text = :text, title = :title, page = :page, file_name = :file_name, "
        "metadata = :metadata, stored = :stored, updated_at = :now WHERE id = :id",
        {"id": id_, "now": change.now, **list_columns(new_chunk)},
    )
    insert_search_rows(rows, old_row.document, [(id_, new_chunk)], ready=True)
    add_counts(rows, f"id = {id_}")
    _change_counts(change, old_row.document, 0, added_bytes)
    return get_chunk(rows, chunk)


def delete_chunks(change: TableWrite, chunks: Sequence[str]) -> int:
    """Removes chunks of ready documents. Returns their number."""
    ids = list(find_chunks(change.rows, [parse_id(chunk) for chunk in chunks]))
    if not ids:
        return 0
    where = format_number_condition("id", ids)
    _delete_search_rows(change.rows, where)
    statement = "DELETE FROM {chunks} WHERE {where} RETURNING document, stored"
    removed_rows = change.rows.execute(statement, where=where).all()
    for row in removed_rows:
        _change_counts(change, row.document, -1, -row.stored)
    return len(removed_rows)


def delete_all_chunks(change: TableWrite, document: int) -> None:
    """Removes all chunks of a document."""
    where = f"document = {document}"
    _delete_search_rows(change.rows, where)
    statement = "DELETE FROM {chunks} WHERE {where} RETURNING stored"
    removed_rows = change.rows.execute(statement, where=where).all()
    _change_counts(change, document, -len(removed_rows), -sum(row.stored for row in removed_rows))


def _delete_search_rows(rows: TableRows, where: str) -> None:
    """Deletes the rows that search reads, words and vectors, of the chunks for which the SQL condition
    `where` is true."""
    subtract_counts(rows, where)
    rows.execute("DELETE FROM {words} WHERE {where}", where=where)
    if rows.settings.dimensions:
        rows.execute("DELETE FROM {vectors} WHERE {where}", where=where)


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
