"""Calls the admin API of a running server for commands, with the operator's key if no other key is given.

`admin.key` contains the operator's key of this machine. Commands read it, and update it when they rotate or
revoke that key. Importing this module imports no HTTP client.
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
    Card,
    Problem,
    note,
    report_errors,
)

if TYPE_CHECKING:
    from antiphon.cli.client import Client

ROOT = "/admin/v1"
ADMIN_FILE = "admin.key"
PAGE = 1_000
"""Rows of one page; the server gives no more."""

NO_SUCH_PATH = "route_not_found"

EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - what a server listens on, as a client calls it


class Admin:
    """The admin API of one server. Every method raises CallFailed."""

    def __init__(self, client: "Client") -> None:
        self._client = client

    def list(
        self, *path: str, most: int | None = None, query: Mapping[str, str] | None = None
    ) -> "list[Card]":
        """Returns the rows of a list, at most `most`, page by page."""
        cards: list[Card] = []
        parameters = dict(query or {})
        cursor = "before" if path == ("audit",) else "after"
        while True:
            page_size = PAGE if most is None else min(PAGE, most - len(cards))
            page = self.get(*path, limit=str(page_size), **parameters)
            rows, following = page.get("data"), page.get("next")
            if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
                raise self._build_failure()
            cards += rows
            if not isinstance(following, str) or not rows or len(cards) == most:
                return cards
            parameters[cursor] = following

    def get(self, *path: str, **query: str) -> Card:
        """Fetches an object, or the answer to a query."""
        return self._call("GET", path, query)

    def parts(self, *path: str, **query: str) -> Iterator[bytes]:
        """Streams a long answer part by part."""
        return self._client.stream_parts(_join_path(path, query))

    def send(self, method: str, *path: str, **body: object) -> Card:
        """Sends the fields that are not None, and returns the answered object."""
        return self._call(method, path, {}, {name: each for name, each in body.items() if each is not None})

    def patch(self, *path: str, body: Card) -> Card:
        """Sends all fields, including None, as a change of an object."""
        return self._call("PATCH", path, {}, body)

    def delete(self, *path: str) -> Card:
        """Removes or ends an object; returns it if it stays."""
        answer = self._client.call("DELETE", _join_path(path, {}))
        return answer if isinstance(answer, dict) else {}

    def erase(self, *path: str, **query: str) -> Card:
        """Removes what a query selects, and returns what was removed."""
        return self._call("DELETE", path, query)

    def _call(
        self, method: str, path: tuple[str, ...], query: Mapping[str, str], body: Card | None = None
    ) -> Card:
        """Sends a request and returns the answered object. Raises CallFailed."""
        answer = self._client.call(method, _join_path(path, query), body)
        if not isinstance(answer, dict):
            raise self._build_failure()
        return answer

    def _build_failure(self) -> CallFailed:
        """Makes the error for a server that is not Antiphon."""
        return CallFailed(f"{self._client.url} does not answer like Antiphon")


@contextmanager
def connect_admin(url: str | None) -> Iterator[Admin]:
    """Connects to the admin API of the server at an address. Without an address it is the server that the
    local settings describe.

    Ends the command if a call fails.
    """
    key: str | None = None
    with report_errors(lambda problem: _advise(problem, key)):
        from antiphon.cli.client import Client

        address, key = find_server(url)
        yield Admin(Client(address, key))


def find_server(url: str | None, may_be_foreign: bool = False) -> tuple[str, str | None]:
    """Returns the address and the key of the server to ask. Without an address, it is the server that the
    local settings describe. A server of this machine gets the operator's key if no other key is given.

    `may_be_foreign`: the command also talks with servers of others. Then a server at an address that is named
    gets the operator's key only if it runs with this home. Raises SettingsError.
    """
    if url:
        address, key = url, os.environ.get(KEY_VARIABLE) or None
    else:
        from antiphon.cli.serve_options import ServeOptions

        server = ServeOptions().load_settings().server
        host = EVERYWHERE.get(server.host, server.host)
        bracketed = f"[{host}]" if ":" in host and not host.startswith("[") else host
        address, key = f"http://{bracketed}:{server.port}", server.api_key
    is_foreign = url is not None and may_be_foreign and not _is_of_home(url)
    return address, key or (read_operator_key() if _is_local(address) and not is_foreign else None)


def _is_of_home(address: str) -> bool:
    """Whether a running server of this home listens on the address's port."""
    if not find_operator_file().is_file():
        return False
    from antiphon.cli.local_servers import list_running

    ports = {urlsplit(running.url).port for running in list_running(find_operator_file().parent).values()}
    try:
        return urlsplit(address if "//" in address else f"http://{address}").port in ports
    except ValueError:
        return False


