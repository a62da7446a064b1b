"""Calls the knowledge tables of a running server for commands. Importing this module imports no HTTP
client."""

import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from antiphon.cli.admin_client import find_server
from antiphon.cli.output import FORBIDDEN, CallFailed, Card, Problem, advise_key, note, report_errors
from antiphon.errors import SettingsError

if TYPE_CHECKING:
    from antiphon.cli.client import Client

TABLES = "/v1/knowledge/tables"

PAGE = 500
"""Rows of one page."""

BATCH = 128
"""Chunks of one call of an import."""

POLL_S = 0.3
"""Seconds between two looks at a document that is being read."""

FORMAT = "antiphon knowledge table 1"
"""The mark of an exported table's first line."""

SETTINGS = ("name", "embedding_model", "chunk_size", "chunk_overlap", "chunk_unit")
CONTENT = ("text", "title", "page", "file_name", "metadata")

TellProgress = Callable[[int, int], None]
"""Gets how much is done, and of how much."""


class KnowledgeCalls:
    """The knowledge tables of one server. Every method raises CallFailed."""

    def __init__(self, client: "Client") -> None:
        self._client = client

    def call(self, method: str, *path: str, body: object = None, **query: object) -> Card:
        """Sends a request and returns the answered object. Each part of the path is one step of it."""
        answer = self._client.call(method, _join_path(path, query), body)
        if not isinstance(answer, dict):
            raise CallFailed(f"{self._client.url} does not answer like Antiphon")
        return answer

    def list_pages(self, *path: str) -> Iterator[tuple[Card, int]]:
        """Yields the rows of a list, page by page, with the number of all rows."""
        offset = 0
        while True:
            answer = self.call("GET", *path, limit=PAGE, offset=offset)
            rows, total = answer.get("data"), answer.get("total")
            if not isinstance(rows, list) or not isinstance(total, int):
                raise CallFailed(f"{self._client.url} does not answer like Antiphon")
            yield from ((row, total) for row in rows)
            offset += len(rows)
            if not rows or offset >= total:
                return

    def find_document(self, table: str, text: str) -> str:
        """Returns the id of the document that a text names: by its id, or by the name of its file."""
        cards = [card for card, _ in self.list_pages(table, "documents")]
        if any(card.get("id") == text for card in cards):
            return text
        found = [card for card in cards if card.get("name") == text]
        if not found:
            raise CallFailed(
                f"{table} has no document {text!r}; antiphon knowledge list {table} shows its documents"
            )
        ids = ", ".join(str(card.get("id")) for card in found)
        if len(found) > 1:
            raise CallFailed(f"{len(found)} documents are called {text!r}: name one by its id: {ids}")
        note(f"took the document {ids} ({text})")
        return ids

    def add_file(self, table: str, file: Path, sizes: Mapping[str, object], tell: TellProgress) -> Card:
        """Adds a file and waits until it is read. `tell` gets percent. Raises SettingsError for a file that
        cannot be opened."""
        try:
            content = file.read_bytes()
        except OSError as problem:
            raise SettingsError(f"{file} cannot be read: {problem.strerror or problem}") from None
        fields = {name: str(value) for name, value in sizes.items() if value is not None}
        media_type, form = build_form(file.name, content, fields)
        answer = self._client.upload(_join_path((table, "documents"), {}), media_type, form)
        told = None
        while True:
            card = answer if isinstance(answer, dict) else {}
            state, progress, waits = card.get("state"), card.get("progress"), card.get("error")
            if state == "indexing" and waits not in (None, told):
                told = waits
                note(f"{file.name} {waits}")
            tell(progress if isinstance(progress, int) else 0, 100)
            if state == "failed":
                raise CallFailed(str(card.get("error")))
            if state != "indexing":
                return card
            time.sleep(POLL_S)
            answer = self.call("GET", table, "documents", str(card.get("id")))

    def export_table(self, table: str, file: Path, tell: TellProgress) -> int:
        """Writes a table to a new file, a JSON object on each line. Returns the number of chunks. Raises
        SettingsError for a file that cannot be written."""
        card, count = self.call("GET", table), 0
        try:
            with file.open("x", encoding="utf-8") as lines:
                head = {"format": FORMAT} | {name: card.get(name) for name in SETTINGS}
                lines.write(json.dumps(head) + "\n")
                for chunk, total in self.list_pages(table, "chunks"):
                    lines.write(json.dumps({name: chunk.get(name) for name in CONTENT}) + "\n")
                    count += 1
                    tell(count, total)
        except OSError as problem:
            raise SettingsError(f"{file} cannot be written: {problem.strerror or problem}") from None
        return count

    def import_table(self, file: Path, changes: Mapping[str, object], tell: TellProgress) -> tuple[str, int]:
        """Makes a table of an exported file. `changes`: settings that replace the file's. Returns its name
        and the number of chunks. Nothing stays of a table that fails."""
        lines = _read_lines(file)
        head = lines[0] if lines else {}
        if head.get("format") != FORMAT:
            raise SettingsError(f"{file} is no table that antiphon knowledge export has written")
        wanted = {name: head.get(name) for name in SETTINGS} | dict(changes)
        name = str(self.call("POST", body=wanted).get("name"))
        try:
            for start in range(1, len(lines), BATCH):
                chunks = [_pick_content(line) for line in lines[start : start + BATCH]]
                self.call("POST", name, "chunks", body={"chunks": chunks})
                tell(min(start + BATCH, len(lines)) - 1, len(lines) - 1)
        except BaseException:
            self.call("DELETE", name)
            raise
        return name, len(lines) - 1


