"""Calls the knowledge API of a running server for commands. Importing this module imports no HTTP client."""

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
    CHUNK_FIELDS,
    CREATION_FIELDS,
    DOCUMENT_FIELDS,
    FORMAT,
    PROBE,
    TABLE_FIELDS,
    ImportedTable,
    is_same_model,
    pick_content,
    read_export,
)
from antiphon.cli.output import FORBIDDEN, CallFailed, Card, Problem, advise_on_key, note, report_errors
from antiphon.errors import SettingsError

if TYPE_CHECKING:
    from antiphon.cli.client import Client

TABLES_PATH = "/v1/knowledge/tables"

PAGE_ROWS = 200
"""Rows of one page."""

POLL_S = 0.3
"""Seconds between two checks of an unfinished document."""

ReportItems = Callable[[int, int], None]
"""Receives the number of completed items and the total number."""


class KnowledgeApiClient:
    """The knowledge API of one server. Every method raises CallFailed."""

    def __init__(self, client: "Client") -> None:
        self._client = client

    def call(self, method: str, *path: str, body: object = None, **query: object) -> Card:
        """Sends a request and returns the object in the response. `path`: segments below the tables' path."""
        response = self._client.call(method, _join_path(path, query), body)
        if not isinstance(response, dict):
            raise CallFailed(f"{self._client.url} does not answer like Antiphon")
        return response

    def list_rows(self, *path: str, **query: str) -> Iterator[tuple[Card, int]]:
        """Yields the rows of a list, each with the total number of rows. Fetches page by page."""
        offset = 0
        while True:
            page = self.call("GET", *path, limit=PAGE_ROWS, offset=offset, **query)
            rows, total = page.get("data"), page.get("total")
            if not isinstance(rows, list) or not isinstance(total, int):
                raise CallFailed(f"{self._client.url} does not answer like Antiphon")
            yield from ((row, total) for row in rows)
            offset += len(rows)
            if not rows or offset >= total:
                return

    def find_document(self, table: str, text: str) -> str:
        """Returns the id of the document whose id or file name is `text`."""
        cards = [card for card, _ in self.list_rows(table, "documents")]
        if any(card.get("id") == text for card in cards):
            return text
        matches = [card for card in cards if card.get("name") == text]
        if not matches:
            raise CallFailed(
                f"{table} has no document {text!r}; antiphon knowledge list {table} shows its documents"
            )
        ids = ", ".join(str(card.get("id")) for card in matches)
        if len(matches) > 1:
            raise CallFailed(f"{len(matches)} documents are called {text!r}: name one by its id: {ids}")
        note(f"selected the document {ids} ({text})")
        return ids

    def add_file(
        self, table: str, file: Path, sizes: Mapping[str, object], report_percent: ReportItems
    ) -> Card:
        """Adds a file and waits until the server has indexed it.

        `report_percent`: receives the percentage of the progress, and 100. Raises SettingsError for a file
        that cannot be read.
        """
        try:
            content = file.read_bytes()
        except OSError as problem:
            raise SettingsError(f"{file} cannot be read: {problem.strerror or problem}") from None
        fields = {name: str(value) for name, value in sizes.items() if value is not None}
        media_type, form = build_form(file.name, content, fields)
        response = self._client.upload(_join_path((table, "documents"), {}), media_type, form)
        last_wait_reason = None
        while True:
            card = response if isinstance(response, dict) else {}
            state, progress, wait_reason = card.get("state"), card.get("progress"), card.get("error")
            if state == "indexing" and wait_reason not in (None, last_wait_reason):
                last_wait_reason = wait_reason
                note(f"{file.name} {wait_reason}")
            report_percent(progress if isinstance(progress, int) else 0, 100)
            if state == "failed":
                raise CallFailed(str(card.get("error")))
            if state != "indexing":
                return card
            time.sleep(POLL_S)
            response = self.call("GET", table, "documents", str(card.get("id")))

    def export_table(self, table: str, file: Path, report_progress: ReportItems) -> int:
        """Writes a table to a new file: its settings, indexed documents, chunks and vectors.

        Returns the number of chunks. Raises SettingsError if the file cannot be written.
        """
        table_card, count = self.call("GET", table), 0
        model = table_card.get("embedding_model")
        try:
            with file.open("x", encoding="utf-8") as lines:
                header = {"format": FORMAT} | {name: table_card.get(name) for name in TABLE_FIELDS}
                probe = self._embed_probe(model) if isinstance(model, str) else None
                lines.write(json.dumps({**header, "probe": probe}) + "\n")
                documents = [
                    row for row, _ in self.list_rows(table, "documents") if row.get("state") == "ready"
                ]
                for document in reversed(documents):
                    document_fields = {name: document.get(name) for name in DOCUMENT_FIELDS}
                    lines.write(json.dumps({"document": document_fields}) + "\n")
                for chunk, total in self.list_rows(table, "chunks", vectors="true"):
                    fields = {name: chunk.get(name) for name in CHUNK_FIELDS}
                    lines.write(json.dumps({"of": chunk.get("document"), **fields}) + "\n")
                    count += 1
                    report_progress(count, total)
        except OSError as problem:
            raise SettingsError(f"{file} cannot be written: {problem.strerror or problem}") from None
        return count

    def _embed_probe(self, model: str) -> str | None:
        """Returns a model's vector of PROBE in base64; None if the model is not available."""
        body = {"model": model, "input": PROBE, "encoding_format": "base64"}
        try:
            response = self._client.call("POST", "/v1/embeddings", body)
        except CallFailed:
            return None
        data = response.get("data") if isinstance(response, dict) else None
        vector = data[0].get("embedding") if isinstance(data, list) and data else None
        return vector if isinstance(vector, str) else None

    def import_table(
        self, file: Path, changes: Mapping[str, object], report_progress: ReportItems
    ) -> ImportedTable:
        """Creates a table from an exported file. `changes`: settings that replace the file's settings.

        Documents keep their ids. The file's vectors are used if the table has the embedding model that made
        them. A failed import removes the table.
        """
        exported = read_export(file)
        card = self.call(
            "POST", body={name: exported.header.get(name) for name in CREATION_FIELDS} | dict(changes)
        )
        name, model = str(card.get("name")), card.get("embedding_model")
        has_same_model = isinstance(model, str) and is_same_model(
            self._embed_probe(model), exported.header.get("probe")
        )
        keeps_vectors = has_same_model and card.get("dimensions") == exported.header.get("dimensions")
        imported_count, total, keeps_ids = 0, sum(map(len, exported.chunks.values())), True
        try:
            for id_, batch_fields, lines in exported.list_batches():
                chunks = [pick_content(line, keeps_vectors) for line in lines]
                if id_ is None:
                    self.call("POST", name, "chunks", body={"chunks": chunks})
                else:
                    batch_body = {**batch_fields, "chunks": chunks}
                    document = self.call("PUT", name, "documents", id_, body=batch_body)
                    keeps_ids = keeps_ids and document.get("id") == id_
                imported_count += len(chunks)
                report_progress(imported_count, total)
        except BaseException:
            self.call("DELETE", name)
            raise
        return ImportedTable(name, total, len(exported.documents), model, keeps_vectors, keeps_ids)


