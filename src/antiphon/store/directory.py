"""Reads the directory from the database, and writes its changes. The directory is all projects, users,
members, keys, limits and prices. The audit lists the changes.

It reads all of the directory, or only the changes since an earlier read. `change_directory` opens a
transaction that increments the revision and writes an audit entry. `SqlFeed` reports changes by any process
of any server.

SQLite has a counter that every change of the file increments. The feed reads it five times a second, and
immediately when a process of the same server reports a change. PostgreSQL notifies its listeners of a change.
The feed also reads the revision every second, because a notification can be lost.
"""

import json
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import lru_cache
from operator import attrgetter
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.engine import RowMapping as Row

from antiphon.domain.limits import Limit, Measure, Subject, Window
from antiphon.domain.prices import Price
from antiphon.domain.tenancy import (
    Grant,
    Key,
    KeyKind,
    Membership,
    Project,
    ProjectRole,
    RecordingPolicy,
    Redaction,
    User,
)
from antiphon.domain.values import Struct, replace
from antiphon.errors import Conflict, NotFound, StoreUnavailable
from antiphon.store import schema
from antiphon.store.base import AUDIT_BEFORE, ChangeAuthor, Directory, StaleDirectory, StoredKey
from antiphon.store.database import Database
from antiphon.telemetry.logs import record

CHANNEL = "antiphon"
"""The channel on which PostgreSQL reports each committed revision."""


COUNTER_INTERVAL_S = 0.2
"""Seconds between two reads of SQLite's counter. A feed that is closed ends within this time."""
REVISION_INTERVAL_S = 1.0
"""Seconds between two reads of the revision while PostgreSQL sends no notification."""
MIN_PAUSE_S, MAX_PAUSE_S = 0.1, 2.0
"""The shortest and the longest pause before the feed connects again to a database that failed, in seconds."""
CLOSE_TIMEOUT_S = 2.0
"""Seconds that `SqlFeed.close` waits for the thread. A thread that needs longer ends with the process."""

ROWS_PER_FETCH = 500
"""The number of rows per fetch. The driver blocks other threads during a fetch."""
MAX_CHANGES = 200
"""The most changes that are read one by one. After more changes the whole directory is read: a script can
make many changes, and a server that was disconnected can miss many."""
T = TypeVar("T")


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
        self.insert(schema.audit, row | entry | {"client": self.author.client})


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
        self.is_lost = False

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
                if self.is_lost:
                    record("feed_resumed", logging.INFO, database=self._database.display_url)
                self.is_lost = False
                self._pause = MIN_PAUSE_S

    def _report_loss(self, problem: StoreUnavailable) -> None:
        """Logs a failure of the database, unless the failure before was already logged. Then pauses, each
        time longer than before."""
        if not self.is_lost:
            record("feed_lost", logging.WARNING, database=self._database.display_url, problem=problem.message)
        self.is_lost = True
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


def read_directory(connection: Connection) -> Directory:
    """Reads the whole directory. Raises ValueError for a row with an unknown value, which a later version
    wrote."""
    return Directory(
        _load_all(connection, schema.projects, _to_project),
        _load_all(connection, schema.users, _to_user),
        _load_all(connection, schema.memberships, _to_membership, "project"),
        _load_all(connection, schema.keys, _to_stored_key),
        _load_all(connection, schema.limits, _to_limit),
        _load_all(connection, schema.prices, _to_price),
        read_revision(connection),
    )


def read_changes(connection: Connection, directory: Directory) -> Directory:
    """Returns the current directory. Reads only what changed since `directory`, and takes the rest from
    `directory`."""
    revision, entry = read_revision(connection), schema.audit.c
    query = sa.select(entry.action, entry.target, entry.detail).where(entry.revision > directory.revision)
    changes = [
        (str(action), str(target), str(detail))
        for action, target, detail in connection.execute(query.limit(MAX_CHANGES + 1))
    ]
    if len(changes) > MAX_CHANGES or len(changes) != revision - directory.revision:
        return read_directory(connection)
    ids = _collect_changed_ids(changes)

    def update(
        objects: tuple[T, ...],
        table: sa.Table,
        noun: str,
        convert: Callable[[Row], T],
        get_id: Callable[[T], str],
    ) -> tuple[T, ...]:
        return _merge(objects, ids[noun], _load_all(connection, table, convert, selected=ids[noun]), get_id)

    memberships = _load_all(connection, schema.memberships, _to_membership, "project", ids["membership"])
    return replace(
        directory,
        projects=update(directory.projects, schema.projects, "project", _to_project, attrgetter("id")),
        users=update(directory.users, schema.users, "user", _to_user, attrgetter("id")),
        memberships=(
            *(member for member in directory.memberships if member.project not in ids["membership"]),
            *memberships,
        ),
        keys=update(directory.keys, schema.keys, "key", _to_stored_key, attrgetter("key.id")),
        limits=update(directory.limits, schema.limits, "limit", _to_limit, attrgetter("id")),
        prices=update(directory.prices, schema.prices, "price", _to_price, attrgetter("id")),
        revision=revision,
    )


