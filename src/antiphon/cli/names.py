"""Finds objects of a running server by name, e-mail address, key prefix, note or id.

The admin API accepts only ids. Other texts are searched in the lists that the caller may see. A text that
matches several objects is an error.
"""

import difflib
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from antiphon.cli.output import FORBIDDEN, CallFailed, JsonObject, note
from antiphon.domain.limits import Subject
from antiphon.domain.tenancy import DEFAULT_PROJECT, fold_email
from antiphon.domain.values import Struct, field
from antiphon.errors import SettingsError

if TYPE_CHECKING:
    from antiphon.cli.admin_client import Admin

MOST_CANDIDATES = 10
"""The most matching objects that an error message lists."""

ID_SUFFIX = "[0-9a-z]{19}"
"""A pattern for the end of a generated id."""

SECRET = re.compile(r"(ak_[0-9a-z]{12})_[A-Za-z0-9_-]{43}")
"""A pattern for a secret key. Its prefix is public."""

OPERATOR = "operator"
"""How the audit names the operator's key of this machine, with its predecessors before rotations."""

AUTHORS = ("antiphon serve", "antiphon store admin-key", "single-sign-on")
"""The authors of changes in the audit log that have no key."""


class ObjectKind(Struct, frozen=True):
    """A kind of object of the admin API, with a pattern of its ids and the fields that identify it."""

    noun: str
    fields: Sequence[str]
    """The fields to search, besides the id."""
    id_pattern: str
    has_ended: Callable[[JsonObject], bool] = field(default=lambda _: False)
    """Whether an object has ended. A search prefers objects that have not ended."""
    label_fields: Sequence[str] = ("name",)
    """The fields that tables show as the object's name."""

    def is_id(self, text: str) -> bool:
        return re.fullmatch(self.id_pattern, text) is not None

    def matches(self, row: JsonObject, text: str) -> bool:
        """Whether the text is the id or another identifying field of an object. Ignores the case of e-mail
        addresses."""
        if text == row.get("id"):
            return True
        values = {name: row.get(name) for name in self.fields}
        return any(
            value == (fold_email(text) if name == "email" else text)
            for name, value in values.items()
            if value
        )

    def describe(self, row: JsonObject) -> str:
        """Describes an object by its id and its other fields."""
        identifiers = ", ".join(str(row.get(name)) for name in self.fields if row.get(name))
        return f"{row.get('id')} ({identifiers})" if identifiers else str(row.get("id"))


PROJECT = ObjectKind("project", ("name",), f"{DEFAULT_PROJECT}|proj_{ID_SUFFIX}")

USER = ObjectKind("user", ("name", "email"), f"user_{ID_SUFFIX}")

KEY = ObjectKind(
    "key",
    ("prefix", "note"),
    f"key_(?:[0-9a-z]{{12}}|{ID_SUFFIX})",
    lambda row: _has_ended(row, "expires_at"),
    ("prefix", "note"),
)

LIMIT = ObjectKind("limit", ("note",), f"limit_{ID_SUFFIX}")

PRICE = ObjectKind("price", ("models", "note"), f"price_{ID_SUFFIX}", lambda row: _has_ended(row, "until"))

OWNERS = {Subject.PROJECT: PROJECT, Subject.USER: USER, Subject.KEY: KEY}
"""The kinds of subjects of limits. Models have no id."""

KINDS_WITHOUT_NAMES = (LIMIT, PRICE)
"""Kinds that the audit log names only by id, because their notes are not unique."""


def find_id(server: "Admin", kind: ObjectKind, text: str) -> str:
    """Returns the id of the object that a text names, and prints which object this is, unless the text is an
    id.

    Raises CallFailed and SettingsError.
    """
    _reject_secret(text)
    if kind.is_id(text):
        return text
    rows = server.list(f"{kind.noun}s")
    matches = _list_matches(kind, rows, text)
    if not matches:
        names = [str(row.get(name)) for row in rows for name in kind.fields if row.get(name)]
        similar_names = difflib.get_close_matches(text, names, n=1)
        hint = f"antiphon {kind.noun}s list shows them"
        if similar_names:
            hint = f"did you mean {similar_names[0]!r}?"
        raise CallFailed(f"there is no {kind.noun} {text!r} that you can see; {hint}")
    return _require_single([(kind, row) for row in matches], text)


def find_used_id(server: "Admin", kind: ObjectKind, text: str) -> str:
    """Returns the id of the object that a text names, or the text itself without such an object.

    Usage entries may contain values that are no ids. Raises CallFailed and SettingsError.
    """
    _reject_secret(text)
    if kind.is_id(text):
        return text
    if matches := _list_matches(kind, server.list(f"{kind.noun}s"), text):
        return _require_single([(kind, row) for row in matches], text)
    note(f"used {text!r} as an id: you can see no {kind.noun} of this name")
    return text


def find_optional_id(server: "Admin", kind: ObjectKind, text: str | None) -> str | None:
    """Returns the id of the object that a text names; None without a text.

    Raises CallFailed and SettingsError.
    """
    return None if text is None else find_id(server, kind, text)


