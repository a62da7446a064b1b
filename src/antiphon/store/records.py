"""Requests and answers that projects have kept, in a database."""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from antiphon.domain.recording import Record
from antiphon.store import schema
from antiphon.store.database import Database
from antiphon.store.entries import ABSENT

TABLE = schema.requests_logged


class SqlRecords:
    """`store.base.Records` over a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, records: Sequence[Record]) -> None:
        rows = [
            {
                "id": each.id,
                "project": each.project,
                "at": each.at,
                "expires": each.expires,
                "request": each.request.translate(ABSENT),
                "answer": each.answer.translate(ABSENT),
            }
            for each in sorted(records, key=lambda each: each.id)
        ]
        if rows:
            with self._database.writing() as connection:
                postgres = connection.dialect.name == "postgresql"
                insert = postgresql.insert(TABLE) if postgres else sqlite.insert(TABLE)
                connection.execute(insert.on_conflict_do_nothing(), rows)

    def page(self, project: str, most: int, before: tuple[int, str] | None = None) -> Sequence[Record]:
        row = TABLE.c
        found = sa.select(TABLE).where(row.project == project)
        if before is not None:
            found = found.where(sa.tuple_(row.at, row.id) < sa.tuple_(*before))
        found = found.order_by(row.at.desc(), row.id.desc()).limit(most)
        with self._database.reading() as connection:
            return [Record(**each) for each in connection.execute(found).mappings()]

    def one(self, id_: str) -> Record | None:
        with self._database.reading() as connection:
            found = connection.execute(sa.select(TABLE).where(TABLE.c.id == id_)).mappings().first()
        return None if found is None else Record(**found)

    def expire(self, now: int) -> int:
        with self._database.writing() as connection:
            return connection.execute(TABLE.delete().where(TABLE.c.expires <= now)).rowcount

    def forget(self, project: str) -> int:
        with self._database.writing() as connection:
            return connection.execute(TABLE.delete().where(TABLE.c.project == project)).rowcount