@contextmanager
def connect_knowledge(url: str | None) -> Iterator[KnowledgeApiClient]:
    """Connects to the knowledge API of a server. An error ends the command."""
    with report_errors(_advise):
        from antiphon.cli.client import Client

        yield KnowledgeApiClient(Client(*find_server(url)))


def _advise(problem: Problem) -> str:
    """Returns advice about a problem; empty if there is none."""
    is_forbidden = isinstance(problem, CallFailed) and problem.status == FORBIDDEN
    return "See docs/keys.md for the required keys." if is_forbidden else advise_on_key(problem)


def _join_path(segments: Sequence[str], query: Mapping[str, object]) -> str:
    """Joins path segments below the tables' path, with a query. Raises CallFailed for a segment that is empty
    or has only dots."""
    for segment in segments:
        if not segment.strip("."):
            raise CallFailed(f"{segment!r} is no name")
    path = "/".join([TABLES_PATH, *(quote(segment, safe="") for segment in segments)])
    return f"{path}?{urlencode(query)}" if query else path


def build_form(file_name: str, content: bytes, fields: Mapping[str, str]) -> tuple[str, bytes]:
    """Returns the media type and the bytes of a multipart form with one file."""
    boundary = secrets.token_hex(16)
    escaped_name = file_name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    ]
    file_header = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{escaped_name}"\r\n'
    )
    file_header += "Content-Type: application/octet-stream\r\n\r\n"
    body = "".join([*parts, file_header]).encode() + content + f"\r\n--{boundary}--\r\n".encode()
    return f"multipart/form-data; boundary={boundary}", body
