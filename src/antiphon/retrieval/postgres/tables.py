"""Creates, lists, renames, copies and removes the knowledge tables of a project.

`TableRows` is one table in a transaction: it reads and changes its rows.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import sqlalchemy as sa
from sqlalchemy.engine import Connection, CursorResult

from antiphon.domain.values import Struct, replace
from antiphon.errors import Conflict
from antiphon.retrieval.base import (
    IndexLimits,
    IndexUsage,
    TableInfo,
    TableSettings,
    add_usage,
    build_missing_table_error,
    require_within_limits,
)
from antiphon.retrieval.postgres.database import Pgvector
from antiphon.retrieval.postgres.schema import (
    LOCK_NUMBER,
    SCHEMA,
    drop_relations,
    make_indexes,
    make_relations,
    name_relations,
)
from antiphon.retrieval.ranking import SEGMENTATION
from antiphon.retrieval.stored_form import decode_table, encode_table

DatabaseRow: TypeAlias = sa.Row[*tuple[object, ...]]

TABLE = f"""
SELECT number, name, settings, vector_type, segmentation, next_chunk, documents, chunks, stored, created_at,
updated_at
FROM {SCHEMA}.tables WHERE project = :project
"""  # noqa: S608 - a constant


@dataclasses.dataclass(slots=True)
class TableRows:
    """One table of a project, in a transaction. All statements about the table go through `execute`."""

    connection: Connection
    pgvector: Pgvector
    number: int
    settings: TableSettings
    vector_type: str
    segmentation: int
    chunks: int
    """Chunks of documents in any state, when the transaction began."""
    next_chunk: int
    names: dict[str, str] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.names = name_relations(self.number) | {
            "product": self.pgvector.product_operator,
            "vector_type": self.pgvector.qualify(self.vector_type),
        }

    def execute(
        self, statement: str, values: Mapping[str, object] | None = None, /, **names: str
    ) -> CursorResult[*tuple[object, ...]]:
        """Runs a statement. Names in braces become the names of the table's relations, or the values of
        `names`."""
        return self.connection.execute(sa.text(statement.format_map(self.names | names)), values or {})

    def read_total(self, statement: str, values: Mapping[str, object]) -> int:
        """Runs a statement that returns one row, and returns the row's column `total`."""
        return int(self.execute(statement, values).one().total)

    def execute_many(self, statement: str, rows: Sequence[Mapping[str, object]]) -> None:
        """Runs a statement once for each row."""
        if rows:
            self.connection.execute(sa.text(statement.format_map(self.names)), rows)


class TableWrite(Struct):
    """One write in a table. No other write in the table runs until the transaction ends."""

    rows: TableRows
    project: str
    limits: IndexLimits
    now: int
    """Unix milliseconds."""

    def reserve_usage(self, added: IndexUsage) -> None:
        """Checks that the project can also store what this write adds. Raises KnowledgeLimitReached."""
        require_within_project_limits(self.rows.connection, self.project, self.limits, added)

    def touch(self) -> None:
        """Sets the time of the table's last change to now."""
        self.rows.execute(
            "UPDATE {tables} SET updated_at = :now WHERE number = :number",
            {"now": self.now, "number": self.rows.number},
        )

    def change_counts(self, documents: int = 0, chunks: int = 0, stored: int = 0) -> None:
        """Adds to the table's numbers of documents, chunks and stored bytes. Negative numbers are
        subtracted."""
        self.rows.execute(
            "UPDATE {tables} SET documents = documents + :documents, chunks = chunks + :chunks, "
            "stored = stored + :stored WHERE number = :number",
            {"documents": documents, "chunks": chunks, "stored": stored, "number": self.rows.number},
        )

    def take_ids(self, count: int) -> range:
        """Returns new ids for `count` chunks. No id is used twice."""
        first_id = self.rows.next_chunk
        self.rows.next_chunk += count
        self.rows.execute(
            "UPDATE {tables} SET next_chunk = :next WHERE number = :number",
            {"next": self.rows.next_chunk, "number": self.rows.number},
        )
        return range(first_id, first_id + count)


def require_within_project_limits(
    connection: Connection, project: str, limits: IndexLimits, added: IndexUsage
) -> None:
    """Raises KnowledgeLimitReached if the project would store more than its limits allow. `added`: what the
    transaction adds.

    Locks the project: until the transaction ends, no other transaction adds to the project. A transaction
    that also locks a table must lock the table first, so that no two transactions wait for each other.
    """
    statement = sa.text("SELECT pg_advisory_xact_lock(:lock, hashtext(:project))")
    connection.execute(statement, {"lock": LOCK_NUMBER, "project": project})
    require_within_limits(limits, add_usage(read_usage(connection, project), added))


def read_usage(connection: Connection, project: str) -> IndexUsage:
    """Returns how much a project stores."""
    statement = sa.text(
        f"SELECT count(*), coalesce(sum(documents), 0), coalesce(sum(chunks), 0), coalesce(sum(stored), 0) "  # noqa: S608
        f"FROM {SCHEMA}.tables WHERE project = :project"
    )
    return IndexUsage(*map(int, connection.execute(statement, {"project": project}).one()))


def find_table(
    connection: Connection, pgvector: Pgvector, project: str, table: str, *, lock: bool = False
) -> TableRows:
    """Returns a table of a project. `lock`: whether other transactions must wait with their changes of the
    table until this transaction ends. Raises NotFound."""
    row = _read_row(connection, project, table, lock=lock)
    return TableRows(
        connection,
        pgvector,
        row.number,
        decode_table(row.settings),
        row.vector_type,
        row.segmentation,
        row.chunks,
        row.next_chunk,
    )


def get_info(connection: Connection, project: str, table: str) -> TableInfo:
    """Returns a table of a project. Raises NotFound."""
    return build_info(_read_row(connection, project, table))


def _read_row(connection: Connection, project: str, table: str, *, lock: bool = False) -> DatabaseRow:
    if "\0" in project or "\0" in table:  # no text in PostgreSQL contains this character
        raise build_missing_table_error(table)
    statement = f"{TABLE} AND name = :name" + (" FOR UPDATE" if lock else "")
    row = connection.execute(sa.text(statement), {"project": project, "name": table}).first()
    if row is None:
        raise build_missing_table_error(table)
    return row


def build_info(row: DatabaseRow) -> TableInfo:
    """Builds a table's description from a row of the statement TABLE."""
    settings = decode_table(row.settings)
    return TableInfo(settings, row.created_at, row.updated_at, row.documents, row.chunks, row.stored)


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
