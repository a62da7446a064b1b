"""Calls the admin API of a running server for commands. It sends the operator's key if the user gives no key.

The file `admin.key` contains the operator's key of this machine. Commands read the file, and update it when
they rotate or revoke that key. Importing this module imports no HTTP client.
"""

import os
from collections.abc import Iterator, Mapping
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
    the local settings describe. If no key is set, a server on this machine gets the operator's key. If the
    settings file cannot be used, says so, and uses the environment and the defaults.

    `may_be_foreign`: whether the server at `url` may belong to someone else. The operator's key then goes to
    `url` only if that server uses this home directory. Raises SettingsError.
    """
    problem = ""
    if url:
        address, key = url, os.environ.get(KEY_VARIABLE) or None
    else:
        from antiphon.cli.serve_options import ServeOptions

        server, problem = ServeOptions().load_listener()
        host = CLIENT_HOSTS.get(server.host, server.host)
        bracketed = f"[{host}]" if ":" in host and not host.startswith("[") else host
        address, key = f"http://{bracketed}:{server.port}", server.api_key
    key_source = f"the key of {KEY_VARIABLE}" if key else "no key"
    is_foreign = url is not None and may_be_foreign and not _is_own_server(url)
    if not key and not is_foreign and _is_local(address):
        key = read_operator_key()
        key_source = f"the key in {find_operator_file()}" if key else key_source
    if problem:
        note(f"{problem.removesuffix('.')}. Used {address} and {key_source} instead")
    return address, key


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
