"""Recorded requests with their answers, and summaries of conversations, in a database. What removes them also
removes kept responses, which `store.responses` adds."""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import Connection

from antiphon.domain.memory import KeptSummary
from antiphon.domain.tenancy import RecordedRequest
from antiphon.errors import StoreUnavailable
from antiphon.store import schema
from antiphon.store.base import ChangeAuthor
from antiphon.store.database import Database
from antiphon.store.directory import change_directory
from antiphon.store.ledger import UNSUPPORTED

RECORDS = schema.requests_logged

SUMMARIES = schema.summaries

RESPONSES, TOTALS = schema.responses, schema.response_totals

ERASURE_MARK = "erased "
"""The prefix of the name of a mark, before the project's id. The value of the mark is the time of the last
erasure in Unix milliseconds. Records that started before this time are not added, even if a process still has
them in memory."""


class SqlRecords:
    """`store.base.RecordStore` over a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, records: Sequence[RecordedRequest]) -> None:
        if not records:
            return
        with self._database.writing() as connection:
            erasures = read_erasures(connection, {record.project for record in records})
            rows = [
                _build_row(record)
                for record in sorted(records, key=attrgetter("id"))
                if record.at > erasures.get(record.project, -1)
            ]
            if rows:
                connection.execute(build_insert_or_ignore(RECORDS, connection.dialect.name), rows)

    def load_page(
        self, project: str, max_records: int, before: tuple[int, str] | None = None
    ) -> Sequence[RecordedRequest]:
        row = RECORDS.c
        query = sa.select(RECORDS).where(row.project == project)
        if before is not None:
            query = query.where(sa.tuple_(row.at, row.id) < sa.tuple_(*before))
        query = query.order_by(row.at.desc(), row.id.desc()).limit(max_records)
        with self._database.reading() as connection:
            return [RecordedRequest(**values) for values in connection.execute(query).mappings()]

    def find_record(self, id_: str) -> RecordedRequest | None:
        with self._database.reading() as connection:
            row = connection.execute(sa.select(RECORDS).where(RECORDS.c.id == id_)).mappings().first()
        return None if row is None else RecordedRequest(**row)

    def expire(self, now: int) -> int:
        with self._database.writing() as connection:
            summaries = connection.execute(SUMMARIES.delete().where(SUMMARIES.c.expires <= now)).rowcount
            removed = connection.execute(RECORDS.delete().where(RECORDS.c.expires <= now)).rowcount
            # Whoever changes responses locks the totals first, so that nobody waits in a circle.
            connection.execute(sa.select(TOTALS.c.project).order_by(TOTALS.c.project).with_for_update())
            responses = connection.execute(RESPONSES.delete().where(RESPONSES.c.expires <= now)).rowcount
            if responses:
                size = sa.select(sa.func.coalesce(sa.func.sum(RESPONSES.c.size), 0))
                size = size.where(RESPONSES.c.project == TOTALS.c.project)
                connection.execute(TOTALS.update().values(bytes=size.scalar_subquery()))
        if summaries or removed or responses or self._database.has_removed_texts:
            self._database.has_removed_texts = not self._database.truncate_log()
        return removed

    def note_reading(self, project: str, detail: Mapping[str, object], author: ChangeAuthor) -> None:
        row = {"at": author.at, "actor": author.actor, "action": "project.read_requests", "target": project}
        with self._database.writing() as connection:
            entry = {"detail": json.dumps(detail), "revision": None, "client": author.client}
            connection.execute(schema.audit.insert(), row | entry)

    def erase(self, project: str, until: int, author: ChangeAuthor) -> tuple[int, int]:
        with change_directory(self._database, author, "the requests cannot be removed") as change:
            project_row = sa.select(schema.projects.c.id).where(schema.projects.c.id == project)
            # Waits until other transactions have added their records.
            change.connection.execute(project_row.with_for_update())
            change.get_row(schema.projects, project, "project")
            removed = change.connection.execute(RECORDS.delete().where(RECORDS.c.project == project)).rowcount
            change.connection.execute(SUMMARIES.delete().where(SUMMARIES.c.project == project))
            change.connection.execute(
                sa.select(TOTALS.c.bytes).where(TOTALS.c.project == project).with_for_update()
            )
            responses = change.connection.execute(RESPONSES.delete().where(RESPONSES.c.project == project))
            change.connection.execute(TOTALS.delete().where(TOTALS.c.project == project))
            last_erasure = read_erasures(change.connection, {project}).get(project, until)
            _set_mark(change.connection, ERASURE_MARK + project, str(max(until, last_erasure)))
            detail = {"removed": removed, "responses": responses.rowcount}
            change.write_audit_entry("project.erase_requests", project, detail)
        self._database.has_removed_texts = True  # if this fails, the next `expire` tries again
        with suppress(StoreUnavailable):  # the requests are removed
            self._database.has_removed_texts = not self._database.truncate_log()
        return removed, change.revision


def read_erasures(connection: Connection, projects: Iterable[str]) -> dict[str, int]:
    """Returns the time of each project's last erasure in Unix milliseconds. Until the transaction ends,
    nobody can erase the records of these projects."""
    names = sorted(projects)
    rows = sa.select(schema.projects.c.id).where(schema.projects.c.id.in_(names)).order_by("id")
    connection.execute(rows.with_for_update(read=True))  # SQLite has only one writer
    mark = schema.marks.c
    query = sa.select(mark.name, mark.value).where(mark.name.in_([ERASURE_MARK + name for name in names]))
    return {name.removeprefix(ERASURE_MARK): int(value) for name, value in connection.execute(query)}


def _set_mark(connection: Connection, name: str, value: str) -> None:
    """Sets a mark, or replaces its value."""
    update = schema.marks.update().where(schema.marks.c.name == name).values(value=value)
    if not connection.execute(update).rowcount:
        connection.execute(schema.marks.insert(), {"name": name, "value": value})


def _build_row(record: RecordedRequest) -> dict[str, object]:
    """Builds the table row of a recorded request. Replaces characters that the database refuses."""
    return {
        "id": record.id,
        "project": record.project,
        "at": record.at,
        "expires": record.expires,
        "request": record.request.translate(UNSUPPORTED),
        "answer": record.answer.translate(UNSUPPORTED),
    }


def build_insert_or_ignore(table: sa.Table, dialect: str) -> sa.Insert:
    """Builds an insert that skips rows whose primary key exists. PostgreSQL's dialect takes a tenth of a
    second to import, so it is imported only if it is used."""
    if dialect == "postgresql":
        from sqlalchemy.dialects import postgresql

        return postgresql.insert(table).on_conflict_do_nothing()
    return sqlite.insert(table).on_conflict_do_nothing()


MAX_DIGESTS = 1_000
"""The most digests of one statement."""


class SqlSummaries:
    """`store.base.SummaryStore` over a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def find(self, project: str, digests: Sequence[str], now: int) -> Mapping[str, str]:
        column = SUMMARIES.c
        with self._database.reading() as connection:
            texts: dict[str, str] = {}
            for begin in range(0, len(digests), MAX_DIGESTS):
                batch = digests[begin : begin + MAX_DIGESTS]
                query = sa.select(column.digest, column.text).where(
                    column.project == project, column.digest.in_(batch), column.expires > now
                )
                texts |= {row.digest: row.text for row in connection.execute(query)}
        return texts

    def add(self, summary: KeptSummary, max_summaries: int) -> None:
        row = SUMMARIES.c
        with self._database.writing() as connection:
            if summary.at <= read_erasures(connection, {summary.project}).get(summary.project, -1):
                return
            values = {
                "project": summary.project,
                "digest": summary.digest,
                "at": summary.at,
                "expires": summary.expires,
                "text": summary.text.translate(UNSUPPORTED),
            }
            # A summary with the same digest that expires earlier is replaced.
            has_same_digest = (row.project == summary.project, row.digest == summary.digest)
            connection.execute(SUMMARIES.delete().where(*has_same_digest, row.expires < summary.expires))
            connection.execute(build_insert_or_ignore(SUMMARIES, connection.dialect.name), values)
            # Several summaries of one request are equally old, so the new one is excluded from the removal.
            is_other_summary = (row.project == summary.project, row.digest != summary.digest)
            latest = sa.select(row.digest).where(*is_other_summary)
            latest = latest.order_by(row.at.desc(), row.digest).limit(max_summaries - 1)
            connection.execute(
                SUMMARIES.delete().where(*is_other_summary, row.digest.not_in(latest.scalar_subquery()))
            )
