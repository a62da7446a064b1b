"""Reads the text of PDF files with PDFium, page by page. The result names pages without text, such as
scans."""

import re

import pypdfium2

from antiphon.retrieval.ingest.documents import (
    DocumentFormat,
    ExtractedDocument,
    ExtractedPage,
    ExtractionLimits,
    build_refusal,
)

HYPHEN = re.compile("[\x02\ufffe](?:\r?\n)?")
"""PDFium's mark of a hyphen that divides a word at the end of a line. It is removed to join the word."""

MAX_NAMED_PAGES = 20
"""The most pages without text whose numbers are listed."""


def read_pdf(data: bytes, file_name: str, limits: ExtractionLimits) -> ExtractedDocument:
    """Returns the text of a PDF file. Raises InvalidValue if it is encrypted, damaged or too large."""
    try:
        document = pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as problem:
        if "password" in str(problem).lower():
            raise build_refusal(file_name, "is encrypted; remove its password and send it again") from None
        raise build_refusal(file_name, "is damaged; open it and save it again") from None
    if len(document) > limits.pages:
        raise build_refusal(file_name, f"has {len(document):,} pages; the most is {limits.pages:,}: split it")
    pages: list[ExtractedPage] = []
    characters_left = limits.characters
    for number in range(1, len(document) + 1):
        text = _read_page(document, number, file_name)
        characters_left -= len(text)
        if characters_left < 0:
            raise build_refusal(
                file_name, f"has more than {limits.characters:,} characters of text; split it"
            )
        pages.append(ExtractedPage(text, number))
    title = str(document.get_metadata_dict().get("Title", "")).strip()
    return ExtractedDocument(file_name, DocumentFormat.PDF, tuple(pages), title, notes=_list_notes(pages))


def _read_page(document: pypdfium2.PdfDocument, number: int, file_name: str) -> str:
    """Returns the text of a page, which counts from 1. Raises InvalidValue if the page is damaged."""
    try:
        page = document[number - 1]
        content = page.get_textpage()
        text = str(content.get_text_bounded())
    except pypdfium2.PdfiumError:
        raise build_refusal(file_name, f"is damaged on page {number:,}; open it and save it again") from None
    content.close()  # PDFium keeps a page in memory until then
    page.close()
    return HYPHEN.sub("", text)


def _list_notes(pages: list[ExtractedPage]) -> tuple[str, ...]:
    """Returns a note about pages without text, if there are any."""
    empty_pages = [str(page.number) for page in pages if not page.text.strip()]
    if not empty_pages:
        return ()
    remainder = ", ..." if len(empty_pages) > MAX_NAMED_PAGES else ""
    page_numbers = ", ".join(empty_pages[:MAX_NAMED_PAGES]) + remainder
    return (
        f"{len(empty_pages):,} of {len(pages):,} pages have no text, perhaps because they are scanned: "
        f"{page_numbers}",
    )
