"""Chunks of one table: added, listed, changed and removed."""

import json
from collections.abc import Iterable, Mapping, Sequence

from antiphon.errors import NotFound
from antiphon.retrieval.base import ChunkInput, ChunkPage, IndexUsage, TextChunk
from antiphon.retrieval.postgres.rows import DatabaseRow, TableRows, TableWrite
from antiphon.retrieval.postgres.vectors import decode_vector, encode_vector
from antiphon.retrieval.postgres.words import add_counts, encode_words, subtract_counts, write_choice
from antiphon.retrieval.ready_chunks import ReadyChunk, parse_id, prepare_chunks

CHUNK = """
SELECT chunk.id, coalesce(document.id, '') AS owner, text, title, page, metadata,
coalesce(nullif(file_name, ''), document.name, '') AS file_name, chunk.created_at, chunk.updated_at,
{vector} AS vector
FROM {chunks} AS chunk LEFT JOIN {documents} AS document ON document.number = chunk.document {join_vectors}
WHERE coalesce(document.state, 'ready') = 'ready'
"""
JOIN_VECTORS = "LEFT JOIN {vectors} AS vector ON vector.id = chunk.id"


def encode_text(text: str) -> str:
    """Returns a text as it is kept: PostgreSQL has no text with a NUL."""
    return text.replace("\x01", "\x01.").replace("\0", "\x01:")


def decode_text(text: str) -> str:
    """Returns a text that `encode_text` encoded."""
    return text.replace("\x01:", "\0").replace("\x01.", "\x01")


def insert_chunks(
    change: TableWrite, document: int | None, chunks: Sequence[ReadyChunk], *, ready: bool = False
) -> range:
    """Adds chunks to a document, or to none. `ready`: search finds them. Returns their ids."""
    stored = sum(each.stored for each in chunks)
    change.take_room(IndexUsage(chunks=len(chunks), bytes=stored))
    ids = change.take_ids(len(chunks))
    change.rows.execute_many(
        "INSERT INTO {chunks} VALUES "
        "(:id, :document, :text, :title, :page, :file_name, :metadata, :stored, :now, :now)",
        [
            {"id": id_, "document": document, "now": change.now, **list_columns(each)}
            for id_, each in zip(ids, chunks, strict=True)
        ],
    )
    insert_searchable(change.rows, document, zip(ids, chunks, strict=True), ready=ready)
    _count(change, document, len(chunks), stored)
    return ids


def list_columns(chunk: ReadyChunk) -> dict[str, object]:
    """Returns the columns of a chunk's content."""
    return {
        "text": encode_text(chunk.text),
        "title": encode_text(chunk.title),
        "page": chunk.page,
        "file_name": chunk.file_name,
        "metadata": chunk.metadata,
        "stored": chunk.stored,
    }


def insert_searchable(
    rows: TableRows, document: int | None, chunks: Iterable[tuple[int, ReadyChunk]], *, ready: bool
) -> None:
    """Adds the words and vectors of chunks, by their ids."""
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


def _count(change: TableWrite, document: int | None, chunks: int, stored: int) -> None:
    """Adds to the numbers of a document and of its table."""
    change.count(chunks=chunks, stored=stored)
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
    found = find_chunks(change.rows, ids)
    return tuple(found[id_] for id_ in ids)


def list_chunks(
    rows: TableRows, document: int | None, offset: int, limit: int, *, with_vectors: bool
) -> ChunkPage:
    """Returns chunks of ready documents by their ids."""
    where = "" if document is None else f" AND chunk.document = {document}"
    found = _select(
        rows,
        f"{where} ORDER BY chunk.id LIMIT :limit OFFSET :offset",
        {"limit": limit, "offset": offset},
        with_vectors=with_vectors,
    )
    return ChunkPage(tuple(map(build_chunk, found)), _count_listed(rows, document))


