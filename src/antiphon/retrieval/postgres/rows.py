"""The rows of one knowledge table in a transaction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import sqlalchemy as sa
from sqlalchemy.engine import Connection, CursorResult

from antiphon.retrieval.base import IndexLimits, IndexUsage, TableInfo, TableSettings
from antiphon.retrieval.checks import add_usage, make_missing, require_room
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
    """One table, found by its project and name together. All its statements go through `execute`."""

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
        """Runs a statement, in which names in braces are those of the table's relations, or the given
        ones."""
        return self.connection.execute(sa.text(statement.format_map(self.names | names)), values or {})

    def count(self, statement: str, values: Mapping[str, object]) -> int:
        """Runs a statement whose only row has a `total`."""
        return int(self.execute(statement, values).one().total)

    def execute_many(self, statement: str, rows: Sequence[Mapping[str, object]]) -> None:
        """Runs a statement once for each row."""
        if rows:
            self.connection.execute(sa.text(statement.format_map(self.names)), rows)


@dataclass(slots=True)
class TableWrite:
    """One write of a table. No other one of the table runs until the transaction ends."""

    rows: TableRows
    project: str
    limits: IndexLimits
    now: int
    """Unix milliseconds."""

    def take_room(self, more: IndexUsage) -> None:
        """Requires room in the project for what this write adds. Raises KnowledgeLimitReached."""
        require_project_room(self.rows.connection, self.project, self.limits, more)

    def touch(self) -> None:
        """Keeps when the table changed last."""
        self.rows.execute(
            "UPDATE {tables} SET updated_at = :now WHERE number = :number",
            {"now": self.now, "number": self.rows.number},
        )

    def count(self, documents: int = 0, chunks: int = 0, stored: int = 0) -> None:
        """Adds to the table's numbers."""
        self.rows.execute(
            "UPDATE {tables} SET documents = documents + :documents, chunks = chunks + :chunks, "
            "stored = stored + :stored WHERE number = :number",
            {"documents": documents, "chunks": chunks, "stored": stored, "number": self.rows.number},
        )

    def take_ids(self, count: int) -> range:
        """Returns ids of chunks that were never used."""
        first = self.rows.next_chunk
        self.rows.next_chunk += count
        self.rows.execute(
            "UPDATE {tables} SET next_chunk = :next WHERE number = :number",
            {"next": self.rows.next_chunk, "number": self.rows.number},
        )
        return range(first, first + count)


def require_project_room(connection: Connection, project: str, limits: IndexLimits, more: IndexUsage) -> None:
    """Requires room in the project. Until the transaction ends, no other one adds to the project, so its
    limits hold. A transaction that also locks a table does that first. Raises KnowledgeLimitReached."""
    statement = sa.text("SELECT pg_advisory_xact_lock(:lock, hashtext(:project))")
    connection.execute(statement, {"lock": LOCK, "project": project})
    require_room(limits, add_usage(read_usage(connection, project), more))


def read_usage(connection: Connection, project: str) -> IndexUsage:
    """Returns what a project keeps."""
    statement = sa.text(
        f"SELECT count(*), coalesce(sum(documents), 0), coalesce(sum(chunks), 0), coalesce(sum(stored), 0) "  # noqa: S608
        f"FROM {SCHEMA}.tables WHERE project = :project"
    )
    return IndexUsage(*map(int, connection.execute(statement, {"project": project}).one()))


def find_table(
    connection: Connection, pgvector: Pgvector, project: str, table: str, *, lock: bool = False
) -> TableRows:
    """Finds a table of a project. `lock`: no other transaction changes it until this one ends. Raises
    NotFound."""
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
    if "\0" in project or "\0" in table:  # PostgreSQL has no text with it
        raise make_missing(table)
    statement = f"{TABLE} AND name = :name" + (" FOR UPDATE" if lock else "")
    row = connection.execute(sa.text(statement), {"project": project, "name": table}).first()
    if row is None:
        raise make_missing(table)
    return row


def build_info(row: DatabaseRow) -> TableInfo:
    """Makes a table of a row of TABLE."""
    settings = decode_table(row.settings)
    return TableInfo(settings, row.created_at, row.updated_at, row.documents, row.chunks, row.stored)
