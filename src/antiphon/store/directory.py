"""Reads the directory from the database: all of it, or only the changes since an earlier read. The audit
lists the changes."""

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
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
from antiphon.domain.values import replace
from antiphon.store import schema
from antiphon.store.base import Directory, StoredKey
from antiphon.store.changes import read_revision

ROWS_PER_FETCH = 500
"""The number of rows per fetch. The driver blocks other threads during a fetch."""
MAX_CHANGES = 200
"""The most changes that are read one by one. After more changes the whole directory is read: a script can
make many changes, and a server that was disconnected can miss many."""
T = TypeVar("T")


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
    """Returns the ids of the changed objects by their noun. For a membership, the id is the project's.
    `changes`: action, target and detail of each audit entry."""
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
