"""The file of an exported knowledge table: one JSON object in each line."""

import json
import math
from array import array
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from antiphon.domain.values import Struct
from antiphon.errors import SettingsError

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
    """Returns the dot product."""
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
