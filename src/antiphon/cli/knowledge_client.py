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
from antiphon.cli.knowledge_export import (
    CONTENT,
    DOCUMENT,
    FORMAT,
    MADE,
    PROBE,
    SETTINGS,
    ImportedTable,
    is_near,
    pick_content,
    read_export,
)
from antiphon.cli.output import FORBIDDEN, CallFailed, Card, Problem, advise_key, note, report_errors
from antiphon.errors import SettingsError

if TYPE_CHECKING:
    from antiphon.cli.client import Client

TABLES = "/v1/knowledge/tables"

PAGE = 200
"""Rows of one page."""

POLL_S = 0.3
"""Seconds between two looks at a document that is being read."""

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

    def list_pages(self, *path: str, **query: str) -> Iterator[tuple[Card, int]]:
        """Yields the rows of a list, page by page, with the number of all rows."""
        offset = 0
        while True:
            answer = self.call("GET", *path, limit=PAGE, offset=offset, **query)
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
        """Writes a table to a new file: its settings, its ready documents, and its chunks with their vectors.
        Returns the number of chunks. Raises SettingsError for a file that cannot be written."""
        card, count = self.call("GET", table), 0
        model = card.get("embedding_model")
        try:
            with file.open("x", encoding="utf-8") as lines:
                head = {"format": FORMAT} | {name: card.get(name) for name in SETTINGS}
                probe = self._embed_probe(model) if isinstance(model, str) else None
                lines.write(json.dumps({**head, "probe": probe}) + "\n")
                documents = [
                    row for row, _ in self.list_pages(table, "documents") if row.get("state") == "ready"
                ]
                for document in reversed(documents):
                    shown = {name: document.get(name) for name in DOCUMENT}
                    lines.write(json.dumps({"document": shown}) + "\n")
                for chunk, total in self.list_pages(table, "chunks", vectors="true"):
                    fields = {name: chunk.get(name) for name in CONTENT}
                    lines.write(json.dumps({"of": chunk.get("document"), **fields}) + "\n")
                    count += 1
                    tell(count, total)
        except OSError as problem:
            raise SettingsError(f"{file} cannot be written: {problem.strerror or problem}") from None
        return count

    def _embed_probe(self, model: str) -> str | None:
        """Returns the vector of PROBE by a model, in base64; None where the model makes none now."""
        body = {"model": model, "input": PROBE, "encoding_format": "base64"}
        try:
            answer = self._client.call("POST", "/v1/embeddings", body)
        except CallFailed:
            return None
        data = answer.get("data") if isinstance(answer, dict) else None
        vector = data[0].get("embedding") if isinstance(data, list) and data else None
        return vector if isinstance(vector, str) else None

    def import_table(self, file: Path, changes: Mapping[str, object], tell: TellProgress) -> ImportedTable:
        """Makes a table of an exported file. `changes`: settings that replace the file's. Documents keep
        their ids. Vectors stay if the table's model is that of the file. Nothing is left of a table that
        fails."""
        exported = read_export(file)
        card = self.call("POST", body={name: exported.head.get(name) for name in MADE} | dict(changes))
        name, model = str(card.get("name")), card.get("embedding_model")
        is_same = isinstance(model, str) and is_near(self._embed_probe(model), exported.head.get("probe"))
        keeps = is_same and card.get("dimensions") == exported.head.get("dimensions")
        done, total, ids = 0, sum(map(len, exported.chunks.values())), True
        try:
            for id_, part, lines in exported.list_parts():
                chunks = [pick_content(line, keeps) for line in lines]
                if id_ is None:
                    self.call("POST", name, "chunks", body={"chunks": chunks})
                else:
                    made = self.call("PUT", name, "documents", id_, body={**part, "chunks": chunks})
                    ids = ids and made.get("id") == id_
                done += len(chunks)
                tell(done, total)
        except BaseException:
            self.call("DELETE", name)
            raise
        return ImportedTable(name, total, len(exported.documents), model, keeps, ids)


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
