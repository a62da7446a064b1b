"""The file of an exported knowledge table: settings, documents, chunks and vectors, one object a line."""

import json
import math
from array import array
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from antiphon.errors import SettingsError

BATCH = 128
"""Chunks of one call of an import."""

FORMAT = "antiphon knowledge table 2"
"""The mark of an exported table's first line."""

SETTINGS = ("name", "embedding_model", "chunk_size", "chunk_overlap", "chunk_unit", "dimensions")
MADE = SETTINGS[:-1]
"""The settings that an import makes the table with."""

DOCUMENT = ("id", "name", "media_type", "bytes", "digest", "warnings")
CONTENT = ("text", "title", "page", "file_name", "metadata", "vector")

PROBE = "The quick brown fox jumps over the lazy dog."
"""The text whose vector tells whether a server's embedding model is the one of the file."""

SAME = 0.999
"""The least cosine of two vectors of the same text by the same model. Its number format changes it less."""


Line = dict[str, object]
"""One line of the file."""


@dataclass(frozen=True)
class ImportedTable:
    """What an import made."""

    name: str
    chunks: int
    documents: int
    model: object
    """The embedding model; None for a table that finds by words."""
    keeps_vectors: bool
    keeps_ids: bool

    def describe(self) -> str:
        """Returns one sentence."""
        made = f"made {self.name} of {self.chunks} chunks in {self.documents} documents"
        ids = "" if self.keeps_ids else "; the documents have new ids"
        if self.model is None:
            return f"{made}; it finds by words{ids}"
        vectors = (
            "the vectors are those of the file" if self.keeps_vectors else f"{self.model} made new vectors"
        )
        return f"{made}; {vectors}{ids}"


@dataclass(frozen=True)
class ExportedTable:
    """The content of an exported file."""

    head: Line
    documents: dict[str, Line]
    """By their ids, the oldest first."""
    chunks: dict[str | None, list[Line]]
    """By the id of their document; None for chunks of none."""

    def list_parts(self) -> Iterator[tuple[str | None, dict[str, object], list[Line]]]:
        """Yields the id of a document, the fields and the chunks of each part of it, and then chunks without
        a document."""
        for id_, document in self.documents.items():
            fields = {name: value for name, value in document.items() if name != "id" and value is not None}
            lines = self.chunks.get(id_, [])
            starts = range(0, max(1, len(lines)), BATCH)
            for batch, start in enumerate(starts):
                part: dict[str, object] = {"batch": batch, "last": batch + 1 == len(starts)}
                yield id_, fields | part, lines[start : start + BATCH]
        loose = self.chunks.get(None, [])
        for start in range(0, len(loose), BATCH):
            yield None, {}, loose[start : start + BATCH]


def read_export(file: Path) -> ExportedTable:
    """Reads an exported file. Raises SettingsError."""
    lines = _read_lines(file)
    head = lines[0] if lines else {}
    if head.get("format") != FORMAT:
        raise SettingsError(f"{file} is no table that antiphon knowledge export has written")
    documents: dict[str, Line] = {}
    chunks: dict[str | None, list[Line]] = {}
    for line in lines[1:]:
        document = line.get("document")
        if isinstance(document, dict):
            documents[str(document.get("id"))] = document
        else:
            owner = str(line.get("of"))
            chunks.setdefault(owner if owner in documents else None, []).append(line)
    return ExportedTable(head, documents, chunks)


def is_near(one: object, other: object) -> bool:
    """Whether two vectors in base64 are of the same model."""
    if not isinstance(one, str) or not isinstance(other, str):
        return False
    try:
        left, right = (array("f", b64decode(each, validate=True)) for each in (one, other))
    except ValueError:
        return False
    norms = math.sqrt(multiply(left, left) * multiply(right, right)) if len(left) == len(right) else 0.0
    return norms > 0 and multiply(left, right) / norms >= SAME


def multiply(left: Sequence[float], right: Sequence[float]) -> float:
    """Returns the scalar product."""
    return sum(one * other for one, other in zip(left, right, strict=True))


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
    """Returns the fields of a chunk that a server takes."""
    names = CONTENT if keeps_vectors else CONTENT[:-1]
    return {name: line[name] for name in names if line.get(name) is not None}
