"""One change of the directory: a transaction that counts up its revision, leaves an entry in the audit, and
is told to whoever listens."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.engine import RowMapping as Row

from antiphon.errors import Conflict, NotFound
from antiphon.store import schema
from antiphon.store.base import By, DirectoryMoved
from antiphon.store.database import Database

CHANNEL = "antiphon"
"""On which PostgreSQL tells each new revision, when its transaction is kept."""


@dataclass(frozen=True, slots=True)
class Change:
    """A transaction that has the directory for itself until it ends."""

    connection: Connection
    by: By
    revision: int
    """Of the directory when it is kept."""

    def insert(self, table: sa.Table, values: Mapping[str, object]) -> None:
        """Adds a row."""
        self.connection.execute(table.insert(), dict(values))

    def put(self, table: sa.Table, values: Mapping[str, object], noun: str) -> dict[str, object]:
        """Puts values into the row of their id; returns those that are others than before.
        Raises NotFound."""
        before = self.require(table, str(values["id"]), noun)
        self.connection.execute(table.update().where(table.c.id == values["id"]).values(**values))
        return {name: value for name, value in values.items() if before[name] != value}

    def require(self, table: sa.Table, id_: str, noun: str) -> Row:
        """The row of an id. Raises NotFound."""
        row = self.connection.execute(sa.select(table).where(table.c.id == id_)).mappings().first()
        if row is None:
            raise NotFound(f"there is no {noun} {id_[:100]}")
        return row

    def note(self, action: str, target: str, detail: Mapping[str, object]) -> None:
        """Its one entry in the audit, `NOUN.VERB`; others read of the noun what has the target's id."""
        row = {"at": self.by.at, "actor": self.by.actor, "action": action, "target": target}
        said = {"detail": json.dumps(detail, ensure_ascii=False), "revision": self.revision}
        self.insert(schema.audit, row | said)


@contextmanager
def changing(database: Database, by: By, taken: str) -> Iterator[Change]:
    """A change, kept when the block ends. `taken`: what it means that a row of the kind is there, or one it
    needs is not. Raises DirectoryMoved, Conflict, StoreUnavailable."""
    try:
        with database.writing() as connection:
            change = Change(connection, by, _moved(connection, by.known))
            yield change
            if connection.dialect.name == "postgresql":
                connection.execute(sa.select(sa.func.pg_notify(CHANNEL, str(change.revision))))
    except sa.exc.IntegrityError:
        raise Conflict(taken) from None


def revision_of(connection: Connection) -> int:
    """The number of the last change."""
    return int(connection.execute(sa.select(schema.revision.c.number)).scalar_one())


def _moved(connection: Connection, known: int | None) -> int:
    """Counts the revision up, which no other transaction does until this one ends; returns the new one."""
    counted = schema.revision.update().values(number=schema.revision.c.number + 1)
    if known is not None:
        counted = counted.where(schema.revision.c.number == known)
    if not connection.execute(counted).rowcount:
        raise DirectoryMoved
    return revision_of(connection)


def noted(values: Mapping[str, object]) -> dict[str, object]:
    """What the audit says of a new row: what is set, but for its id."""
    return {name: value for name, value in values.items() if value not in (None, "") and name != "id"}
