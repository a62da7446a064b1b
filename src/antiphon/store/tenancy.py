"""Projects, users, memberships and keys in a database."""

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.engine import RowMapping as Row

from antiphon.domain.limits import Limit
from antiphon.domain.recording import Recording, Redaction
from antiphon.domain.tenancy import AuditEntry, Grant, Key, KeyKind, Membership, Project, Role, User
from antiphon.errors import Conflict, NotFound, StoreUnavailable
from antiphon.store import schema
from antiphon.store.base import By, Directory, KeptKey
from antiphon.store.changing import changing, noted, revision_of
from antiphon.store.database import Database
from antiphon.store.rules import limits_in, prices_in
from antiphon.telemetry.logs import record

PAGE = 500
"""Rows that are fetched at once: the driver lets no other thread compute meanwhile."""


class SqlTenancy:
    """`store.base.Tenancy` over a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def directory(self) -> Directory:
        try:
            return self._directory()
        except ValueError as problem:
            record("store_not_understood", logging.ERROR, problem=str(problem))
            raise StoreUnavailable(
                "the database holds rows that this version does not know; nothing was changed"
            ) from None

    def _directory(self) -> Directory:
        with self._database.reading() as connection:
            return Directory(
                tuple(_project(row) for row in _all(connection, schema.projects, "created", "id")),
                tuple(_user(row) for row in _all(connection, schema.users, "created", "id")),
                tuple(_membership(row) for row in _all(connection, schema.memberships, "project", "user")),
                tuple(_kept(row) for row in _all(connection, schema.keys, "created", "id")),
                tuple(limits_in(connection)),
                tuple(prices_in(connection)),
                revision_of(connection),
            )

    def revision(self) -> int:
        with self._database.reading() as connection:
            return revision_of(connection)

    def add_project(self, project: Project, by: By) -> int:
        with changing(self._database, by, f"a project is named {project.name!r} already") as change:
            change.insert(schema.projects, _project_row(project))
            change.note("project.create", project.id, {"name": project.name})
        return change.revision

    def change_project(self, project: Project, by: By) -> int:
        with changing(self._database, by, f"a project is named {project.name!r} already") as change:
            changes = change.put(schema.projects, _project_row(project), "project")
            change.note("project.change", project.id, changes)
        return change.revision

    def add_user(self, user: User, by: By) -> int:
        with changing(self._database, by, "a user has that email address already") as change:
            change.insert(schema.users, asdict(user))
            change.note("user.create", user.id, {"name": user.name, "email": user.email})
        return change.revision

    def change_user(self, user: User, by: By) -> int:
        with changing(self._database, by, "a user has that email address already") as change:
            changes = change.put(schema.users, asdict(user), "user")
            change.note("user.change", user.id, changes)
        return change.revision

    def put_membership(self, membership: Membership, by: By) -> int:
        project, user = membership.project, membership.user
        with changing(self._database, by, f"{user} cannot become a member of {project}") as change:
            change.require(schema.projects, project, "project")
            change.require(schema.users, user, "user")
            there = _is(schema.memberships, project, user)
            values = asdict(membership)
            changed = change.connection.execute(
                schema.memberships.update().where(there).values(role=membership.role)
            )
            if not changed.rowcount:
                change.insert(schema.memberships, values)
            detail = {"user": user, "role": membership.role}
            change.note("membership.put", project, detail)
        return change.revision

    def remove_membership(self, project: str, user: str, by: By) -> int:
        with changing(self._database, by, f"{user} cannot leave {project}") as change:
            gone = change.connection.execute(
                schema.memberships.delete().where(_is(schema.memberships, project, user))
            )
            if not gone.rowcount:
                raise NotFound(f"{user} is no member of {project}")
            change.note("membership.remove", project, {"user": user})
        return change.revision

    def add_key(self, kept: KeptKey, by: By) -> int:
        with changing(self._database, by, "the key belongs to a project or user that is not there") as change:
            change.insert(schema.keys, _new(kept))
            change.note("key.create", kept.key.id, noted(_row(kept.key)))
        return change.revision

    def change_key(self, key: Key, by: By) -> int:
        with changing(self._database, by, "the key cannot be changed so") as change:
            changes = change.put(schema.keys, _row(key), "key")
            change.note("key.change", key.id, changes)
        return change.revision

    def rotate_key(self, old: Key, new: KeptKey, limits: Sequence[Limit], by: By) -> int:
        with changing(self._database, by, "the key cannot be changed so") as change:
            changes = change.put(schema.keys, _row(old), "key")
            change.insert(schema.keys, _new(new))
            for limit in limits:
                change.insert(schema.limits, asdict(limit))
            change.note("key.rotate", old.id, {**changes, "successor": new.key.id})
        return change.revision

    def audit(self, limit: int, before: int | None = None, target: str | None = None) -> Sequence[AuditEntry]:
        found = sa.select(schema.audit).order_by(schema.audit.c.id.desc()).limit(limit)
        if before is not None:
            found = found.where(schema.audit.c.id < before)
        if target is not None:
            found = found.where(schema.audit.c.target == target)
        with self._database.reading() as connection:
            return [AuditEntry(**row) for row in connection.execute(found).mappings()]

    def mark(self, name: str) -> str | None:
        found = sa.select(schema.marks.c.value).where(schema.marks.c.name == name)
        with self._database.reading() as connection:
            return connection.execute(found).scalar()

    def set_mark(self, name: str, value: str) -> None:
        try:
            with self._database.writing() as connection:
                connection.execute(schema.marks.insert(), {"name": name, "value": value})
        except sa.exc.IntegrityError:
            raise Conflict(f"{name} is set already") from None

    def close(self) -> None:
        self._database.close()


def _all(connection: Connection, table: sa.Table, *order: str) -> Iterator[Row]:
    found = sa.select(table).order_by(*(table.c[name] for name in order))
    return iter(connection.execute(found.execution_options(yield_per=PAGE)).mappings())


def _is(table: sa.Table, project: str, user: str) -> sa.ColumnElement[bool]:
    return sa.and_(table.c.project == project, table.c.user == user)


def _new(kept: KeptKey) -> dict[str, object]:
    return {**_row(kept.key), "digest": kept.digest}


def _project(row: Row) -> Project:
    said = row["logging"] and json.loads(row["logging"])
    recording = Recording(said["days"], tuple(map(Redaction, said["redact"]))) if said else None
    return Project(row["id"], row["name"], row["created"], row["archived"], row["note"], recording)


def _project_row(project: Project) -> dict[str, object]:
    values = asdict(project)
    kept = values.pop("recording")
    return values | {"logging": kept and json.dumps(kept)}


def _user(row: Row) -> User:
    return User(**row)


def _membership(row: Row) -> Membership:
    return Membership(row["project"], row["user"], Role(row["role"]), row["created"])


def _row(key: Key) -> dict[str, object]:
    """A key's columns but for the digest."""
    values = asdict(key)
    grant = values.pop("grant")
    return values | {name: None if each is None else json.dumps(each) for name, each in grant.items()}


def _kept(row: Row) -> KeptKey:
    values = dict(row)
    digest, kind = bytes(values.pop("digest")), KeyKind(values.pop("kind"))
    grant = Grant(_patterns(values.pop("models")), _patterns(values.pop("endpoints")))
    return KeptKey(Key(kind=kind, grant=grant, **values), digest)


def _patterns(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(json.loads(text))
