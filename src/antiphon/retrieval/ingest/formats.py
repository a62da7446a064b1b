"""Finds a file's format by its name or media type. Refuses a file if its content has another format."""

import io
import zipfile
from importlib.util import find_spec

from antiphon.errors import UnsupportedMediaType, explain_extra
from antiphon.retrieval.ingest.documents import (
    BINARY_FORMATS,
    FIELD,
    DocumentFormat,
    build_refusal,
    shorten_name,
)

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

OFFICE = "application/vnd.openxmlformats-officedocument."

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

PDF_HEADER = b"%PDF-"

PDF_HEADER_SPAN = 1024
"""A PDF's header must begin in this many first bytes. PDF readers accept other bytes before it."""

DAMAGED_ARCHIVE = "a damaged archive"

OLE_HEADER = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
"""The first bytes of Office files before 2007, and of encrypted newer ones."""

ENCRYPTED_PACKAGE = "EncryptedPackage".encode("utf-16-le")

OFFICE_PARTS = {
    "word/document.xml": F.DOCX,
    "ppt/presentation.xml": F.PPTX,
    "xl/workbook.xml": F.XLSX,
}
"""The part of the archive that identifies each kind of Office file."""

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
    """Raises UnsupportedMediaType or InvalidValue if this server cannot read files with this name and media
    type."""
    require_extra(find_format(file_name, media_type), file_name)


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
