"""Reads the text of XLSX files: one page for each sheet. The rows of a sheet are records. The first row with
text contains the names of the columns. A formula has the value that was saved with it, if there is one."""

import io
from datetime import date, datetime, time

import openpyxl
from openpyxl.utils.exceptions import InvalidFileException

from antiphon.retrieval.ingest.archives import DAMAGE_ERRORS
from antiphon.retrieval.ingest.documents import (
    DocumentFormat,
    ExtractedDocument,
    ExtractedPage,
    ExtractionLimits,
    build_refusal,
)
from antiphon.retrieval.ingest.records import format_records


def read_sheets(data: bytes, file_name: str, limits: ExtractionLimits) -> ExtractedDocument:
    """Returns the text of an XLSX file. Raises InvalidValue if it is damaged or too large."""
    try:
        book = openpyxl.load_workbook(io.BytesIO(data), read_only=True, data_only=True, keep_links=False)
        if len(book.worksheets) > limits.pages:
            raise build_refusal(
                file_name, f"has {len(book.worksheets):,} sheets; the most is {limits.pages:,}: split it"
            )
        pages = []
        for number, sheet in enumerate(book.worksheets, 1):
            rows = ([_format_value(value) for value in row] for row in sheet.iter_rows(values_only=True))
            pages.append(ExtractedPage(format_records(rows), number, str(sheet.title)))
        title = str(book.properties.title or "").strip()
    except (InvalidFileException, *DAMAGE_ERRORS):
        raise build_refusal(file_name, "is damaged; open it and save it again") from None
    return ExtractedDocument(file_name, DocumentFormat.XLSX, tuple(pages), title)


def _format_value(value: object) -> str:
    """Returns a cell's value as text. A date with the time 0:00 becomes a date without a time."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, datetime):
        return value.date().isoformat() if value.time() == time() else value.isoformat(" ")
    if isinstance(value, date | time):
        return value.isoformat()
    return str(value)
