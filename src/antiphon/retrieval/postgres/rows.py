"""Reads and changes the rows of one knowledge table in a transaction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import sqlalchemy as sa
from sqlalchemy.engine import Connection, CursorResult

from antiphon.retrieval.base import IndexLimits, IndexUsage, TableInfo, TableSettings
from antiphon.retrieval.checks import add_usage, build_missing_table_error, require_room
from antiphon.retrieval.postgres.pgvector import Pgvector
from antiphon.retrieval.postgres.schema import LOCK, SCHEMA, name_relations
from antiphon.retrieval.table_settings import decode_table

DatabaseRow: TypeAlias = sa.Row[*tuple[object, ...]]

TABLE = f"""
SELECT number, name, settings, vector_type, segmentation, next_chunk, documents, chunks, stored, created_at,
updated_at
FROM {SCHEMA}.tables WHERE project = :project
"""  # noqa: S608 - a constant


@dataclass(slots=True)
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
    names: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.names = name_relations(self.number) | {
            "product": self.pgvector.product,
            "vector_type": self.pgvector.qualify(self.vector_type),
        }

    def execute(
        self, statement: str, values: Mapping[str, object] | None = None, /, **names: str
    ) -> CursorResult[*tuple[object, ...]]:
        """Runs a statement. Names in braces become the names of the table's relations, or the values of
        `names`."""
        return self.connection.execute(sa.text(statement.format_map(self.names | names)), values or {})

    def count(self, statement: str, values: Mapping[str, object]) -> int:
        """Returns the `total` of a statement with one row."""
        return int(self.execute(statement, values).one().total)

    def execute_many(self, statement: str, rows: Sequence[Mapping[str, object]]) -> None:
        """Runs a statement once for each row."""
        if rows:
            self.connection.execute(sa.text(statement.format_map(self.names)), rows)


@dataclass(slots=True)
class TableWrite:
    """One write in a table. No other write in the table runs until the transaction ends."""

    rows: TableRows
    project: str
    limits: IndexLimits
    now: int
    """Unix milliseconds."""

    def take_room(self, more: IndexUsage) -> None:
        """Requires room in the project for the additions of this write. Raises KnowledgeLimitReached."""
        require_project_room(self.rows.connection, self.project, self.limits, more)

    def touch(self) -> None:
        """Sets the time of the table's last change to now."""
        self.rows.execute(
            "UPDATE {tables} SET updated_at = :now WHERE number = :number",
            {"now": self.now, "number": self.rows.number},
        )

    def count(self, documents: int = 0, chunks: int = 0, stored: int = 0) -> None:
        """Adds to the table's counts of documents, chunks and stored bytes."""
        self.rows.execute(
            "UPDATE {tables} SET documents = documents + :documents, chunks = chunks + :chunks, "
            "stored = stored + :stored WHERE number = :number",
            {"documents": documents, "chunks": chunks, "stored": stored, "number": self.rows.number},
        )

    def take_ids(self, count: int) -> range:
        """Returns new ids for `count` chunks. No id is used twice."""
        first_chunk = self.rows.next_chunk
        self.rows.next_chunk += count
        self.rows.execute(
            "UPDATE {tables} SET next_chunk = :next WHERE number = :number",
            {"next": self.rows.next_chunk, "number": self.rows.number},
        )
        return range(first_chunk, first_chunk + count)


def require_project_room(connection: Connection, project: str, limits: IndexLimits, more: IndexUsage) -> None:
    """Requires room in the project. Raises KnowledgeLimitReached.

    It locks the project: until the transaction ends, no other transaction adds to the project. A transaction
    that also locks a table must lock the table first.
    """
    statement = sa.text("SELECT pg_advisory_xact_lock(:lock, hashtext(:project))")
    connection.execute(statement, {"lock": LOCK, "project": project})
    require_room(limits, add_usage(read_usage(connection, project), more))


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
    """Finds a table of a project. `lock`: whether to forbid changes by other transactions until this one
    ends. Raises NotFound."""
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
    """Builds a table from a row of TABLE."""
    settings = decode_table(row.settings)
    return TableInfo(settings, row.created_at, row.updated_at, row.documents, row.chunks, row.stored)
