"""Projects, users, memberships and keys in a database."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.engine import RowMapping as Row

from antiphon.domain.tenancy import AuditEntry, Grant, Key, KeyKind, Membership, Project, Role, User
from antiphon.errors import Conflict, NotFound
from antiphon.store import schema
from antiphon.store.base import By, Directory, KeptKey
from antiphon.store.database import Database


class SqlTenancy:
    """`store.base.Tenancy` over a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def directory(self) -> Directory:
        with self._database.reading() as connection:
            return Directory(
                tuple(_project(row) for row in _all(connection, schema.projects, "created", "id")),
                tuple(_user(row) for row in _all(connection, schema.users, "created", "id")),
                tuple(_membership(row) for row in _all(connection, schema.memberships, "project", "user")),
                tuple(_kept(row) for row in _all(connection, schema.keys, "created", "id")),
            )

    def add_project(self, project: Project, by: By) -> None:
        with self._writing(f"a project is named {project.name!r} already") as connection:
            connection.execute(schema.projects.insert(), asdict(project))
            _note(connection, by, "project.create", project.id, {"name": project.name})

    def change_project(self, project: Project, by: By) -> None:
        with self._writing(f"a project is named {project.name!r} already") as connection:
            changes = _replaced(connection, schema.projects, asdict(project), "project")
            _note(connection, by, "project.change", project.id, changes)

    def add_user(self, user: User, by: By) -> None:
        with self._writing("a user has that email address already") as connection:
            connection.execute(schema.users.insert(), asdict(user))
            _note(connection, by, "user.create", user.id, {"name": user.name, "email": user.email})

    def change_user(self, user: User, by: By) -> None:
        with self._writing("a user has that email address already") as connection:
            changes = _replaced(connection, schema.users, asdict(user), "user")
            _note(connection, by, "user.change", user.id, changes)

    def put_membership(self, membership: Membership, by: By) -> None:
        project, user = membership.project, membership.user
        with self._writing(f"{user} cannot become a member of {project}") as connection:
            _require(connection, schema.projects, project, "project")
            _require(connection, schema.users, user, "user")
            there = _is(schema.memberships, project, user)
            values = asdict(membership)
            changed = connection.execute(
                schema.memberships.update().where(there).values(role=membership.role)
            )
            if not changed.rowcount:
                connection.execute(schema.memberships.insert(), values)
            detail = {"user": user, "role": membership.role}
            _note(connection, by, "membership.put", project, detail)

    def remove_membership(self, project: str, user: str, by: By) -> None:
        with self._writing(f"{user} cannot leave {project}") as connection:
            gone = connection.execute(
                schema.memberships.delete().where(_is(schema.memberships, project, user))
            )
            if not gone.rowcount:
                raise NotFound(f"{user} is no member of {project}")
            _note(connection, by, "membership.remove", project, {"user": user})

    def add_key(self, kept: KeptKey, by: By) -> None:
        with self._writing("the key belongs to a project or user that is not there") as connection:
            _insert_key(connection, kept)
            _note(connection, by, "key.create", kept.key.id, _told(kept.key))

    def change_key(self, key: Key, by: By) -> None:
        with self._writing("the key cannot be changed so") as connection:
            changes = _replaced(connection, schema.keys, _row(key), "key")
            _note(connection, by, "key.change", key.id, changes)

    def rotate_key(self, old: Key, new: KeptKey, by: By) -> None:
        with self._writing("the key cannot be changed so") as connection:
            changes = _replaced(connection, schema.keys, _row(old), "key")
            _insert_key(connection, new)
            _note(connection, by, "key.rotate", old.id, {**changes, "successor": new.key.id})

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
        with self._writing(f"{name} is set already") as connection:
            connection.execute(schema.marks.insert(), {"name": name, "value": value})

    def close(self) -> None:
        self._database.close()

    @contextmanager
    def _writing(self, taken: str) -> Iterator[Connection]:
        """A transaction; `taken`: what it means that a row of the kind is there, or one it needs is not."""
        try:
            with self._database.writing() as connection:
                yield connection
        except sa.exc.IntegrityError:
            raise Conflict(taken) from None


def _all(connection: Connection, table: sa.Table, *order: str) -> Iterator[Row]:
    return iter(connection.execute(sa.select(table).order_by(*(table.c[name] for name in order))).mappings())


def _replaced(
    connection: Connection, table: sa.Table, values: Mapping[str, object], noun: str
) -> dict[str, object]:
    """Puts values into the row of their id; returns those that are others than before."""
    before = _require(connection, table, str(values["id"]), noun)
    connection.execute(table.update().where(table.c.id == values["id"]).values(**values))
    return {name: value for name, value in values.items() if before[name] != value}


def _require(connection: Connection, table: sa.Table, id_: str, noun: str) -> Row:
    row = connection.execute(sa.select(table).where(table.c.id == id_)).mappings().first()
    if row is None:
        raise NotFound(f"there is no {noun} {id_}")
    return row


def _is(table: sa.Table, project: str, user: str) -> sa.ColumnElement[bool]:
    return sa.and_(table.c.project == project, table.c.user == user)


def _insert_key(connection: Connection, kept: KeptKey) -> None:
    connection.execute(schema.keys.insert(), {**_row(kept.key), "digest": kept.digest})


def _note(connection: Connection, by: By, action: str, target: str, detail: Mapping[str, object]) -> None:
    row = {"at": by.at, "actor": by.actor, "action": action, "target": target}
    connection.execute(schema.audit.insert(), {**row, "detail": json.dumps(detail, ensure_ascii=False)})


def _told(key: Key) -> dict[str, object]:
    """What the audit says of a new key."""
    return {name: value for name, value in _row(key).items() if value not in (None, "") and name != "id"}


def _project(row: Row) -> Project:
    return Project(**row)


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
