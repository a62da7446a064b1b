"""Documents of ingest: their formats and limits, the extracted text, and the check of a file's format.

The name or the media type tells the format. A file whose content has another format is refused.
"""

import io
import zipfile
from email.message import Message
from encodings import normalize_encoding
from encodings.aliases import aliases
from enum import StrEnum
from importlib.util import find_spec

from antiphon.domain.values import Struct, field
from antiphon.errors import InvalidValue, UnsupportedMediaType, explain_extra

FIELD = "file"
"""The request field in errors about a document."""

MAX_SHOWN_NAME = 200
"""The most characters of a file's name in an error."""

MEBIBYTE = 1 << 20


OFFICE = "application/vnd.openxmlformats-officedocument."

CODECS = frozenset(
    "ascii utf_8 utf_8_sig utf_16 utf_16_le utf_16_be utf_32 utf_32_le utf_32_be latin_1 "
    "iso8859_1 iso8859_2 iso8859_3 iso8859_4 iso8859_5 iso8859_6 iso8859_7 iso8859_8 iso8859_9 iso8859_10 "
    "iso8859_11 iso8859_13 iso8859_14 iso8859_15 iso8859_16 "
    "cp1250 cp1251 cp1252 cp1253 cp1254 cp1255 cp1256 cp1257 cp1258 cp874 tis_620 "
    "cp437 cp850 cp852 cp866 koi8_r koi8_u mac_roman mac_cyrillic "
    "gb2312 gbk gb18030 hz big5 big5hkscs cp950 "
    "shift_jis shift_jis_2004 cp932 euc_jp euc_jis_2004 iso2022_jp iso2022_jp_2 iso2022_jp_ext "
    "euc_kr cp949 johab iso2022_kr".split()
)
"""Python's codecs of text. Each decodes in linear time. Python has others, which are no encodings of text
(rot13), or need quadratic time (punycode)."""

PDF_HEADER = b"%PDF-"

PDF_HEADER_SPAN = 1024
"""A PDF's header must begin in this many first bytes. PDF readers accept other bytes before it."""

OLE_HEADER = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
"""The first bytes of Office files before 2007, and of encrypted newer ones."""

ENCRYPTED_PACKAGE = "EncryptedPackage".encode("utf-16-le")

DAMAGED_ARCHIVE = "a damaged archive"

UNREAD_SIGNATURES: tuple[tuple[bytes, str], ...] = (
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF87a", "a GIF image"),
    (b"GIF89a", "a GIF image"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"\xfd7zXZ\x00", "an xz archive"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"Rar!\x1a\x07", "a RAR archive"),
    (b"\x7fELF", "a program"),
    (b"{\\rtf", "an RTF document"),
    (b"%!PS", "a PostScript document"),
)
"""The first bytes of common formats that ingest does not read."""


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
    """CPU seconds of a file of a binary format."""
    text_cpu_seconds: float = 30.0
    """CPU seconds of a file of a text format. A page of HTML of 16 MiB needs about five."""
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


F = DocumentFormat

EXTENSIONS: dict[str, DocumentFormat] = {
    "txt": F.TEXT,
    "text": F.TEXT,
    "log": F.TEXT,
    "md": F.MARKDOWN,
    "markdown": F.MARKDOWN,
    "html": F.HTML,
    "htm": F.HTML,
    "xhtml": F.HTML,
    "csv": F.CSV,
    "tsv": F.TSV,
    "json": F.JSON,
    "jsonl": F.JSON_LINES,
    "ndjson": F.JSON_LINES,
    "pdf": F.PDF,
    "docx": F.DOCX,
    "pptx": F.PPTX,
    "xlsx": F.XLSX,
}

MEDIA_TYPES: dict[str, DocumentFormat] = {
    "text/plain": F.TEXT,
    "text/markdown": F.MARKDOWN,
    "text/x-markdown": F.MARKDOWN,
    "text/html": F.HTML,
    "application/xhtml+xml": F.HTML,
    "text/csv": F.CSV,
    "text/tab-separated-values": F.TSV,
    "application/json": F.JSON,
    "application/jsonl": F.JSON_LINES,
    "application/x-ndjson": F.JSON_LINES,
    "application/pdf": F.PDF,
    OFFICE + "wordprocessingml.document": F.DOCX,
    OFFICE + "presentationml.presentation": F.PPTX,
    OFFICE + "spreadsheetml.sheet": F.XLSX,
}

LIBRARIES = {F.PDF: "pypdfium2", F.DOCX: "docx", F.PPTX: "pptx", F.XLSX: "openpyxl"}
"""The library of the extra `documents` that reads each format. Other formats need no library."""

OFFICE_PARTS = {
    "word/document.xml": F.DOCX,
    "ppt/presentation.xml": F.PPTX,
    "xl/workbook.xml": F.XLSX,
}
"""The part of the archive that identifies each kind of Office file."""


