"""Changes of the directory. `change_directory` opens a transaction that increments the revision and writes an
audit entry. `SqlFeed` reports changes by any process of any server.

SQLite has a counter that every change of the file increments. The feed reads it five times a second, and
immediately when a process of the same server reports a change. PostgreSQL notifies its listeners of a change.
The feed also reads the revision every second, because a notification can be lost.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.engine import RowMapping as Row

from antiphon.domain.values import Struct
from antiphon.errors import Conflict, NotFound, StoreUnavailable
from antiphon.store import schema
from antiphon.store.base import AUDIT_BEFORE, ChangeAuthor, StaleDirectory
from antiphon.store.database import Database
from antiphon.telemetry.logs import record

CHANNEL = "antiphon"
"""The channel on which PostgreSQL reports each committed revision."""


class Change(Struct, frozen=True):
    """A transaction that changes the directory. No other process can change the directory until the
    transaction ends."""

    connection: Connection
    author: ChangeAuthor
    revision: int
    """The directory's revision after the commit."""

    def insert(self, table: sa.Table, values: Mapping[str, object]) -> None:
        self.connection.execute(table.insert(), dict(values))

    def update(self, table: sa.Table, values: Mapping[str, object], noun: str) -> dict[str, object]:
        """Updates the row with the id in `values`. Returns the changed values for the audit entry, with the
        earlier values under AUDIT_BEFORE. `noun`: what the row is, for the error. Raises NotFound."""
        before = self.get_row(table, str(values["id"]), noun)
        self.connection.execute(table.update().where(table.c.id == values["id"]).values(**values))
        changes = {name: value for name, value in values.items() if before[name] != value}
        return {**changes, AUDIT_BEFORE: {name: before[name] for name in changes}} if changes else {}

    def get_row(self, table: sa.Table, id_: str, noun: str) -> Row:
        """Returns the row with the id. `noun`: what the row is, for the error. Raises NotFound."""
        row = self.connection.execute(sa.select(table).where(table.c.id == id_)).mappings().first()
        if row is None:
            raise NotFound(f"there is no {noun} {id_[:100]}")
        return row

    def write_audit_entry(self, action: str, target: str, detail: Mapping[str, object]) -> None:
        """Writes the audit entry of this change. `action`: `NOUN.VERB`. `read_changes` uses the noun and the
        target's id to load the changed object."""
        row = {"at": self.author.at, "actor": self.author.actor, "action": action, "target": target}
        entry = {"detail": json.dumps(detail, ensure_ascii=False), "revision": self.revision}
        self.insert(schema.audit, row | entry)


@contextmanager
def change_directory(database: Database, author: ChangeAuthor, conflict_message: str) -> Iterator[Change]:
    """Opens a change and commits it at the end of the block. `conflict_message`: the error message for a
    duplicate row or a missing reference. Raises StaleDirectory, Conflict and StoreUnavailable."""
    try:
        with database.writing() as connection:
            change = Change(connection, author, _increment_revision(connection, author.known_revision))
            yield change
            if connection.dialect.name == "postgresql":
                connection.execute(sa.select(sa.func.pg_notify(CHANNEL, str(change.revision))))
    except sa.exc.IntegrityError:
        raise Conflict(conflict_message) from None


def read_revision(connection: Connection) -> int:
    return int(connection.execute(sa.select(schema.revision.c.number)).scalar_one())


def _increment_revision(connection: Connection, expected: int | None) -> int:
    """Increments the revision of the directory, and returns the new one. The row is locked until the
    transaction ends. Raises StaleDirectory if the revision was not `expected`. None: any revision."""
    update = schema.revision.update().values(number=schema.revision.c.number + 1)
    if expected is not None:
        update = update.where(schema.revision.c.number == expected)
    if not connection.execute(update).rowcount:
        raise StaleDirectory
    return read_revision(connection)


def describe_row(values: Mapping[str, object]) -> dict[str, object]:
    """Returns the values of a row that is added or removed, for the audit entry. Leaves out the id and empty
    values."""
    return {name: value for name, value in values.items() if value not in (None, "") and name != "id"}


