"""The sandbox's job that reads the text of one document. `document_reader` runs `run_reading` in a sandbox.

It imports the reader of a binary format only for a file of that format. It never guesses the encoding of a
text file. The encoding is that of the byte order mark, or the one that the caller or the file declares, or
UTF-8.
"""

import codecs
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from antiphon.domain.values import asdict, replace
from antiphon.retrieval.ingest.archives import require_safe_archive
from antiphon.retrieval.ingest.documents import (
    BINARY_FORMATS,
    DEFAULT_LIMITS,
    DocumentFormat,
    ExtractedDocument,
    ExtractedPage,
    ExtractionLimits,
    build_refusal,
    detect_format,
    find_codec,
    parse_charset,
    require_extra,
)
from antiphon.retrieval.ingest.html_text import read_html
from antiphon.retrieval.ingest.records import read_csv, read_json, read_json_lines

BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16, whose mark begins the same
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)

DECLARATION_SPAN = 1024
"""An HTML page must declare its encoding in this many first bytes."""

DECLARATION = re.compile(
    rb"<meta[^>]{0,200}?charset\s{0,10}=\s{0,10}[\"']?\s{0,10}([\w:.-]{1,40})", re.IGNORECASE
)

REFUSED_CHARACTERS = re.compile("[\ud800-\udfff\x00]")
"""Characters that databases refuse in text: lone surrogates and null."""


def decode_text(data: bytes, file_name: str, charset: str = "") -> str:
    """Returns the text of a file without its byte order mark. `charset`: the declared encoding, if any.

    Raises InvalidValue for bytes that are not text in that encoding.
    """
    for mark, encoding in BYTE_ORDER_MARKS:
        if data.startswith(mark):
            return _decode_strictly(data[len(mark) :], encoding, file_name)
    return _decode_strictly(data, charset or "utf-8", file_name)


def find_html_charset(data: bytes) -> str:
    """Returns the encoding that an HTML page declares; empty if it declares none."""
    declared = DECLARATION.search(data[:DECLARATION_SPAN])
    name = declared.group(1).decode("ascii", "replace").lower() if declared else ""
    # The declaration was read as ASCII, so a page that declares UTF-16 is not UTF-16.
    return "utf-8" if name.startswith("utf-16") else name


def clean_text(text: str) -> str:
    """Converts newlines to `\\n`, replaces lone surrogates, and removes null characters."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return REFUSED_CHARACTERS.sub(lambda match: "" if match.group() == "\x00" else "\ufffd", text)


def _decode_strictly(data: bytes, encoding: str, file_name: str) -> str:
    """Decodes all bytes or raises InvalidValue."""
    codec = find_codec(encoding, file_name)
    try:
        text = data.decode(codec)
    except UnicodeDecodeError as problem:
        position = f"at byte {problem.start:,}" if problem.start < len(data) else "at its end"
        raise build_refusal(
            file_name,
            f"is not {encoding} text {position}; save it as UTF-8, or name its charset in the media type",
        ) from None
    if "\0" in text:
        raise build_refusal(file_name, "holds null bytes, so it is not text; save it as UTF-8 text")
    return text


FORBIDDEN = frozenset(
    "os.exec os.fork os.forkpty os.posix_spawn os.system subprocess.Popen "
    "socket.__new__ socket.getaddrinfo".split()
)
"""Python's audit events of processes and connections. Reading a document never needs them."""


def run_reading(payload: Mapping[str, object]) -> dict[str, object]:
    """Reads a document as a job of the sandbox. `payload`: `path`, `file_name`, `media_type` and `limits`.

    A document can be hostile, so the job opens no connection and starts no process. Returns the fields of an
    ExtractedDocument. Raises InvalidValue or UnsupportedMediaType.
    """
    limit_values = payload["limits"]
    if not isinstance(limit_values, dict):
        raise TypeError("the job has no limits")
    limits = ExtractionLimits(**limit_values)
    with Path(str(payload["path"])).open("rb") as file:
        data = file.read(limits.file_bytes + 1)  # one byte more than allowed is enough to refuse the file
    sys.addaudithook(_refuse_event)
    name, media_type = str(payload["file_name"]), str(payload["media_type"])
    return asdict(read_document(data, name, media_type, limits))


