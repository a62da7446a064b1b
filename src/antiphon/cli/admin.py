"""What `antiphon projects`, `users`, `keys` and `audit` share: they call /admin/v1 of a running server.

What was asked for goes to standard output, what is said about it to standard error.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from ipaddress import ip_address
from urllib.parse import quote, urlencode, urlsplit

import typer

from antiphon.cli import operators
from antiphon.cli.client import CallFailed, Client
from antiphon.cli.home import ADMIN_FILE
from antiphon.cli.terminal import shown
from antiphon.cli.where import KEY_VARIABLE, where
from antiphon.errors import SettingsError

ROOT = "/admin/v1"
PAGE = 1_000
"""Things asked for at once; the most that the server gives."""

UNAUTHORIZED, FORBIDDEN = 401, 403
NO_SUCH_PATH = "route_not_found"

Card = dict[str, object]
Work = Callable[["Admin"], None]


class Admin:
    """The admin API of one server, as one caller. Every method raises CallFailed."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def listed(self, *path: str, most: int | None = None, **query: str) -> list[Card]:
        """All of a list, page by page; the first `most`."""
        found: list[Card] = []
        cursor = "before" if path == ("audit",) else "after"
        while True:
            left = PAGE if most is None else min(PAGE, most - len(found))
            page = self._asked("GET", f"{_path(*path)}?{urlencode({'limit': str(left), **query})}")
            rows, following = page.get("data"), page.get("next")
            if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
                raise CallFailed(f"{self._client.url} does not answer like Antiphon")
            found += rows
            if not isinstance(following, str) or not rows or len(found) == most:
                return found
            query[cursor] = following

    def shown(self, *path: str) -> Card:
        """One of them."""
        return self._asked("GET", _path(*path))

    def asked(self, *path: str, **query: str) -> Card:
        """What is answered to a query."""
        return self._asked("GET", f"{_path(*path)}?{urlencode(query)}")

    def said(self, *path: str, **query: str) -> Iterator[bytes]:
        """The same where it may be long, part by part, as it comes."""
        return self._client.parts(f"{_path(*path)}?{urlencode(query)}")

    def made(self, *path: str, **said: object) -> Card:
        """What a POST makes or does; what is None is left out."""
        return self._asked("POST", _path(*path), _said(said))

    def changed(self, *path: str, **said: object) -> Card:
        """What it is after a change."""
        return self._asked("PATCH", _path(*path), _said(said))

    def patched(self, noun: str, id_: str, said: Card) -> Card:
        """The same, where None means something."""
        return self._asked("PATCH", _path(noun, id_), said)

    def put(self, *path: str, **said: object) -> Card:
        """Puts one there."""
        return self._asked("PUT", _path(*path), _said(said))

    def removed(self, *path: str) -> None:
        """Takes one away."""
        self._client.asked("DELETE", _path(*path))

    def ended(self, *path: str) -> Card:
        """Ends one that stays; what it is then."""
        return self._asked("DELETE", _path(*path))

    def _asked(self, method: str, path: str, body: Card | None = None) -> Card:
        answer = self._client.asked(method, path, body)
        if not isinstance(answer, dict):
            raise CallFailed(f"{self._client.url} does not answer like Antiphon")
        return answer


def run(work: Work, url: str | None) -> None:
    """Does it with the server; an error is one line and a status."""
    key = None
    try:
        address, key = place(url)
        work(Admin(Client(address, key)))
    except (CallFailed, SettingsError) as problem:
        print(f"antiphon: {'. '.join(_sentences(problem, key))}", file=sys.stderr)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def place(url: str | None) -> tuple[str, str | None]:
    """Address and key: where no key is said and the server is on this machine, the operator's, which lies
    beside its database. Raises SettingsError."""
    address, key = where(url)
    return address, key or (operators.kept_key() if _is_here(address) else None)


def _is_here(address: str) -> bool:
    """Whether nobody else can answer at the address: no other machine may be sent the operator's key."""
    try:
        host = urlsplit(address if "//" in address else f"http://{address}").hostname or ""
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _sentences(problem: CallFailed | SettingsError, key: str | None) -> Iterator[str]:
    """`key`: which the server was asked with."""
    yield shown(problem.message).removesuffix(".")
    status = problem.status if isinstance(problem, CallFailed) else 0
    if status == UNAUTHORIZED and key is not None and key == operators.kept_key():
        yield operators.refused()
    elif status in (UNAUTHORIZED, FORBIDDEN):
        yield (
            f"Set {KEY_VARIABLE} to a key that may; the first start of a server puts the operator's into "
            f"{ADMIN_FILE}, in its ANTIPHON_HOME"
        )
    elif isinstance(problem, CallFailed) and problem.code == NO_SUCH_PATH:
        yield "A server has projects, users and keys when it is started with ANTIPHON_KEYS=true"


def table(rows: Sequence[Mapping[str, str]], otherwise: str) -> str:
    """Columns as wide as what is in them, named by the rows; `otherwise` where there are none."""
    if not rows:
        return otherwise
    lines = [[name.upper() for name in rows[0]], *([shown(cell) for cell in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def details(card: Card) -> str:
    """One thing, a line for each of what is said of it."""
    said = {name: cell(name, value) for name, value in card.items() if name != "object"}
    width = max(map(len, said))
    return "\n".join(f"{name:{width}}  {shown(text)}".rstrip() for name, text in said.items())


def cell(name: str, value: object) -> str:
    """A value of a card as people read it."""
    if value is None:
        return "-"
    if isinstance(value, list):
        return " ".join(str(each) for each in value) or "none"
    if isinstance(value, int) and (name == "at" or name.endswith("_at")):
        return moment(value)
    return str(value)


def moment(seconds: int) -> str:
    """A time, in UTC."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")
    except (OverflowError, ValueError, OSError):  # beyond the calendar
        return str(seconds)


def as_json(value: object) -> str:
    """For programs."""
    return json.dumps(value, indent=2)


def note(text: str) -> None:
    """Something about what was done, for people."""
    print(f"antiphon: {shown(text)}", file=sys.stderr)


def warn(card: Card) -> None:
    """What the server says beside what it did."""
    warnings = card.get("warnings")
    for warning in warnings if isinstance(warnings, list) else ():
        note(str(warning))


def _path(*parts: str) -> str:
    """Below the root; a part is one step, whatever is in it."""
    return "/".join([ROOT, *_quoted(parts)])


def _quoted(parts: Sequence[str]) -> Iterator[str]:
    for part in parts:
        if not part.strip("."):
            raise CallFailed(f"{part!r} is no id")
        yield quote(part, safe="")


def _said(fields: Mapping[str, object]) -> Card:
    return {name: value for name, value in fields.items() if value is not None}