COUNTER_INTERVAL_S = 0.2
"""Seconds between two reads of SQLite's counter. A feed that is closed ends within this time."""
REVISION_INTERVAL_S = 1.0
"""Seconds between two reads of the revision while PostgreSQL sends no notification."""
MIN_PAUSE_S, MAX_PAUSE_S = 0.1, 2.0
"""The shortest and the longest pause before the feed connects again to a database that failed, in seconds."""
CLOSE_TIMEOUT_S = 2.0
"""Seconds that `SqlFeed.close` waits for the thread. A thread that needs longer ends with the process."""


class SqlFeed:
    """The `ChangeFeed` of a database: one thread with its own connection."""

    def __init__(self, database: Database, wait: Callable[[float], object] | None = None) -> None:
        """`wait` blocks for a number of seconds, or until another process reports a change. It is used only
        for SQLite. PostgreSQL sends notifications."""
        self._database = database
        self._is_closed = threading.Event()
        self._wait = wait or self._is_closed.wait
        self._thread: threading.Thread | None = None
        self._pause = MIN_PAUSE_S

    def start(self, on_change: Callable[[int], None]) -> None:
        self._thread = threading.Thread(
            target=self._run, args=(on_change,), name="antiphon-feed", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._is_closed.set()
        if self._thread is not None:
            self._thread.join(CLOSE_TIMEOUT_S)

    def _run(self, on_change: Callable[[int], None]) -> None:
        """Reports revisions until the feed is closed, and connects again after a loss."""
        while not self._is_closed.is_set():
            try:
                self._report_revisions(on_change)
            except StoreUnavailable as problem:
                self._report_loss(problem)

    def _report_revisions(self, on_change: Callable[[int], None]) -> None:
        """Calls `on_change` with each revision until the feed is closed. Raises StoreUnavailable."""
        with closing(self._iterate_revisions()) as revisions:
            for revision in revisions:
                on_change(revision)
                if self._pause > MIN_PAUSE_S:
                    record("feed_resumed", logging.INFO, database=self._database.display_url)
                self._pause = MIN_PAUSE_S

    def _report_loss(self, problem: StoreUnavailable) -> None:
        """Logs a failure of the database, unless the failure before was already logged. Then pauses, each
        time longer than before."""
        if self._pause == MIN_PAUSE_S:
            record("feed_lost", logging.WARNING, database=self._database.display_url, problem=problem.message)
        self._is_closed.wait(self._pause)
        self._pause = min(2 * self._pause, MAX_PAUSE_S)

    def _iterate_revisions(self) -> Generator[int]:
        """Yields the current revision, then each new revision."""
        with self._database.autocommit() as connection:
            is_postgresql = connection.dialect.name == "postgresql"
            signals = (
                _wait_for_notices(connection, self._is_closed)
                if is_postgresql
                else self._wait_for_changes(connection)
            )
            last_revision = None
            for _ in signals:
                revision = read_revision(connection)
                if revision != last_revision:
                    yield revision
                    last_revision = revision

    def _wait_for_changes(self, connection: Connection) -> Iterator[None]:
        """Yields once at the start, and each time that SQLite's counter has changed. Raises StoreUnavailable
        if the file is missing."""
        last_counter = None
        while not self._is_closed.is_set():
            self._database.require_file()
            counter = connection.exec_driver_sql("PRAGMA data_version").scalar()
            if counter != last_counter:
                last_counter = counter
                yield
            self._wait(COUNTER_INTERVAL_S)


def _wait_for_notices(connection: Connection, closed: threading.Event) -> Iterator[None]:
    """Yields once at the start, at each notification from PostgreSQL, and every second."""
    import psycopg  # not at the top: servers with SQLite do not need it

    connection.exec_driver_sql(f"LISTEN {CHANNEL}")
    driver = connection.connection.dbapi_connection
    if not isinstance(driver, psycopg.Connection):
        raise StoreUnavailable("PostgreSQL's driver returned a connection that cannot listen")
    next_read = 0.0
    while not closed.is_set():
        notices = (
            list(driver.notifies(timeout=COUNTER_INTERVAL_S, stop_after=1))
            if time.monotonic() < next_read
            else []
        )
        if notices or time.monotonic() >= next_read:
            yield
            next_read = time.monotonic() + REVISION_INTERVAL_S
