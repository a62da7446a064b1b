"""Projects, users, memberships, keys, limits, prices, budget warnings and marks in a database.

A mark is a property of the whole database, such as the digest of the pepper.
"""

import json
import logging
from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from antiphon.domain.limits import BudgetWarning, Limit
from antiphon.domain.prices import Price
from antiphon.domain.tenancy import (
    ALL_CHANGES,
    AuditEntry,
    AuditSelection,
    Key,
    KeyKind,
    Membership,
    Project,
    User,
)
from antiphon.domain.values import asdict, fields
from antiphon.errors import Conflict, NotFound, StoreUnavailable
from antiphon.store import schema
from antiphon.store.base import AUDIT_ABOUT, AUDIT_BEFORE, ChangeAuthor, Directory, StoredKey
from antiphon.store.database import Database
from antiphon.store.directory import (
    change_directory,
    describe_row,
    read_changes,
    read_directory,
    read_revision,
)
from antiphon.telemetry.logs import record


class SqlTenancy:
    """`store.base.TenancyStore` over a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def load_directory(self, known_directory: Directory | None = None) -> Directory:
        try:
            with self._database.reading() as connection:
                return (
                    read_directory(connection)
                    if known_directory is None
                    else read_changes(connection, known_directory)
                )
        except ValueError as problem:
            record("store_not_understood", logging.ERROR, problem=str(problem))
            raise StoreUnavailable(
                "a later version of Antiphon wrote rows that this version cannot read; nothing was changed"
            ) from None

    def load_revision(self) -> int:
        with self._database.reading() as connection:
            return read_revision(connection)

    def add_project(self, project: Project, author: ChangeAuthor) -> int:
        with change_directory(
            self._database, author, f"a project is named {project.name!r} already"
        ) as change:
            change.insert(schema.projects, _build_project_row(project))
            change.write_audit_entry("project.create", project.id, {"name": project.name})
        return change.revision

    def change_project(self, project: Project, author: ChangeAuthor) -> int:
        with change_directory(
            self._database, author, f"a project is named {project.name!r} already"
        ) as change:
            changes = change.update(schema.projects, _build_project_row(project), "project")
            change.write_audit_entry("project.change", project.id, changes)
        return change.revision

    def add_user(self, user: User, author: ChangeAuthor) -> int:
        with change_directory(self._database, author, "a user has that email address already") as change:
            change.insert(schema.users, asdict(user))
            change.write_audit_entry("user.create", user.id, {"name": user.name, "email": user.email})
        return change.revision

    def change_user(self, user: User, author: ChangeAuthor) -> int:
        with change_directory(self._database, author, "a user has that email address already") as change:
            changes = change.update(schema.users, asdict(user), "user")
            change.write_audit_entry("user.change", user.id, changes)
        return change.revision

    def put_membership(self, membership: Membership, author: ChangeAuthor) -> int:
        project, user = membership.project, membership.user
        with change_directory(
            self._database, author, f"{user} cannot become a member of {project}"
        ) as change:
            change.get_row(schema.projects, project, "project")
            change.get_row(schema.users, user, "user")
            is_membership = _build_membership_condition(schema.memberships, project, user)
            values = asdict(membership)
            role = change.connection.execute(
                sa.select(schema.memberships.c.role).where(is_membership)
            ).scalar()
            update = change.connection.execute(
                schema.memberships.update().where(is_membership).values(role=membership.role)
            )
            if not update.rowcount:
                change.insert(schema.memberships, values)
            detail: dict[str, object] = {"user": user, "role": membership.role}
            if role is not None:
                detail |= {AUDIT_BEFORE: {"user": user, "role": role}}
            change.write_audit_entry("membership.put", project, detail)
        return change.revision

    def remove_membership(self, project: str, user: str, author: ChangeAuthor) -> int:
        with change_directory(self._database, author, f"{user} cannot leave {project}") as change:
            result = change.connection.execute(
                schema.memberships.delete().where(
                    _build_membership_condition(schema.memberships, project, user)
                )
            )
            if not result.rowcount:
                raise NotFound(f"{user} is not a member of {project}")
            change.write_audit_entry("membership.remove", project, {"user": user})
        return change.revision

    def add_key(self, stored_key: StoredKey, author: ChangeAuthor, limits: Sequence[Limit] = ()) -> int:
        with change_directory(
            self._database, author, "the key belongs to a project or user that does not exist"
        ) as change:
            change.insert(schema.keys, _build_new_key_row(stored_key))
            for limit in limits:
                change.insert(schema.limits, asdict(limit))
            limit_details = (
                {"limits": [{"id": limit.id, **describe_row(asdict(limit))} for limit in limits]}
                if limits
                else {}
            )
            change.write_audit_entry(
                "key.create", stored_key.key.id, describe_row(_build_key_row(stored_key.key)) | limit_details
            )
        return change.revision

    def change_key(self, key: Key, author: ChangeAuthor) -> int:
        with change_directory(
            self._database, author, "the project or user of the key does not exist"
        ) as change:
            changes = change.update(schema.keys, _build_key_row(key), "key")
            change.write_audit_entry("key.change", key.id, changes)
        return change.revision

    def rotate_key(self, old: Key, new: StoredKey, limits: Sequence[Limit], author: ChangeAuthor) -> int:
        with change_directory(
            self._database, author, "the project or user of the key does not exist"
        ) as change:
            changes = change.update(schema.keys, _build_key_row(old), "key")
            change.insert(schema.keys, _build_new_key_row(new))
            for limit in limits:
                change.update(schema.limits, asdict(limit), "limit")
            details = {"successor": new.key.id, "limits": [limit.id for limit in limits]}
            change.write_audit_entry("key.rotate", old.id, changes | details)
        return change.revision

    def load_families(self) -> dict[str, str]:
        key = schema.keys.c
        query = sa.select(key.id, key.family).where(key.family.is_not(None))
        with self._database.reading() as connection:
            return {str(id_): str(family) for id_, family in connection.execute(query)}

    def load_service_keys(self) -> frozenset[str]:
        key = schema.keys.c
        with self._database.reading() as connection:
            query = sa.select(key.id).where(key.kind == KeyKind.SERVICE)
            return frozenset(connection.execute(query).scalars())

    def note_erasure(self, project: str, removed: Mapping[str, int], author: ChangeAuthor) -> int:
        with change_directory(
            self._database, author, "the removal of knowledge tables cannot be written to the audit"
        ) as change:
            change.get_row(schema.projects, project, "project")
            change.write_audit_entry("project.erase_knowledge", project, removed)
        return change.revision

    def load_audit_entries(
        self, limit: int, before: int | None = None, selection: AuditSelection = ALL_CHANGES
    ) -> Sequence[AuditEntry]:
        if any("\0" in text for text in (selection.target, selection.actor, selection.project) if text):
            return []  # no id contains a NUL, and PostgreSQL refuses to search for it
        row = schema.audit.c
        columns = (row[field.name] for field in fields(AuditEntry))
        query = sa.select(*columns).order_by(row.id.desc()).limit(limit)
        query = query.where(row.at >= selection.since, row.at < selection.until)
        if before is not None:
            query = query.where(row.id < before)
        if selection.target is not None:
            query = query.where(row.target == selection.target)
        if selection.actor is not None:
            query = query.where(row.actor == selection.actor)
        if selection.project is not None:
            query = query.where(_is_about_project(selection.project))
        with self._database.reading() as connection:
            return [AuditEntry(**row) for row in connection.execute(query).mappings()]

    def load_mark(self, name: str) -> str | None:
        query = sa.select(schema.marks.c.value).where(schema.marks.c.name == name)
        with self._database.reading() as connection:
            return connection.execute(query).scalar()

    def create_mark(self, name: str, value: str) -> None:
        try:
            with self._database.writing() as connection:
                connection.execute(schema.marks.insert(), {"name": name, "value": value})
        except sa.exc.IntegrityError:
            raise Conflict(f"{name} is set already") from None

    def close(self) -> None:
        self._database.close()


def _build_membership_condition(table: sa.Table, project: str, user: str) -> sa.ColumnElement[bool]:
    """Returns the SQL condition that selects one membership."""
    return sa.and_(table.c.project == project, table.c.user == user)


def _build_new_key_row(stored_key: StoredKey) -> dict[str, object]:
    """Builds the row of a new key, with its digest."""
    return {**_build_key_row(stored_key.key), "digest": stored_key.digest}


def _build_project_row(project: Project) -> dict[str, object]:
    values = asdict(project)
    policy = values.pop("recording")
    return values | {"logging": policy and json.dumps(policy)}


def _build_key_row(key: Key) -> dict[str, object]:
    """Builds the row of a key, without its digest."""
    values = asdict(key)
    grant = values.pop("grant")
    return values | {name: None if names is None else json.dumps(names) for name, names in grant.items()}


TIME_LIMIT_S = 30.0
"""The time limit of a search of the whole ledger in seconds."""


class SqlRules:
    """`store.base.RuleStore` over a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add_limit(self, limit: Limit, author: ChangeAuthor) -> int:
        with change_directory(self._database, author, "there is already a limit with this id") as change:
            change.insert(schema.limits, asdict(limit))
            change.write_audit_entry("limit.create", limit.id, describe_row(asdict(limit)))
        return change.revision

    def change_limit(self, limit: Limit, author: ChangeAuthor) -> int:
        with change_directory(self._database, author, "the database refuses the changed limit") as change:
            changes = change.update(schema.limits, asdict(limit), "limit")
            about = {name: getattr(limit, name) for name in ("subject", "target", "measure", "window")}
            change.write_audit_entry("limit.change", limit.id, changes | {AUDIT_ABOUT: about})
        return change.revision

    def remove_limit(self, id_: str, author: ChangeAuthor) -> int:
        with change_directory(self._database, author, "the limit cannot be removed") as change:
            removed = describe_row(dict(change.get_row(schema.limits, id_, "limit")))
            change.connection.execute(schema.limits.delete().where(schema.limits.c.id == id_))
            change.write_audit_entry("limit.remove", id_, removed)
        return change.revision

    def add_price(self, price: Price, author: ChangeAuthor) -> int:
        with change_directory(self._database, author, "there is already a price with this id") as change:
            change.insert(schema.prices, asdict(price))
            change.write_audit_entry("price.create", price.id, describe_row(asdict(price)))
        return change.revision

    def change_price(self, price: Price, author: ChangeAuthor) -> int:
        with change_directory(self._database, author, "the database refuses the changed price") as change:
            changes = change.update(schema.prices, asdict(price), "price")
            about = {"models": price.models, "currency": price.currency}
            change.write_audit_entry("price.change", price.id, changes | {AUDIT_ABOUT: about})
        return change.revision

    def find_other_currency(self, currency: str) -> str | None:
        column = schema.ledger.c.currency
        query = sa.select(column).where(column.not_in(("", currency))).limit(1)
        with self._database.reading(TIME_LIMIT_S) as connection:
            return connection.execute(query).scalar()


