"""Reads the directory: all of it, or of one that is known only what changed since, as the audit tells."""

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
from antiphon.domain.recording import Recording, Redaction
from antiphon.domain.tenancy import Grant, Key, KeyKind, Membership, Project, Role, User
from antiphon.store import schema
from antiphon.store.base import Directory, KeptKey
from antiphon.store.changing import revision_of

PAGE = 500
"""Rows that are fetched at once: the driver lets no other thread compute meanwhile."""
MOST = 200
"""Changes beyond which all is read: so many are made by a script, or while a server was away."""
T = TypeVar("T")


def read(connection: Connection) -> Directory:
    """All of it. Raises ValueError for rows of a later version."""
    return Directory(
        _all(connection, schema.projects, _project),
        _all(connection, schema.users, _user),
        _all(connection, schema.memberships, _membership, "project"),
        _all(connection, schema.keys, _kept),
        _all(connection, schema.limits, _limit),
        _all(connection, schema.prices, _price),
        revision_of(connection),
    )


def read_since(connection: Connection, known: Directory) -> Directory:
    """The same, in the time that the changes since take; what did not change is taken from `known`."""
    now, entry = revision_of(connection), schema.audit.c
    later = sa.select(entry.action, entry.target, entry.detail).where(entry.revision > known.revision)
    changes = [
        (str(each[0]), str(each[1]), str(each[2])) for each in connection.execute(later.limit(MOST + 1))
    ]
    if len(changes) > MOST or len(changes) != now - known.revision:
        return read(connection)
    ids = _touched(changes)

    def put(
        things: tuple[T, ...], table: sa.Table, noun: str, of: Callable[[Row], T], id_: Callable[[T], str]
    ) -> tuple[T, ...]:
        return _merged(things, ids[noun], _all(connection, table, of, only=ids[noun]), id_)

    joined = _all(connection, schema.memberships, _membership, "project", ids["membership"])
    return replace(
        known,
        projects=put(known.projects, schema.projects, "project", _project, lambda each: each.id),
        users=put(known.users, schema.users, "user", _user, lambda each: each.id),
        memberships=(*(each for each in known.memberships if each.project not in ids["membership"]), *joined),
        keys=put(known.keys, schema.keys, "key", _kept, lambda each: each.key.id),
        limits=put(known.limits, schema.limits, "limit", _limit, lambda each: each.id),
        prices=put(known.prices, schema.prices, "price", _price, lambda each: each.id),
        revision=now,
    )


def _touched(changes: Sequence[tuple[str, str, str]]) -> dict[str, set[str]]:
    """By noun the ids of what was changed; a membership's is its project's."""
    ids: dict[str, set[str]] = defaultdict(set)
    for action, target, detail in changes:
        ids[action.partition(".")[0]].add(target)
        if action == "key.create":
            ids["limit"].update(limit["id"] for limit in json.loads(detail).get("limits", ()))
        elif action == "key.rotate":
            said = json.loads(detail)
            ids["key"].add(said["successor"])
            ids["limit"].update(said["limits"])
    return ids


def _merged(
    known: Iterable[T], ids: Collection[str], found: Iterable[T], id_: Callable[[T], str]
) -> tuple[T, ...]:
    """What is known, with what was found in the place of the ids; those that were not found are gone."""
    if not ids:
        return tuple(known)
    new = {id_(each): each for each in found}
    kept = [new.pop(id_(each), None) if id_(each) in ids else each for each in known]
    return (*(each for each in kept if each is not None), *new.values())


def _all(
    connection: Connection,
    table: sa.Table,
    of: Callable[[Row], T],
    column: str = "id",
    only: Collection[str] | None = None,
) -> tuple[T, ...]:
    """The rows of a table as `of` makes things of them, the oldest first; `only` those of which a column is
    one of these."""
    if only is not None and not only:
        return ()
    found = sa.select(table).order_by(table.c.created, table.c[column])
    if only is not None:
        found = found.where(table.c[column].in_(only))
    with connection.execute(found.execution_options(yield_per=PAGE)) as rows:  # also where `of` raises
        return tuple(map(of, rows.mappings()))


def _project(row: Row) -> Project:
    said = row["logging"] and json.loads(row["logging"])
    recording = Recording(said["days"], tuple(map(Redaction, said["redact"]))) if said else None
    return Project(row["id"], row["name"], row["created"], row["archived"], row["note"], recording)


def _user(row: Row) -> User:
    return User(**row)


def _membership(row: Row) -> Membership:
    return Membership(row["project"], row["user"], Role(row["role"]), row["created"])


def _kept(row: Row) -> KeptKey:
    values = dict(row)
    digest, kind = bytes(values.pop("digest")), KeyKind(values.pop("kind"))
    grant = _grant(values.pop("models"), values.pop("endpoints"))
    return KeptKey(Key(kind=kind, grant=grant, **values), digest)


@lru_cache(1024)
def _grant(models: str | None, endpoints: str | None) -> Grant:
    """Keys that may the same share one: tens of thousands would hold up whoever collects garbage."""
    return Grant(_patterns(models), _patterns(endpoints))


def _patterns(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(json.loads(text))


def _limit(row: Row) -> Limit:
    values = dict(row)
    subject, measure = Subject(values.pop("subject")), Measure(values.pop("measure"))
    window = None if (said := values.pop("window")) is None else Window(said)
    return Limit(subject=subject, measure=measure, window=window, **values)


def _price(row: Row) -> Price:
    return Price(**row)
