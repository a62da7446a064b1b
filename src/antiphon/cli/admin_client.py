"""Calls the admin API of a running server for commands, and finds objects of the server by their names.

It sends the operator's key if the user gives no key. The file `admin.key` contains the operator's key of this
machine. Commands read the file, and update it when they rotate or revoke that key. Importing this module
imports no HTTP client.

An object is found by its name, e-mail address, key prefix, note or id. The admin API accepts only ids. Other
texts are searched in the lists that the caller may see. A text that matches several objects is an error.
"""

import difflib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode, urlsplit

from antiphon.cli.output import (
    FORBIDDEN,
    KEY_VARIABLE,
    UNAUTHORIZED,
    CallFailed,
    JsonObject,
    Problem,
    note,
    report_errors,
)
from antiphon.domain.limits import Subject
from antiphon.domain.tenancy import DEFAULT_PROJECT
from antiphon.domain.values import Struct, field
from antiphon.errors import SettingsError

if TYPE_CHECKING:
    from antiphon.cli.client import Client


ROOT = "/admin/v1"
ADMIN_FILE = "admin.key"
MOST_ROWS = 1_000
"""The most rows that the server returns in one page."""

NO_SUCH_PATH = "route_not_found"

CLIENT_HOSTS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - no bind


class Admin:
    """The admin API of one server. Every method raises CallFailed."""

    def __init__(self, client: "Client") -> None:
        self._client = client

    def list(
        self, *path: str, limit: int | None = None, query: Mapping[str, str] | None = None
    ) -> "list[JsonObject]":
        """Fetches a list page by page, and returns its rows. `limit`: the most rows; None for all."""
        rows: list[JsonObject] = []
        parameters = dict(query or {})
        cursor = "before" if path == ("audit",) else "after"
        while True:
            page_size = MOST_ROWS if limit is None else min(MOST_ROWS, limit - len(rows))
            page = self.get(*path, limit=str(page_size), **parameters)
            page_rows, next_cursor = page.get("data"), page.get("next")
            if not isinstance(page_rows, list) or not all(isinstance(row, dict) for row in page_rows):
                raise self._build_failure()
            rows += page_rows
            if not isinstance(next_cursor, str) or not page_rows or len(rows) == limit:
                return rows
            parameters[cursor] = next_cursor

    def get(self, *path: str, **query: str) -> JsonObject:
        """Fetches an object or the result of a query."""
        return self._call("GET", path, query)

    def stream(self, *path: str, **query: str) -> Iterator[bytes]:
        """Yields the body of a long response in parts."""
        return self._client.stream_parts(_join_path(path, query))

    def send(self, method: str, *path: str, **body: object) -> JsonObject:
        """Sends a request with the fields that are not None, and returns the object in the response."""
        return self._call(
            method, path, {}, {name: value for name, value in body.items() if value is not None}
        )

    def patch(self, *path: str, body: JsonObject) -> JsonObject:
        """Changes an object. Sends all fields, including None."""
        return self._call("PATCH", path, {}, body)

    def delete(self, *path: str) -> JsonObject:
        """Removes or revokes an object. Returns the object if the server keeps it."""
        response = self._client.call("DELETE", _join_path(path, {}))
        return response if isinstance(response, dict) else {}

    def erase(self, *path: str, **query: str) -> JsonObject:
        """Removes the objects that a query selects, and returns the object in the response."""
        return self._call("DELETE", path, query)

    def _call(
        self, method: str, path: tuple[str, ...], query: Mapping[str, str], body: JsonObject | None = None
    ) -> JsonObject:
        """Sends a request and returns the object in the response. Raises CallFailed."""
        response = self._client.call(method, _join_path(path, query), body)
        if not isinstance(response, dict):
            raise self._build_failure()
        return response

    def _build_failure(self) -> CallFailed:
        """Builds the error for a server that is not Antiphon."""
        return CallFailed(f"{self._client.url} does not answer like Antiphon")


@contextmanager
def connect_admin(url: str | None) -> Iterator[Admin]:
    """Connects to the admin API of the server at `url`, or of the server that the local settings describe.

    A failed call ends the command.
    """
    key: str | None = None
    with report_errors(lambda problem: _advise(problem, key)):
        from antiphon.cli.client import Client

        address, key = find_server(url)
        yield Admin(Client(address, key))