def _refuse_event(event: str, _: object) -> None:
    """Refuses connections and processes. An audit hook stays until the process ends."""
    if event in FORBIDDEN:
        raise PermissionError(f"a document's reader may not do {event}")


def read_document(
    data: bytes, file_name: str, media_type: str = "", limits: ExtractionLimits = DEFAULT_LIMITS
) -> ExtractedDocument:
    """Returns the text of a document. Raises InvalidValue or UnsupportedMediaType, with one sentence that
    names the file and the remedy."""
    if len(data) > limits.file_bytes:
        raise build_refusal(file_name, f"has more than {limits.file_bytes:,} bytes; split it")
    file_format = detect_format(data, file_name, media_type)
    if file_format in BINARY_FORMATS:
        document = _read_binary(data, file_name, file_format, limits)
    else:
        text = decode_text(data, file_name, _choose_charset(file_format, data, media_type))
        document = _read_text(clean_text(text), file_name, file_format)
    document = replace(
        document, pages=tuple(replace(page, text=clean_text(page.text)) for page in document.pages)
    )
    _require_text(document, limits)
    return document


def _read_binary(
    data: bytes, file_name: str, file_format: DocumentFormat, limits: ExtractionLimits
) -> ExtractedDocument:
    """Reads a document with a library of the extra `documents`. Imports the library only if it is needed."""
    require_extra(file_format, file_name)
    if file_format is DocumentFormat.PDF:
        from antiphon.retrieval.ingest.pdf import read_pdf

        return read_pdf(data, file_name, limits)
    require_safe_archive(data, file_name, limits)
    if file_format is DocumentFormat.DOCX:
        from antiphon.retrieval.ingest.word import read_word

        return read_word(data, file_name)
    if file_format is DocumentFormat.PPTX:
        from antiphon.retrieval.ingest.slides import read_slides

        return read_slides(data, file_name, limits)
    from antiphon.retrieval.ingest.sheets import read_sheets

    return read_sheets(data, file_name, limits)


def _choose_charset(file_format: DocumentFormat, data: bytes, media_type: str) -> str:
    """Returns the declared encoding: the caller's, or the HTML page's own."""
    charset = parse_charset(media_type)
    return charset or (find_html_charset(data) if file_format is DocumentFormat.HTML else "")


def _read_text(text: str, file_name: str, file_format: DocumentFormat) -> ExtractedDocument:
    """Reads a document of a text format."""
    title, markdown = "", False
    match file_format:
        case DocumentFormat.HTML:
            markdown = True
            try:
                title, text = read_html(text)
            except ValueError:
                raise build_refusal(
                    file_name, "is not HTML that can be read; mend it, or send it as text"
                ) from None
        case DocumentFormat.MARKDOWN:
            markdown = True
        case DocumentFormat.CSV | DocumentFormat.TSV:
            text = read_csv(text, file_name, "\t" if file_format is DocumentFormat.TSV else "")
        case DocumentFormat.JSON:
            text = read_json(text, file_name)
        case DocumentFormat.JSON_LINES:
            text = read_json_lines(text, file_name)
    return ExtractedDocument(file_name, file_format, (ExtractedPage(text),), title, markdown)


def _require_text(document: ExtractedDocument, limits: ExtractionLimits) -> None:
    """Raises InvalidValue for a document without text, or with too much text."""
    size = sum(len(page.text) for page in document.pages)
    if size > limits.characters:
        raise build_refusal(
            document.file_name,
            f"has {size:,} characters of text; the most is {limits.characters:,}: split it",
        )
    if all(not page.text.strip() for page in document.pages):
        raise build_refusal(
            document.file_name, "has no text; if it is scanned, have its text recognized first"
        )
