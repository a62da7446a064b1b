"""Reads and changes the rows of one knowledge table in a transaction."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import sqlalchemy as sa
from sqlalchemy.engine import Connection, CursorResult

from antiphon.domain.values import Struct
from antiphon.retrieval.base import IndexLimits, IndexUsage, TableInfo, TableSettings
from antiphon.retrieval.checks import add_usage, build_missing_table_error, require_within_limits
from antiphon.retrieval.postgres.pgvector import Pgvector
from antiphon.retrieval.postgres.schema import LOCK_NUMBER, SCHEMA, name_relations
from antiphon.retrieval.table_settings import decode_table

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