WARNING_LIFETIME_S = 100 * 86_400
"""Seconds until a row is deleted. This is longer than any window."""


class SqlWarnings:
    """`store.base.WarningStore` over a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def claim(self, warning: BudgetWarning) -> bool:
        values = {"limit": warning.limit.id, "period": warning.begin, "share": str(warning.share)}
        try:
            with self._database.writing() as connection:
                connection.execute(schema.budget_warnings.insert(), values | {"at": warning.at})
                connection.execute(
                    schema.budget_warnings.delete().where(
                        schema.budget_warnings.c.at < warning.at - WARNING_LIFETIME_S
                    )
                )
        except sa.exc.IntegrityError:
            return False
        return True


def _is_about_project(project: str) -> sa.ColumnElement[bool]:
    """Whether an audit entry is about a project, its keys, or the limits of both. A limit may be removed, so
    its target is found in the entry's detail."""
    row, key = schema.audit.c, schema.keys.c
    keys = sa.select(key.id).where(key.project == project)
    limit_targets = sa.exists().where(key.project == project, row.detail.contains(key.id))
    is_limit = row.action.startswith("limit.")
    return sa.or_(
        row.target == project,
        row.target.in_(keys),
        sa.and_(is_limit, sa.or_(row.detail.contains(f'"{project}"', autoescape=True), limit_targets)),
    )