def _count_listed(rows: TableRows, document: int | None) -> int:
    """Returns how many chunks of ready documents there are."""
    total = "SELECT coalesce(sum(chunks), 0) AS total FROM {documents} WHERE "
    if document is not None:
        return rows.count(total + "number = :number AND state = 'ready'", {"number": document})
    return rows.chunks - rows.count(total + "owner = :owner AND state != 'ready'", {"owner": rows.number})


def _select(
    rows: TableRows, rest: str, values: Mapping[str, object], *, with_vectors: bool = False
) -> Sequence[DatabaseRow]:
    """Reads chunks. `rest`: the statement after its first condition."""
    has_vectors = with_vectors and rows.settings.dimensions > 0
    return rows.execute(
        CHUNK + rest,
        values,
        vector="CAST(vector.value AS text)" if has_vectors else "''",
        join_vectors=JOIN_VECTORS.format_map(rows.names) if has_vectors else "",
    ).all()


def get_chunk(rows: TableRows, chunk: str) -> TextChunk:
    """Returns a chunk of a ready document with its vector. Raises NotFound."""
    found = _select(rows, " AND chunk.id = :id", {"id": parse_id(chunk)}, with_vectors=True)
    if not found:
        raise NotFound(f"there is no chunk {chunk[:40]!r} in this knowledge table", param="chunk")
    return build_chunk(found[0])


def find_chunks(rows: TableRows, ids: Sequence[int]) -> Mapping[int, TextChunk]:
    """Returns the chunks with these ids that are in ready documents."""
    found = _select(rows, " AND chunk.id = ANY(:ids)", {"ids": list(ids)})
    return {row.id: build_chunk(row) for row in found}


def build_chunk(row: DatabaseRow) -> TextChunk:
    """Makes a chunk of a row of CHUNK."""
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
    """Replaces a chunk's content. Raises NotFound, and KnowledgeLimitReached for more bytes than before."""
    rows, id_ = change.rows, int(get_chunk(change.rows, chunk).id)
    (ready,) = prepare_chunks(rows.settings, [content])
    kept = rows.execute("SELECT document, stored FROM {chunks} WHERE id = :id", {"id": id_}).one()
    if ready.stored > kept.stored:
        change.take_room(IndexUsage(bytes=ready.stored - kept.stored))
    _drop_searchable(rows, f"id = {id_}")
    rows.execute(
        "UPDATE {chunks} SET text = :text, title = :title, page = :page, file_name = :file_name, "
        "metadata = :metadata, stored = :stored, updated_at = :now WHERE id = :id",
        {"id": id_, "now": change.now, **list_columns(ready)},
    )
    insert_searchable(rows, kept.document, [(id_, ready)], ready=True)
    add_counts(rows, f"id = {id_}")
    _count(change, kept.document, 0, ready.stored - kept.stored)
    return get_chunk(rows, chunk)


def delete_chunks(change: TableWrite, chunks: Sequence[str]) -> int:
    """Removes chunks of ready documents. Returns their number."""
    ids = list(find_chunks(change.rows, [parse_id(chunk) for chunk in chunks]))
    if not ids:
        return 0
    where = write_choice("id", ids)
    _drop_searchable(change.rows, where)
    statement = "DELETE FROM {chunks} WHERE {where} RETURNING document, stored"
    removed = change.rows.execute(statement, where=where).all()
    for row in removed:
        _count(change, row.document, -1, -row.stored)
    return len(removed)


def delete_all_chunks(change: TableWrite, document: int) -> None:
    """Removes all chunks of a document."""
    where = f"document = {document}"
    _drop_searchable(change.rows, where)
    removed = change.rows.execute("DELETE FROM {chunks} WHERE {where} RETURNING stored", where=where).all()
    _count(change, document, -len(removed), -sum(row.stored for row in removed))


def _drop_searchable(rows: TableRows, where: str) -> None:
    """Removes the words and vectors of the chunks that a condition chooses."""
    subtract_counts(rows, where)
    rows.execute("DELETE FROM {words} WHERE {where}", where=where)
    if rows.settings.dimensions:
        rows.execute("DELETE FROM {vectors} WHERE {where}", where=where)
