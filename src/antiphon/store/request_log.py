"""Requests and answers that projects keep, in a database."""

import json
from collections.abc import Iterable, Mapping, Sequence

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import Connection

from antiphon.domain.tenancy import RecordedRequest
from antiphon.store import schema
from antiphon.store.base import ChangeAuthor
from antiphon.store.changes import change_directory
from antiphon.store.database import Database
from antiphon.store.ledger import ABSENT

TABLE = schema.requests_logged
ERASED = "erased "
"""The prefix of a mark's name, before the project's id. The mark tells until when its requests were erased,
in Unix milliseconds. It outlives every process, so a record that waited in any of them comes too late."""


class SqlRecords:
    """`store.base.RecordStore` over a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, records: Sequence[RecordedRequest]) -> None:
        if not records:
            return
        with self._database.writing() as connection:
            erased = read_erasures(connection, {each.project for each in records})
            rows = [
                _build_row(each)
                for each in sorted(records, key=lambda each: each.id)
                if each.at > erased.get(each.project, -1)
            ]
            if rows:
                connection.execute(ignore_known(TABLE, connection.dialect.name), rows)

    def page(
        self, project: str, most: int, before: tuple[int, str] | None = None
    ) -> Sequence[RecordedRequest]:
        row = TABLE.c
        query = sa.select(TABLE).where(row.project == project)
        if before is not None:
            query = query.where(sa.tuple_(row.at, row.id) < sa.tuple_(*before))
        query = query.order_by(row.at.desc(), row.id.desc()).limit(most)
        with self._database.reading() as connection:
            return [RecordedRequest(**each) for each in connection.execute(query).mappings()]

    def find_record(self, id_: str) -> RecordedRequest | None:
        with self._database.reading() as connection:
            query = connection.execute(sa.select(TABLE).where(TABLE.c.id == id_)).mappings().first()
        return None if query is None else RecordedRequest(**query)

    def expire(self, now: int) -> int:
        with self._database.writing() as connection:
            connection.execute(schema.summaries.delete().where(schema.summaries.c.expires <= now))
            return connection.execute(TABLE.delete().where(TABLE.c.expires <= now)).rowcount

    def note_reading(self, project: str, what: Mapping[str, object], author: ChangeAuthor) -> None:
        row = {"at": author.at, "actor": author.actor, "action": "project.read_requests", "target": project}
        with self._database.writing() as connection:
            connection.execute(schema.audit.insert(), row | {"detail": json.dumps(what), "revision": None})

    def erase(self, project: str, until: int, author: ChangeAuthor) -> tuple[int, int]:
        """Deletes a project's recorded requests and its summaries. Returns the number of requests and the new
        revision."""
        with change_directory(self._database, author, "the requests cannot be removed") as change:
            there = sa.select(schema.projects.c.id).where(schema.projects.c.id == project)
            change.connection.execute(there.with_for_update())  # waits for those who add to it
            change.require(schema.projects, project, "project")
            gone = change.connection.execute(TABLE.delete().where(TABLE.c.project == project)).rowcount
            change.connection.execute(schema.summaries.delete().where(schema.summaries.c.project == project))
            before = read_erasures(change.connection, {project}).get(project, until)
            _set_mark(change.connection, ERASED + project, str(max(until, before)))
            change.note("project.erase_requests", project, {"removed": gone})
        return gone, change.revision


def read_erasures(connection: Connection, projects: Iterable[str]) -> dict[str, int]:
    """Returns for each project the time until which its requests were erased. Blocks further erasures until
    the transaction ends."""
    names = sorted(projects)
    rows = sa.select(schema.projects.c.id).where(schema.projects.c.id.in_(names)).order_by("id")
    connection.execute(rows.with_for_update(read=True))  # SQLite has one writer anyway
    mark = schema.marks.c
    query = sa.select(mark.name, mark.value).where(mark.name.in_([ERASED + name for name in names]))
    return {name.removeprefix(ERASED): int(value) for name, value in connection.execute(query)}


def _set_mark(connection: Connection, name: str, value: str) -> None:
    """Writes a mark, whether it exists or not."""
    marked = schema.marks.update().where(schema.marks.c.name == name).values(value=value)
    if not connection.execute(marked).rowcount:
        connection.execute(schema.marks.insert(), {"name": name, "value": value})


def _build_row(record: RecordedRequest) -> dict[str, object]:
    """Builds the table row of a recorded request. Replaces characters that the database refuses."""
    return {
        "id": record.id,
        "project": record.project,
        "at": record.at,
        "expires": record.expires,
        "request": record.request.translate(ABSENT),
        "answer": record.answer.translate(ABSENT),
    }


def ignore_known(table: sa.Table, dialect: str) -> sa.Insert:
    """Builds the insert that leaves rows with known ids out. PostgreSQL's dialect takes a tenth
    of a second to import, so it is imported where it is used."""
    if dialect == "postgresql":
        from sqlalchemy.dialects import postgresql

        return postgresql.insert(table).on_conflict_do_nothing()
    return sqlite.insert(table).on_conflict_do_nothing()
