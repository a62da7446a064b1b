"""Reads the directory: either all of it, or only the changes since a known one. The audit lists these
changes."""

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
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
from antiphon.store import schema
from antiphon.store.base import Directory, KeptKey
from antiphon.store.changes import read_revision

PAGE = 500
"""Rows of one fetch. The driver blocks other threads during a fetch."""
MOST = 200
"""The number of changes above which the whole directory is read. Scripts make so many changes, and a server
that was away finds so many."""
T = TypeVar("T")


def read_directory(connection: Connection) -> Directory:
    """Reads the whole directory. Raises ValueError for rows of a later version."""
    return Directory(
        _load_all(connection, schema.projects, _to_project),
        _load_all(connection, schema.users, _to_user),
        _load_all(connection, schema.memberships, _to_membership, "project"),
        _load_all(connection, schema.keys, _to_kept_key),
        _load_all(connection, schema.limits, _to_limit),
        _load_all(connection, schema.prices, _to_price),
        read_revision(connection),
    )


def read_changes(connection: Connection, directory: Directory) -> Directory:
    """Reads only what changed since `directory`, and takes the rest from `directory`."""
    now, entry = read_revision(connection), schema.audit.c
    later = sa.select(entry.action, entry.target, entry.detail).where(entry.revision > directory.revision)
    changes = [
        (str(each[0]), str(each[1]), str(each[2])) for each in connection.execute(later.limit(MOST + 1))
    ]
    if len(changes) > MOST or len(changes) != now - directory.revision:
        return read_directory(connection)
    ids = _collect_changed_ids(changes)

    def put(
        things: tuple[T, ...], table: sa.Table, noun: str, of: Callable[[Row], T], id_: Callable[[T], str]
    ) -> tuple[T, ...]:
        return _merge(things, ids[noun], _load_all(connection, table, of, only=ids[noun]), id_)

    current = _load_all(connection, schema.memberships, _to_membership, "project", ids["membership"])
    return replace(
        directory,
        projects=put(directory.projects, schema.projects, "project", _to_project, lambda each: each.id),
        users=put(directory.users, schema.users, "user", _to_user, lambda each: each.id),
        memberships=(
            *(each for each in directory.memberships if each.project not in ids["membership"]),
            *current,
        ),
        keys=put(directory.keys, schema.keys, "key", _to_kept_key, lambda each: each.key.id),
        limits=put(directory.limits, schema.limits, "limit", _to_limit, lambda each: each.id),
        prices=put(directory.prices, schema.prices, "price", _to_price, lambda each: each.id),
        revision=now,
    )


def _collect_changed_ids(changes: Sequence[tuple[str, str, str]]) -> dict[str, set[str]]:
    """Returns the ids of changed things by noun. For a membership it returns the project's id."""
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
    before: Iterable[T], ids: Collection[str], changed: Iterable[T], id_: Callable[[T], str]
) -> tuple[T, ...]:
    """Replaces the things with these ids by the found ones. A thing whose id was not found is left out."""
    if not ids:
        return tuple(before)
    new = {id_(each): each for each in changed}
    merged = [new.pop(id_(each), None) if id_(each) in ids else each for each in before]
    return (*(each for each in merged if each is not None), *new.values())


def _load_all(
    connection: Connection,
    table: sa.Table,
    of: Callable[[Row], T],
    column: str = "id",
    only: Collection[str] | None = None,
) -> tuple[T, ...]:
    """Loads the rows of a table, the oldest first, each converted by `of`. `only`: the values of `column` to
    load."""
    if only is not None and not only:
        return ()
    query = sa.select(table).order_by(table.c.created, table.c[column])
    if only is not None:
        query = query.where(table.c[column].in_(only))
    with connection.execute(query.execution_options(yield_per=PAGE)) as rows:  # also where `of` raises
        return tuple(map(of, rows.mappings()))


def _to_project(row: Row) -> Project:
    policy = row["logging"] and json.loads(row["logging"])
    recording = RecordingPolicy(policy["days"], tuple(map(Redaction, policy["redact"]))) if policy else None
    return Project(row["id"], row["name"], row["created"], row["archived"], row["note"], recording)


def _to_user(row: Row) -> User:
    return User(**row)


def _to_membership(row: Row) -> Membership:
    return Membership(row["project"], row["user"], ProjectRole(row["role"]), row["created"])


def _to_kept_key(row: Row) -> KeptKey:
    values = dict(row)
    digest, kind = bytes(values.pop("digest")), KeyKind(values.pop("kind"))
    grant = _to_grant(values.pop("models"), values.pop("endpoints"))
    return KeptKey(Key(kind=kind, grant=grant, **values), digest)


@lru_cache(1024)
def _to_grant(models: str | None, endpoints: str | None) -> Grant:
    """Returns the grant of a key. Keys with equal permissions share one object, since tens of thousands of
    objects would slow the garbage collector."""
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