def find_server(url: str | None, may_be_foreign: bool = False) -> tuple[str, str | None]:
    """Returns the address of the server to call, and the key for it. Without `url`, this is the server that
    the local settings describe. If no key is set, a server on this machine gets the operator's key.

    `may_be_foreign`: whether the server at `url` may belong to someone else. The operator's key then goes to
    `url` only if that server uses this home directory. Raises SettingsError.
    """
    if url:
        address, key = url, os.environ.get(KEY_VARIABLE) or None
    else:
        from antiphon.cli.serve_options import ServeOptions

        server = ServeOptions().load_settings().server
        host = CLIENT_HOSTS.get(server.host, server.host)
        bracketed = f"[{host}]" if ":" in host and not host.startswith("[") else host
        address, key = f"http://{bracketed}:{server.port}", server.api_key
    is_foreign = url is not None and may_be_foreign and not _is_own_server(url)
    return address, key or (read_operator_key() if _is_local(address) and not is_foreign else None)


def _is_own_server(address: str) -> bool:
    """Whether a server that uses this home directory listens on the address's port."""
    if not find_operator_file().is_file():
        return False
    from antiphon.cli.local_servers import list_running_servers

    ports = {
        urlsplit(running.url).port for running in list_running_servers(find_operator_file().parent).values()
    }
    try:
        return urlsplit(address if "//" in address else f"http://{address}").port in ports
    except ValueError:
        return False


def _is_local(address: str) -> bool:
    """Whether the address belongs to this machine. The operator's key is sent to no other address."""
    try:
        host = urlsplit(address if "//" in address else f"http://{address}").hostname or ""
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _advise(problem: Problem, key: str | None) -> str:
    """Returns advice about a problem; empty if there is none. `key`: the key of the failed request."""
    status, code = (problem.status, problem.code) if isinstance(problem, CallFailed) else (0, "")
    if status == UNAUTHORIZED and key is not None and key == read_operator_key():
        return (
            f"The key in {find_operator_file()} has ended or belongs to another server. "
            f"Set {KEY_VARIABLE} to a valid key, or make one with antiphon store admin-key --out FILE"
        )
    if status in (UNAUTHORIZED, FORBIDDEN):
        return (
            f"Set {KEY_VARIABLE} to a key with this permission. The first start of a server writes the "
            f"operator's key to {ADMIN_FILE} in its ANTIPHON_HOME"
        )
    if code == NO_SUCH_PATH:
        return "A server has projects, users and keys when it is started with ANTIPHON_KEYS=true"
    return ""


def _join_path(segments: tuple[str, ...], query: Mapping[str, str]) -> str:
    """Joins path segments and a query, and escapes them. Raises CallFailed for a segment that is empty or has
    only dots."""
    for segment in segments:
        if not segment.strip("."):
            raise CallFailed(f"{segment!r} is no id")
    path = "/".join([ROOT, *(quote(segment, safe="") for segment in segments)])
    return f"{path}?{urlencode(query)}" if query else path


def note_warnings(response: JsonObject) -> None:
    """Prints the warnings in a response."""
    warnings = response.get("warnings")
    for warning in warnings if isinstance(warnings, list) else ():
        note(str(warning))


def find_operator_file() -> Path:
    """Returns the path of the file with the operator's key of this machine, even if no such file exists."""
    from antiphon.cli.serve_options import find_home

    return find_home(os.environ, Path.home()) / ADMIN_FILE


def read_operator_key() -> str | None:
    """Reads the operator's key of this machine. Returns None if the file is missing or cannot be read."""
    try:
        return find_operator_file().read_text(encoding="ascii").strip() or None
    except (OSError, ValueError):
        return None


def is_operator_key(key: JsonObject) -> bool:
    """Whether `key` describes the operator's key of this machine."""
    from antiphon.auth.secrets import KEY, extract_prefix

    stored = read_operator_key()
    return (
        stored is not None
        and KEY.fullmatch(stored) is not None
        and key.get("prefix") == extract_prefix(stored)
    )


