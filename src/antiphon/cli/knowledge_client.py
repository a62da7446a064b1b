"""Calls the knowledge API of a running server for commands. Importing this module imports no HTTP client."""

import json
import math
import secrets
import time
from array import array
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from antiphon.cli.admin_client import find_server
from antiphon.cli.output import (
    FORBIDDEN,
    CallFailed,
    JsonObject,
    Problem,
    advise_on_key,
    note,
    report_errors,
)
from antiphon.domain.values import Struct
from antiphon.errors import SettingsError

if TYPE_CHECKING:
    from antiphon.cli.client import Client


BATCH_CHUNKS = 128
"""Most chunks in one request of an import."""

FORMAT = "antiphon knowledge table 2"
"""The format name in the file's first line."""

TABLE_FIELDS = ("name", "embedding_model", "chunk_size", "chunk_overlap", "chunk_unit", "dimensions")

CREATION_FIELDS = TABLE_FIELDS[:-1]
"""The settings that an import creates the table with."""

DOCUMENT_FIELDS = ("id", "name", "media_type", "bytes", "digest", "warnings")

CHUNK_FIELDS = ("text", "title", "page", "file_name", "metadata", "vector")

PROBE = "The quick brown fox jumps over the lazy dog."
"""A text whose vector identifies the embedding model."""

LEAST_COSINE = 0.999
"""The least cosine of two vectors of one text from the same model, in any number format."""

Line = dict[str, object]
"""One line of the file."""


TABLES_PATH = "/v1/knowledge/tables"

PAGE_ROWS = 200
"""Rows of one page."""

POLL_S = 0.3
"""Seconds between two checks of an unfinished document."""

ReportItems = Callable[[int, int], None]
"""Receives the number of completed items and the total number."""


class ImportedTable(Struct, frozen=True):
    """The result of an import."""

    name: str
    chunk_count: int
    document_count: int
    model: object
    """The embedding model; None for a table without vectors."""
    keeps_vectors: bool
    """Whether the table has the vectors of the file."""
    keeps_ids: bool
    """Whether every document has the id that the file gives it."""

    def describe(self) -> str:
        """Describes the import in one sentence."""
        summary = f"made {self.name} of {self.chunk_count} chunks in {self.document_count} documents"
        id_note = "" if self.keeps_ids else "; the documents have new ids"
        if self.model is None:
            return f"{summary}; it can only be searched by words{id_note}"
        vectors = "the vectors come from the file" if self.keeps_vectors else f"{self.model} made new vectors"
        return f"{summary}; {vectors}{id_note}"


class ExportedTable(Struct, frozen=True):
    """The content of an exported file."""

    header: Line
    documents: dict[str, Line]
    """Documents by id, the oldest first."""
    chunks: dict[str | None, list[Line]]
    """Chunks by document id; None for chunks without a document."""

    def list_batches(self) -> Iterator[tuple[str | None, dict[str, object], list[Line]]]:
        """Yields batches of chunks: the document's id, the other fields of the request, and the chunks.

        Chunks without a document come last, with the id None.
        """
        for id_, document in self.documents.items():
            fields = {name: value for name, value in document.items() if name != "id" and value is not None}
            lines = self.chunks.get(id_, [])
            starts = range(0, max(1, len(lines)), BATCH_CHUNKS)
            for batch, start in enumerate(starts):
                batch_position: dict[str, object] = {"batch": batch, "last": batch + 1 == len(starts)}
                yield id_, fields | batch_position, lines[start : start + BATCH_CHUNKS]
        loose_lines = self.chunks.get(None, [])
        for start in range(0, len(loose_lines), BATCH_CHUNKS):
            yield None, {}, loose_lines[start : start + BATCH_CHUNKS]