def detect_format(data: bytes, file_name: str, media_type: str = "") -> DocumentFormat:
    """Returns the format of a file by its name. If the name has no known extension, uses the media type.

    Raises UnsupportedMediaType for an unknown format. Raises InvalidValue if the content has another format,
    or if the file is encrypted or empty.
    """
    file_format = find_format(file_name, media_type)
    if not data:
        raise build_refusal(file_name, "is empty; send a file that has text")
    if file_format is F.PDF and PDF_HEADER in data[:PDF_HEADER_SPAN]:
        return file_format
    content_format = _identify_content(data, file_name)
    expected_format = str(file_format) if file_format in BINARY_FORMATS else None
    if content_format == expected_format:
        return file_format
    if content_format in {None, DAMAGED_ARCHIVE}:
        raise build_refusal(
            file_name, f"is not a {file_format} file, or it is damaged; open it and save it again"
        )
    raise build_refusal(
        file_name,
        f"says that it is {file_format}, but its content is {content_format}; rename it or convert it",
    )


def find_format(file_name: str, media_type: str = "") -> DocumentFormat:
    """Returns the format of a file by its name or media type. Raises UnsupportedMediaType for an unknown
    format, and InvalidValue if name and media type contradict each other."""
    essence = media_type.partition(";")[0].strip().lower()
    _, dot, extension = file_name.rpartition(".")
    name_format = EXTENSIONS.get(extension.lower()) if dot else None
    type_format = MEDIA_TYPES.get(essence)
    is_contradiction = name_format is not None and type_format is not None and name_format is not type_format
    if is_contradiction and {name_format, type_format} & BINARY_FORMATS:
        raise build_refusal(
            file_name, f"has the media type of {type_format}; send it with the media type of {name_format}"
        )
    found_format = name_format or type_format
    if found_format is None:
        raise UnsupportedMediaType(
            f"{shorten_name(file_name)} is of a type that cannot be read; send one of "
            f"{', '.join(EXTENSIONS)}",
            param=FIELD,
        )
    return found_format


def list_media_types() -> tuple[str, ...]:
    """Returns the media types of the formats whose libraries are installed."""
    return tuple(name for name, file_format in MEDIA_TYPES.items() if has_library(file_format))


def has_library(file_format: DocumentFormat) -> bool:
    """Whether this server can read a format."""
    library = LIBRARIES.get(file_format)
    return library is None or find_spec(library) is not None


def require_readable(file_name: str, media_type: str = "") -> None:
    """Raises UnsupportedMediaType or InvalidValue if this server cannot read files with this name, media type
    and charset."""
    file_format = find_format(file_name, media_type)
    require_extra(file_format, file_name)
    if file_format not in BINARY_FORMATS and (charset := parse_charset(media_type)):
        find_codec(charset, file_name)


def parse_charset(media_type: str) -> str:
    """Returns the charset of a media type such as `text/plain; charset=latin-1`; empty if there is none."""
    header = Message()
    header["content-type"] = media_type.replace("\r", " ").replace("\n", " ")
    return str(header.get_content_charset(""))


def find_codec(charset: str, file_name: str) -> str:
    """Returns Python's codec of a charset. Raises InvalidValue for one that this server does not read.
    Python's own search is not used, because it remembers every name that callers make up."""
    name = normalize_encoding(charset).lower() if charset.isascii() else ""
    codec = aliases.get(name, name)
    if codec not in CODECS:
        shown_charset = shorten_name(charset[:40])
        raise build_refusal(file_name, f"has the unknown charset {shown_charset}; save it as UTF-8")
    return codec


def require_extra(file_format: DocumentFormat, file_name: str) -> None:
    """Raises UnsupportedMediaType if the library for a format is not installed."""
    if not has_library(file_format):
        raise UnsupportedMediaType(
            f"{shorten_name(file_name)} is {file_format}, which this server cannot read yet; its operator "
            f"installs the readers: {explain_extra('documents')}",
            param=FIELD,
        )


def _identify_content(data: bytes, file_name: str) -> str | None:
    """Returns the format of the content in words. Returns None if the first bytes identify no format, as in
    text files. Raises InvalidValue for an encrypted Office file."""
    if data.startswith(PDF_HEADER):
        return str(F.PDF)
    if data.startswith(b"PK\x03\x04"):
        return _identify_archive(data)
    if data.startswith(OLE_HEADER):
        if ENCRYPTED_PACKAGE in data:
            raise build_refusal(file_name, "is encrypted; remove its password and send it again")
        return "an Office file from before 2007"
    return next((name for signature, name in UNREAD_SIGNATURES if data.startswith(signature)), None)


def _identify_archive(data: bytes) -> str:
    """Returns the Office format of a ZIP archive, in words. Reads only the archive's directory."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return DAMAGED_ARCHIVE
    return next((str(kind) for part, kind in OFFICE_PARTS.items() if part in names), "a ZIP archive")