def replace_operator_key(secret: str) -> str:
    """Replaces the key in the operator's file, and returns a message for the user. The next start of a server
    finishes an interrupted replacement."""
    from antiphon.auth.secrets import write_secret

    path = find_operator_file()
    pending_file = path.with_name(f"{path.name}.new")
    try:
        pending_file.unlink(missing_ok=True)
        write_secret(pending_file, secret)
        pending_file.replace(path)
    except OSError as problem:
        return f"{path} contains the old key and cannot be written: {problem.strerror}"
    return f"{path} contains the new key"


def rename_operator_file() -> str:
    """Renames the operator's file after its key was revoked, and returns a message for the user."""
    path = find_operator_file()
    ended_path = path.with_name(f"{path.name}.ended")
    try:
        path.replace(ended_path)
    except OSError as problem:
        return f"{path} contains the revoked key and cannot be renamed: {problem.strerror}"
    return f"its file {path} was renamed to {ended_path}; antiphon store admin-key makes a new key"


MOST_CANDIDATES = 10
"""The most matching objects that an error message lists."""

ID_SUFFIX = "[0-9a-z]{19}"
"""A pattern for the end of a generated id."""

SECRET = re.compile(r"(ak_[0-9a-z]{12})_[A-Za-z0-9_-]{43}")
"""A pattern for a secret key. Its prefix is public."""


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
        """Whether the text is an id of this kind."""
        return re.fullmatch(self.id_pattern, text) is not None

    def matches(self, row: JsonObject, text: str) -> bool:
        """Whether the text is the id or another identifying field of an object. Ignores the case of e-mail
        addresses."""
        if text == row.get("id"):
            return True
        values = {name: row.get(name) for name in self.fields}
        return any(
            value == (text.lower() if name == "email" else text) for name, value in values.items() if value
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
    "key_[0-9a-z]{12}",
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
        raise CallFailed(
            f"there is no {kind.noun} {text!r} that you can see{_format_suggestion(kind, rows, text)}"
        )
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
    return _find_owner(server, text, "a model's name")


def find_audited_id(server: "Admin", text: str) -> str:
    """Returns the id of the project, user or key that a text names, or the text itself without one.

    Raises CallFailed and SettingsError.
    """
    if any(kind.is_id(text) for kind in KINDS_WITHOUT_NAMES):
        return text
    return _find_owner(server, text, "a name in the audit log")


def fetch_names(server: "Admin", kinds: Iterable[ObjectKind]) -> dict[str, str]:
    """Returns the names of all objects of some kinds, by id.

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
    return names


def add_names(row: Mapping[str, str], names: Mapping[str, str], *columns: str) -> dict[str, str]:
    """Returns a table's row with an additional column of names after each of `columns`, which contain ids."""
    result: dict[str, str] = {}
    for column, text in row.items():
        result[column] = text
        if column in columns:
            result[f"{column}_name"] = names.get(text) or "-"
    return result


def _find_owner(server: "Admin", text: str, fallback_meaning: str) -> str:
    """Returns the id of the project, user or key that a text names, or the text itself without one.

    `fallback_meaning`: describes a text without such an object.
    """
    _reject_secret(text)
    kinds = tuple(OWNERS.values())
    if any(kind.is_id(text) for kind in kinds):
        return text
    matches = [
        (kind, row) for kind in kinds for row in _list_matches(kind, server.list(f"{kind.noun}s"), text)
    ]
    if matches:
        return _require_single(matches, text)
    note(f"used {text!r} as {fallback_meaning}: you can see no project, user or key of this name")
    return text


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


def _format_suggestion(kind: ObjectKind, rows: Sequence[JsonObject], text: str) -> str:
    """Returns a suggestion for a text without a match."""
    names = [str(row.get(name)) for row in rows for name in kind.fields if row.get(name)]
    similar_names = difflib.get_close_matches(text, names, n=1)
    return (
        f"; did you mean {similar_names[0]!r}?"
        if similar_names
        else f"; antiphon {kind.noun}s list shows them"
    )


def _reject_secret(text: str) -> None:
    """Raises SettingsError for a secret key, which other users could read from the command line."""
    if (secret := SECRET.fullmatch(text)) is not None:
        raise SettingsError(
            f"this is a secret key, and other users can read command lines: use its prefix, {secret[1]}"
        )
