"""Types of ingest: formats, limits, and the text of a document, page by page."""

from enum import StrEnum

from antiphon.domain.values import Struct, field
from antiphon.errors import InvalidValue

FIELD = "file"
"""The request field in errors about a document."""

MAX_SHOWN_NAME = 200
"""The most characters of a file's name in an error."""

MEBIBYTE = 1 << 20


class DocumentFormat(StrEnum):
    """A kind of file that ingest reads."""

    TEXT = "text"
    MARKDOWN = "Markdown"
    HTML = "HTML"
    CSV = "CSV"
    TSV = "TSV"
    JSON = "JSON"
    JSON_LINES = "JSON Lines"
    PDF = "PDF"
    DOCX = "DOCX"
    PPTX = "PPTX"
    XLSX = "XLSX"


BINARY_FORMATS = frozenset(
    {DocumentFormat.PDF, DocumentFormat.DOCX, DocumentFormat.PPTX, DocumentFormat.XLSX}
)
"""Formats that need the extra `documents`. All other formats are text."""


class ExtractionLimits(Struct, frozen=True):
    """Limits of reading one document."""

    file_bytes: int = 64 * MEBIBYTE
    """The most bytes of the file."""
    unpacked_bytes: int = 256 * MEBIBYTE
    """The most bytes of everything inside the file after it is unpacked."""
    pages: int = 5_000
    """The most pages, slides or sheets."""
    characters: int = 16 * MEBIBYTE
    """The most characters of the document's text."""
    cpu_seconds: float = 120.0
    """CPU seconds."""
    wall_seconds: float = 600.0
    """Seconds of wall clock. The limit is higher than the CPU time, because a machine can be busy."""
    memory_bytes: int = 1024 * MEBIBYTE
    """Bytes of address space of the process that reads the document."""


DEFAULT_LIMITS = ExtractionLimits()


class ExtractedPage(Struct, frozen=True):
    """The text of one page, slide or sheet. A document without pages has one page without a number."""

    text: str
    number: int | None = None
    """From 1."""
    title: str = ""
    """The slide's title or the sheet's name; empty for other formats."""


class ExtractedDocument(Struct, frozen=True):
    """The text of one document. At least one page has text that is not blank."""

    file_name: str
    format: DocumentFormat
    pages: tuple[ExtractedPage, ...]
    title: str = ""
    """The document's own title; empty if it has none."""
    markdown: bool = False
    """Whether the pages are Markdown. Then headings and lists can be recognized."""
    notes: tuple[str, ...] = field(default=())
    """What could not be read, one sentence each, for example pages without text."""


def shorten_name(file_name: str) -> str:
    """Returns a file's name for an error: short, printable and in quotes."""
    printable = "".join(letter if letter.isprintable() else "?" for letter in file_name)
    return f"'{printable[:MAX_SHOWN_NAME]}'"


def build_refusal(file_name: str, problem: str) -> InvalidValue:
    """Returns the error for a document that cannot be read. `problem`: the rest of the sentence after the
    file's name."""
    return InvalidValue(f"{shorten_name(file_name)} {problem}", param=FIELD)