@contextmanager
def connect_knowledge(url: str | None) -> Iterator[KnowledgeCalls]:
    """Connects to the knowledge tables of a server; an error ends the command."""
    with report_errors(_advise):
        from antiphon.cli.client import Client

        yield KnowledgeCalls(Client(*find_server(url)))


def _advise(problem: Problem) -> str:
    """Returns what the user can do about a problem."""
    is_refused = isinstance(problem, CallFailed) and problem.status == FORBIDDEN
    return "docs/keys.md says which keys can." if is_refused else advise_key(problem)


def _join_path(parts: Sequence[str], query: Mapping[str, object]) -> str:
    """Joins parts to a path below the tables. Raises CallFailed for a part that has only dots."""
    for part in parts:
        if not part.strip("."):
            raise CallFailed(f"{part!r} is no name")
    path = "/".join([TABLES, *(quote(part, safe="") for part in parts)])
    return f"{path}?{urlencode(query)}" if query else path


def _read_lines(file: Path) -> list[dict[str, object]]:
    """Returns the objects of a file. Raises SettingsError."""
    try:
        lines = [json.loads(line) for line in file.read_text("utf-8").splitlines() if line]
    except OSError as problem:
        raise SettingsError(f"{file} cannot be read: {problem.strerror or problem}") from None
    except ValueError:
        raise SettingsError(f"{file} is not JSON Lines in UTF-8") from None
    if not all(isinstance(line, dict) for line in lines):
        raise SettingsError(f"{file} has a line that is no JSON object")
    return lines


def _pick_content(line: Mapping[str, object]) -> dict[str, object]:
    """Returns the fields of a chunk that a server takes."""
    return {name: line[name] for name in CONTENT if line.get(name) is not None}


def build_form(file_name: str, content: bytes, fields: Mapping[str, str]) -> tuple[str, bytes]:
    """Returns the media type and the bytes of a form with one file."""
    boundary = secrets.token_hex(16)
    escaped = file_name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    ]
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{escaped}"\r\n'
    head += "Content-Type: application/octet-stream\r\n\r\n"
    body = "".join([*parts, head]).encode() + content + f"\r\n--{boundary}--\r\n".encode()
    return f"multipart/form-data; boundary={boundary}", body