def _is_local(address: str) -> bool:
    """Whether only this machine can answer at the address. The operator's key is sent to no other address."""
    try:
        host = urlsplit(address if "//" in address else f"http://{address}").hostname or ""
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _advise(problem: Problem, key: str | None) -> str:
    """Returns what the user can do about a problem; empty if nothing is known. `key`: the key of the failed
    request."""
    status, code = (problem.status, problem.code) if isinstance(problem, CallFailed) else (0, "")
    if status == UNAUTHORIZED and key is not None and key == read_operator_key():
        return (
            f"The key in {find_operator_file()} has ended, or is of another server; say one that may in "
            f"{KEY_VARIABLE}, or have antiphon store admin-key --out FILE make another"
        )
    if status in (UNAUTHORIZED, FORBIDDEN):
        return (
            f"Set {KEY_VARIABLE} to a key that may; the first start of a server puts the operator's into "
            f"{ADMIN_FILE}, in its ANTIPHON_HOME"
        )
    if code == NO_SUCH_PATH:
        return "A server has projects, users and keys when it is started with ANTIPHON_KEYS=true"
    return ""


def _join_path(parts: tuple[str, ...], query: Mapping[str, str]) -> str:
    """Joins parts to a path, with the query. Each part is one step of the path, whatever characters it
    contains. Raises CallFailed for a part that has only dots."""
    for part in parts:
        if not part.strip("."):
            raise CallFailed(f"{part!r} is no id")
    path = "/".join([ROOT, *(quote(part, safe="") for part in parts)])
    return f"{path}?{urlencode(query)}" if query else path


def note_warnings(card: Card) -> None:
    """Prints the warnings of an answer."""
    warnings = card.get("warnings")
    for warning in warnings if isinstance(warnings, list) else ():
        note(str(warning))


def find_operator_file() -> Path:
    """Returns the path of the file with this machine's operator's key. The file may not exist."""
    from antiphon.cli.serve_options import find_home

    return find_home(os.environ, Path.home()) / ADMIN_FILE


def read_operator_key() -> str | None:
    """Reads this machine's operator's key; None where none can be read."""
    try:
        return find_operator_file().read_text(encoding="ascii").strip() or None
    except (OSError, ValueError):
        return None


def is_operator_key(card: Card) -> bool:
    """Whether a key that the server shows is the operator's of this machine."""
    from antiphon.auth.secrets import KEY, extract_prefix

    stored = read_operator_key()
    return (
        stored is not None
        and KEY.fullmatch(stored) is not None
        and card.get("prefix") == extract_prefix(stored)
    )


def keep_operator_key(secret: str) -> str:
    """Replaces the key in the operator's file; returns a sentence. The next start finishes an interrupted
    replacement."""
    from antiphon.auth.secrets import write_secret

    path = find_operator_file()
    partial = path.with_name(f"{path.name}.new")
    try:
        partial.unlink(missing_ok=True)
        write_secret(partial, secret)
        partial.replace(path)
    except OSError as problem:
        return f"{path} still holds the old key, and cannot be written: {problem.strerror}"
    return f"{path} holds the new key now"


def set_operator_key_aside() -> str:
    """Moves the file of an ended key aside; returns a sentence."""
    path = find_operator_file()
    ended = path.with_name(f"{path.name}.ended")
    try:
        path.replace(ended)
    except OSError as problem:
        return f"{path} holds the key that has ended, and cannot be moved away: {problem.strerror}"
    return f"it was the key in {path}, which is {ended} now; antiphon store admin-key makes another"