def read_export(file: Path) -> ExportedTable:
    """Reads an exported file. Raises SettingsError."""
    lines = _read_lines(file)
    header = lines[0] if lines else {}
    if header.get("format") != FORMAT:
        raise SettingsError(f"{file} is no file of antiphon knowledge export")
    documents: dict[str, Line] = {}
    chunks: dict[str | None, list[Line]] = {}
    for line in lines[1:]:
        document = line.get("document")
        if isinstance(document, dict):
            documents[str(document.get("id"))] = document
        else:
            document_id = str(line.get("of"))
            chunks.setdefault(document_id if document_id in documents else None, []).append(line)
    return ExportedTable(header, documents, chunks)


def is_same_model(left_vector: object, right_vector: object) -> bool:
    """Whether two base64 vectors of one text come from the same model. False if a vector is missing."""
    if not isinstance(left_vector, str) or not isinstance(right_vector, str):
        return False
    try:
        left, right = (array("f", b64decode(text, validate=True)) for text in (left_vector, right_vector))
    except ValueError:
        return False
    norms = (
        math.sqrt(compute_dot_product(left, left) * compute_dot_product(right, right))
        if len(left) == len(right)
        else 0.0
    )
    return norms > 0 and compute_dot_product(left, right) / norms >= LEAST_COSINE


def compute_dot_product(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(left, right, strict=True))


def _read_lines(file: Path) -> list[Line]:
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


def pick_content(line: Mapping[str, object], keeps_vectors: bool) -> Line:
    """Returns the fields of a chunk that the server accepts."""
    names = CHUNK_FIELDS if keeps_vectors else CHUNK_FIELDS[:-1]
    return {name: line[name] for name in names if line.get(name) is not None}


class KnowledgeApiClient:
    """The knowledge API of one server. Every method raises CallFailed."""

    def __init__(self, client: "Client") -> None:
        self._client = client

    def call(self, method: str, *path: str, body: object = None, **query: object) -> JsonObject:
        """Sends a request and returns the object in the response. `path`: segments below the tables' path."""
        response = self._client.call(method, _join_path(path, query), body)
        if not isinstance(response, dict):
            raise CallFailed(f"{self._client.url} does not answer like Antiphon")
        return response

    def list_rows(self, *path: str, **query: str) -> Iterator[tuple[JsonObject, int]]:
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
        rows = [row for row, _ in self.list_rows(table, "documents")]
        if any(row.get("id") == text for row in rows):
            return text
        matches = [row for row in rows if row.get("name") == text]
        if not matches:
            raise CallFailed(
                f"{table} has no document {text!r}; antiphon knowledge list {table} shows its documents"
            )
        ids = ", ".join(str(row.get("id")) for row in matches)
        if len(matches) > 1:
            raise CallFailed(f"{len(matches)} documents are called {text!r}: name one by its id: {ids}")
        note(f"selected the document {ids} ({text})")
        return ids

    def add_file(
        self, table: str, file: Path, sizes: Mapping[str, object], report_progress: ReportItems
    ) -> JsonObject:
        """Adds a file and waits until the server has indexed it.

        `report_progress`: receives the number of indexed chunks and of all chunks, once the server has read
        the file. Raises SettingsError for a file that cannot be read.
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
            document = response if isinstance(response, dict) else {}
            state, wait_reason = document.get("state"), document.get("error")
            chunks, total = document.get("chunks"), document.get("total_chunks")
            if state == "indexing" and wait_reason not in (None, last_wait_reason):
                last_wait_reason = wait_reason
                note(f"{file.name} {wait_reason}")
            if isinstance(chunks, int) and isinstance(total, int):
                report_progress(chunks, total)
            if state == "failed":
                raise CallFailed(str(document.get("error")))
            if state != "indexing":
                return document
            time.sleep(POLL_S)
            response = self.call("GET", table, "documents", str(document.get("id")))

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
        table = self.call(
            "POST", body={name: exported.header.get(name) for name in CREATION_FIELDS} | dict(changes)
        )
        name, model = str(table.get("name")), table.get("embedding_model")
        has_same_model = isinstance(model, str) and is_same_model(
            self._embed_probe(model), exported.header.get("probe")
        )
        keeps_vectors = has_same_model and table.get("dimensions") == exported.header.get("dimensions")
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