def find_target(server: "Admin", subject: Subject | None, text: str) -> str:
    """Returns the target of a limit: a model's name, or the id of the project, user or key that a text names.
    If `subject` is None, searches projects, users and keys.

    Raises CallFailed and SettingsError.
    """
    if subject is Subject.MODEL:
        return text
    if subject is not None:
        return find_id(server, OWNERS[subject], text)
    if owner := _find_owner(server, text):
        return owner
    note(f"used {text!r} as a model's name: you can see no project, user or key of this name")
    return text


def find_audited_id(server: "Admin", text: str) -> str:
    """Returns the id of the changed object that a text names: a project, user, key, limit or price.

    Raises CallFailed and SettingsError.
    """
    if any(kind.is_id(text) for kind in KINDS_WITHOUT_NAMES):
        return text
    if owner := _find_owner(server, text):
        return owner
    raise CallFailed(f"you can see no project, user or key {text!r}; a limit or a price is named by its id")


def find_author_ids(server: "Admin", text: str) -> list[str]:
    """Returns the ids in the audit log of the author that a text names: a user, a key, or one of AUTHORS.
    Several if the text is OPERATOR and the operator's key was rotated.

    Raises CallFailed and SettingsError.
    """
    if text in AUTHORS:
        return [text]
    if text == OPERATOR and (ids := list_operator_ids(server.list("keys"))):
        note(f"selected the operator's key of this machine: {', '.join(ids)}")
        return ids
    if owner := _find_owner(server, text):
        return [owner]
    reason = f"you can see no user or key {text!r}"
    if text == OPERATOR:
        reason = "this machine has no operator's key of this server"
    raise CallFailed(
        f"{reason}; give a user's name, the prefix of a key (antiphon keys list shows it), or one of "
        f"{', '.join(map(repr, AUTHORS))}"
    )


def list_operator_ids(keys: Sequence[JsonObject]) -> list[str]:
    """Returns the ids of the operator's key of this machine and of the keys that it replaced."""
    from antiphon.cli.admin_client import is_operator_key

    families = {key.get("family") or key.get("id") for key in keys if is_operator_key(key)}
    return [str(key.get("id")) for key in keys if (key.get("family") or key.get("id")) in families]


def fetch_names(server: "Admin", kinds: Iterable[ObjectKind], names_operator: bool = False) -> dict[str, str]:
    """Returns the names of all objects of some kinds, by id. `names_operator`: whether the operator's key of
    this machine is named OPERATOR.

    Skips kinds that the caller may not list. Raises CallFailed.
    """
    names: dict[str, str] = {}
    for kind in kinds:
        try:
            rows = server.list(f"{kind.noun}s")
        except CallFailed as problem:
            if problem.status != FORBIDDEN:
                raise
            continue
        for row in rows:
            names[str(row.get("id"))] = " ".join(
                str(row[name]) for name in kind.label_fields if row.get(name)
            )
        if kind is KEY and names_operator:
            names |= dict.fromkeys(list_operator_ids(rows), OPERATOR)
    return names


def replace_ids(row: Mapping[str, str], names: Mapping[str, str], *columns: str) -> dict[str, str]:
    """Returns a table's row with names in the place of the ids in `columns`. The ids follow all other
    columns, as COLUMN_id. An id without a known name stays."""
    named = {column: names.get(row[column]) or row[column] for column in columns}
    return {**row, **named, **{f"{column}_id": row[column] for column in columns}}


def _find_owner(server: "Admin", text: str) -> str | None:
    """Returns the id of the project, user or key that a text names; None without one."""
    _reject_secret(text)
    kinds = tuple(OWNERS.values())
    if any(kind.is_id(text) for kind in kinds):
        return text
    matches = [
        (kind, row) for kind in kinds for row in _list_matches(kind, server.list(f"{kind.noun}s"), text)
    ]
    return _require_single(matches, text) if matches else None


def _has_ended(row: JsonObject, expiry_field: str) -> bool:
    """Whether an object was revoked or has expired."""
    expires_at = row.get(expiry_field)
    return row.get("revoked_at") is not None or (isinstance(expires_at, int) and expires_at <= time.time())


def _list_matches(kind: ObjectKind, rows: Sequence[JsonObject], text: str) -> list[JsonObject]:
    """Returns the objects that match a text. Ended objects count only if no other object matches."""
    matches = [row for row in rows if kind.matches(row, text)]
    return [row for row in matches if not kind.has_ended(row)] or matches


def _require_single(matches: Sequence[tuple[ObjectKind, JsonObject]], text: str) -> str:
    """Returns the id of the only match, and prints the object. Raises CallFailed for several matches."""
    descriptions = [f"{kind.noun} {kind.describe(row)}" for kind, row in matches]
    if len(matches) > 1:
        remainder = f" and {len(matches) - MOST_CANDIDATES} more" if len(matches) > MOST_CANDIDATES else ""
        raise CallFailed(
            f"{text!r} matches {len(matches)} objects; name one by its id: "
            f"{'; '.join(descriptions[:MOST_CANDIDATES])}{remainder}"
        )
    note(f"selected the {descriptions[0]}")
    return str(matches[0][1].get("id"))


def _reject_secret(text: str) -> None:
    """Raises SettingsError for a secret key, which other users could read from the command line."""
    if (secret := SECRET.fullmatch(text)) is not None:
        raise SettingsError(
            f"this is a secret key, and other users can read command lines: use its prefix, {secret[1]}"
        )
