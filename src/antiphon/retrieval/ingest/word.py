"""Reads the text of DOCX files as Markdown: headings, paragraphs, lists, tables, text boxes and notes.

It includes inserted text. It leaves out deleted text, headers, footers and comments. Every list item gets a
dash, because the file does not contain the numbers. A DOCX file has no pages until a program lays it out.
"""

import io
import re
from collections.abc import Iterator

import docx
from docx.document import Document
from docx.opc.constants import RELATIONSHIP_TYPE
from docx.opc.exceptions import PackageNotFoundError
from lxml import etree

from antiphon.retrieval.ingest.archives import DAMAGE_ERRORS
from antiphon.retrieval.ingest.documents import (
    DocumentFormat,
    ExtractedDocument,
    ExtractedPage,
    build_refusal,
)
from antiphon.retrieval.ingest.records import format_table

W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
MATH_TEXT = "{http://schemas.openxmlformats.org/officeDocument/2006/math}t"
FALLBACK = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"
"""A copy of the text box before it, for older programs."""

SKIPPED_ELEMENTS = frozenset(
    {FALLBACK, f"{W}del", f"{W}moveFrom", f"{W}instrText", f"{W}delText", f"{W}pPr", f"{W}sdtPr"}
)

SPACES = {f"{W}tab": "\t", f"{W}br": "\n", f"{W}cr": "\n", f"{W}noBreakHyphen": "-"}

HEADING = re.compile(r"heading ([1-6])", re.IGNORECASE)

NOTES = frozenset({RELATIONSHIP_TYPE.FOOTNOTES, RELATIONSHIP_TYPE.ENDNOTES})


def read_word(data: bytes, file_name: str) -> ExtractedDocument:
    """Returns the text of a DOCX file. Raises InvalidValue if it is damaged."""
    try:
        document = docx.Document(io.BytesIO(data))
        reader = WordReader(document)
        blocks = list(reader.list_blocks(document.element.body))
        for notes in _list_notes(document):
            blocks.extend(reader.list_blocks(notes))
        title = str(document.core_properties.title or "").strip()
    except (PackageNotFoundError, *DAMAGE_ERRORS):
        raise build_refusal(file_name, "is damaged; open it and save it again") from None
    page = ExtractedPage(_join_blocks(blocks))
    return ExtractedDocument(file_name, DocumentFormat.DOCX, (page,), title, markdown=True)


class WordReader:
    """Reads the text of one document, with its styles."""

    def __init__(self, document: Document) -> None:
        self._styles = {style.style_id: style for style in document.styles}

    def list_blocks(self, element: etree.ElementBase) -> Iterator[str]:
        """Yields the paragraphs and tables inside an element."""
        for child in element:
            if child.tag in SKIPPED_ELEMENTS:
                continue
            if child.tag == f"{W}p":
                yield from self._read_paragraph(child)
            elif child.tag == f"{W}tbl":
                yield format_table(_list_rows(child))
            else:
                yield from self.list_blocks(child)  # a content control, an insertion, a note

    def _read_paragraph(self, paragraph: etree.ElementBase) -> Iterator[str]:
        """Yields the text of a paragraph, and then the blocks of the text boxes in it."""
        boxes: list[etree.ElementBase] = []
        text = "".join(_list_texts(paragraph, boxes)).strip()
        if text:
            yield self._find_prefix(paragraph) + text
        for box in boxes:
            yield from self.list_blocks(box)

    def _find_prefix(self, paragraph: etree.ElementBase) -> str:
        """Returns the Markdown mark of a heading or list item; empty for other paragraphs."""
        name = paragraph.find(f"{W}pPr/{W}pStyle")
        style = self._styles.get(name.get(f"{W}val")) if name is not None else None
        is_list = paragraph.find(f"{W}pPr/{W}numPr") is not None
        while style is not None:
            if heading := HEADING.fullmatch(style.name or ""):
                return "#" * int(heading[1]) + " "
            if style.name == "Title":
                return "# "
            is_list = is_list or (style.name or "").startswith("List ")
            style = getattr(style, "base_style", None)
        if not is_list:
            return ""
        level = paragraph.find(f"{W}pPr/{W}numPr/{W}ilvl")
        return "  " * min(int(level.get(f"{W}val", 0)) if level is not None else 0, 8) + "- "


def _list_texts(element: etree.ElementBase, boxes: list[etree.ElementBase]) -> Iterator[str]:
    """Yields the texts inside a paragraph. Appends the text boxes in it to `boxes`."""
    for child in element:
        if child.tag in SKIPPED_ELEMENTS:
            continue
        if child.tag in {f"{W}t", MATH_TEXT}:
            yield child.text or ""
        elif child.tag in SPACES:
            yield SPACES[child.tag]
        elif child.tag == f"{W}txbxContent":
            boxes.append(child)
        else:
            yield from _list_texts(child, boxes)


def _list_rows(table: etree.ElementBase) -> Iterator[list[str]]:
    """Yields the cells of each row, without the rows of tables inside cells."""
    for row in table.iter(f"{W}tr"):
        if next(row.iterancestors(f"{W}tbl")) is table:
            cells = row.iter(f"{W}tc")
            yield [_read_cell(cell) for cell in cells if next(cell.iterancestors(f"{W}tr")) is row]


def _read_cell(cell: etree.ElementBase) -> str:
    """Returns the text of a cell, with the tables inside it, as one line."""
    texts = [
        "".join(_list_texts(paragraph, []))
        for paragraph in cell.iter(f"{W}p")
        if SKIPPED_ELEMENTS.isdisjoint(ancestor.tag for ancestor in paragraph.iterancestors())
    ]
    return " ".join(texts)


def _list_notes(document: Document) -> Iterator[etree.ElementBase]:
    """Yields the roots of the footnotes and of the endnotes."""
    parser = etree.XMLParser(resolve_entities=False, no_network=True)
    for relation in document.part.rels.values():
        if relation.reltype in NOTES and not relation.is_external:
            yield etree.fromstring(relation.target_part.blob, parser)


def _join_blocks(blocks: list[str]) -> str:
    """Joins blocks by empty lines, but items of a list by newlines."""
    previous = ""
    parts: list[str] = []
    for block in filter(None, blocks):
        is_same_list = block.lstrip().startswith("- ") and previous.lstrip().startswith("- ")
        parts.append(("\n" if is_same_list else "\n\n") + block)
        previous = block
    return "".join(parts).lstrip("\n")
