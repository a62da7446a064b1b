"""Creates, lists, renames, copies and removes the knowledge tables of a project."""

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from antiphon.domain.values import replace
from antiphon.errors import Conflict
from antiphon.retrieval.base import IndexLimits, IndexUsage, TableInfo, TableSettings
from antiphon.retrieval.postgres.pgvector import Pgvector
from antiphon.retrieval.postgres.rows import (
    TABLE,
    TableRows,
    build_info,
    find_table,
    get_info,
    require_within_project_limits,
)
from antiphon.retrieval.postgres.schema import (
    SCHEMA,
    drop_relations,
    make_indexes,
    make_relations,
    name_relations,
)
from antiphon.retrieval.table_settings import encode_table
from antiphon.retrieval.words import SEGMENTATION

COPY_ROWS = """
INSERT INTO {documents} (
    owner, id, name, digest, media_type, bytes, state, progress, warnings, chunks, stored, created_at,
    updated_at
) SELECT {copy}, id, name, digest, media_type, bytes, state, progress, warnings, chunks, stored, created_at,
    updated_at
FROM {documents} WHERE owner = {number} AND state = 'ready' ORDER BY number;
INSERT INTO {new_chunks}
SELECT chunk.id, copied.number, text, title, page, file_name, metadata, chunk.stored, chunk.created_at,
    chunk.updated_at
FROM {chunks} AS chunk LEFT JOIN {documents} AS document ON document.number = chunk.document
LEFT JOIN {documents} AS copied ON copied.owner = {copy} AND copied.id = document.id
WHERE chunk.document IS NULL OR copied.number IS NOT NULL;
INSERT INTO {new_words} SELECT words.id, chunk.document, ready, length, words.words
FROM {words} AS words JOIN {new_chunks} AS chunk USING (id);
INSERT INTO {new_counts} SELECT * FROM {counts};
UPDATE {tables} SET next_chunk = {next_chunk},
documents = (SELECT count(*) FROM {documents} WHERE owner = {copy}),
chunks = (SELECT count(*) FROM {new_chunks}),
stored = (SELECT coalesce(sum(stored), 0) FROM {new_chunks}) WHERE number = {copy}
"""
COPY_VECTORS = """
INSERT INTO {new_vectors} SELECT vector.id, chunk.document, ready, value
FROM {vectors} AS vector JOIN {new_chunks} AS chunk USING (id)
"""


def list_tables(connection: Connection, project: str) -> tuple[TableInfo, ...]:
    """Returns all tables by name."""
    table_rows = connection.execute(sa.text(f'{TABLE} ORDER BY name COLLATE "C"'), {"project": project})
    return tuple(map(build_info, table_rows))


def create_table(
    connection: Connection,
    pgvector: Pgvector,
    project: str,
    settings: TableSettings,
    limits: IndexLimits,
    now: int,
) -> TableInfo:
    """Creates an empty table. Raises Conflict and KnowledgeLimitReached."""
    vector_type = pgvector.newest_type
    number = _insert_table(connection, project, settings, vector_type, now)
    require_within_project_limits(connection, project, limits, IndexUsage())
    make_relations(connection, number, pgvector, vector_type, settings.dimensions)
    make_indexes(connection, number, pgvector, vector_type, settings.dimensions)
    return get_info(connection, project, settings.name)


def _insert_table(
    connection: Connection, project: str, settings: TableSettings, vector_type: str, now: int
) -> int:
    """Adds the row of a table, and returns the table's number. Raises Conflict if the name is taken."""
    statement = sa.text(
        f"INSERT INTO {SCHEMA}.tables "  # noqa: S608 - a constant
        "(project, name, settings, vector_type, segmentation, created_at, updated_at) "
        "VALUES (:project, :name, :settings, :vector_type, :segmentation, :now, :now) "
        "ON CONFLICT DO NOTHING RETURNING number"
    )
    values = {"project": project, "name": settings.name, "settings": encode_table(settings)}
    values |= {"vector_type": vector_type}
    number = connection.execute(statement, values | {"segmentation": SEGMENTATION, "now": now}).scalar()
    if number is None:
        raise build_conflict(settings.name)
    return int(number)


def build_conflict(name: str) -> Conflict:
    """Returns the error for a name that another table has."""
    return Conflict(f"there is a knowledge table {name[:80]!r} already: choose another name", param="name")


def rename_table(rows: TableRows, project: str, new_name: str, now: int) -> TableInfo:
    """Renames a table. `rows`: the table, which must be locked. Raises Conflict if the name is taken."""
    statement = "SELECT 1 FROM {tables} WHERE project = :project AND name = :name AND number != :number"
    values = {"project": project, "name": new_name, "number": rows.number}
    if rows.execute(statement, values).first():
        raise build_conflict(new_name)
    rows.execute(
        "UPDATE {tables} SET name = :name, settings = :settings, updated_at = :now WHERE number = :number",
        {
            "name": new_name,
            "settings": encode_table(replace(rows.settings, name=new_name)),
            "now": now,
            "number": rows.number,
        },
    )
    return get_info(rows.connection, project, new_name)


def duplicate_table(rows: TableRows, project: str, new_name: str, limits: IndexLimits, now: int) -> TableInfo:
    """Copies a table with its ready documents. `rows`: the table, which must be locked. Raises Conflict and
    KnowledgeLimitReached."""
    connection, vector_type = rows.connection, rows.vector_type
    settings = replace(rows.settings, name=new_name)
    original = get_info(connection, project, rows.settings.name)
    number = _insert_table(connection, project, settings, vector_type, now)
    added_usage = IndexUsage(0, original.documents, original.chunks, original.bytes)
    require_within_project_limits(connection, project, limits, added_usage)
    make_relations(connection, number, rows.pgvector, vector_type, settings.dimensions)
    names = {f"new_{name}": relation for name, relation in name_relations(number).items()}
    names |= {"copy": str(number), "number": str(rows.number), "next_chunk": str(rows.next_chunk)}
    for statement in COPY_ROWS.split(";\n"):
        rows.execute(statement, **names)
    if settings.dimensions:
        rows.execute(COPY_VECTORS, **names)
    make_indexes(connection, number, rows.pgvector, vector_type, settings.dimensions)
    return get_info(connection, project, new_name)


def delete_table(connection: Connection, pgvector: Pgvector, project: str, table: str) -> None:
    """Removes a table with its content. Raises NotFound."""
    rows = find_table(connection, pgvector, project, table, lock=True)
    rows.execute("DELETE FROM {tables} WHERE number = :number", {"number": rows.number})
    drop_relations(connection, rows.number)