def _collect_changed_ids(changes: Sequence[tuple[str, str, str]]) -> dict[str, set[str]]:
    """Returns the ids of the changed objects, keyed by noun, such as `key`. For a membership, the id is the
    project's. `changes`: action, target and detail of each audit entry."""
    ids: dict[str, set[str]] = defaultdict(set)
    for action, target, detail in changes:
        ids[action.partition(".")[0]].add(target)
        if action == "key.create":
            ids["limit"].update(limit["id"] for limit in json.loads(detail).get("limits", ()))
        elif action == "key.rotate":
            values = json.loads(detail)
            ids["key"].add(values["successor"])
            ids["limit"].update(values["limits"])
    return ids


def _merge(
    objects: Iterable[T], ids: Collection[str], changed: Iterable[T], get_id: Callable[[T], str]
) -> tuple[T, ...]:
    """Replaces the objects with these ids by their current versions in `changed`, and removes them if they
    are not in `changed`. Appends new objects."""
    if not ids:
        return tuple(objects)
    current = {get_id(item): item for item in changed}
    merged = [current.pop(get_id(item), None) if get_id(item) in ids else item for item in objects]
    return (*(item for item in merged if item is not None), *current.values())


def _load_all(
    connection: Connection,
    table: sa.Table,
    convert: Callable[[Row], T],
    column: str = "id",
    selected: Collection[str] | None = None,
) -> tuple[T, ...]:
    """Loads the rows of a table, the oldest first, and converts each. `selected`: loads only rows with these
    values of `column`."""
    if selected is not None and not selected:
        return ()
    query = sa.select(table).order_by(table.c.created, table.c[column])
    if selected is not None:
        query = query.where(table.c[column].in_(selected))
    # The context closes the cursor, also if `convert` raises.
    with connection.execute(query.execution_options(yield_per=ROWS_PER_FETCH)) as rows:
        return tuple(map(convert, rows.mappings()))


def _to_project(row: Row) -> Project:
    policy = row["logging"] and json.loads(row["logging"])
    recording = RecordingPolicy(policy["days"], tuple(map(Redaction, policy["redact"]))) if policy else None
    return Project(row["id"], row["name"], row["created"], row["archived"], row["note"], recording)


def _to_user(row: Row) -> User:
    return User(**row)


def _to_membership(row: Row) -> Membership:
    return Membership(row["project"], row["user"], ProjectRole(row["role"]), row["created"])


def _to_stored_key(row: Row) -> StoredKey:
    values = dict(row)
    digest, kind = bytes(values.pop("digest")), KeyKind(values.pop("kind"))
    grant = _to_grant(values.pop("models"), values.pop("endpoints"))
    return StoredKey(Key(kind=kind, grant=grant, **values), digest)


@lru_cache(1024)
def _to_grant(models: str | None, endpoints: str | None) -> Grant:
    """Returns the grant of a key. Keys with equal permissions share one object, because tens of thousands of
    objects would slow the garbage collector down."""
    return Grant(_to_patterns(models), _to_patterns(endpoints))


def _to_patterns(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(json.loads(text))


def _to_limit(row: Row) -> Limit:
    values = dict(row)
    subject, measure = Subject(values.pop("subject")), Measure(values.pop("measure"))
    window = None if (name := values.pop("window")) is None else Window(name)
    return Limit(subject=subject, measure=measure, window=window, **values)


def _to_price(row: Row) -> Price:
    return Price(**row)
