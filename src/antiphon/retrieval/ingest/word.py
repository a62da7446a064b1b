"""Reads the text of DOCX files as Markdown: headings, paragraphs, lists, tables, text boxes and notes.

It reads inserted text and leaves out deleted text, headers, footers and comments. Marks of lists are dashes,
since their numbers are not in the file. A DOCX file has no pages until a program lays it out.
"""

import io
import re
from collections.abc import Iterator

import docx
from docx.document import Document
from docx.opc.constants import RELATIONSHIP_TYPE
from docx.opc.exceptions import PackageNotFoundError
from lxml import etree

from antiphon.retrieval.ingest.archive import DAMAGED
from antiphon.retrieval.ingest.documents import DocumentFormat, ExtractedDocument, ExtractedPage, refuse
from antiphon.retrieval.ingest.tables import format_table

W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
MATH_TEXT = "{http://schemas.openxmlformats.org/officeDocument/2006/math}t"
FALLBACK = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"
"""A second form of the text box before it, for older programs."""

UNREAD = frozenset(
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
        for part in _list_note_parts(document):
            blocks.extend(reader.list_blocks(part))
        title = str(document.core_properties.title or "").strip()
    except (PackageNotFoundError, *DAMAGED):
        raise refuse(file_name, "is damaged; open it and save it again") from None
    page = ExtractedPage(_join_blocks(blocks))
    return ExtractedDocument(file_name, DocumentFormat.DOCX, (page,), title, markdown=True)


class WordReader:
    """Reads the elements of one document."""

    def __init__(self, document: Document) -> None:
        self._styles = {style.style_id: style for style in document.styles}

    def list_blocks(self, element: etree.ElementBase) -> Iterator[str]:
        """Lists the paragraphs and tables inside an element."""
        for child in element:
            if child.tag in UNREAD:
                continue
            if child.tag == f"{W}p":
                yield from self._read_paragraph(child)
            elif child.tag == f"{W}tbl":
                yield format_table(_list_rows(child))
            else:
                yield from self.list_blocks(child)  # a content control, an insertion, a note

    def _read_paragraph(self, paragraph: etree.ElementBase) -> Iterator[str]:
        """Lists the paragraph's own text and, after it, that of the text boxes in it."""
        boxes: list[etree.ElementBase] = []
        text = "".join(_list_words(paragraph, boxes)).strip()
        if text:
            yield self._find_prefix(paragraph) + text
        for box in boxes:
            yield from self.list_blocks(box)

    def _find_prefix(self, paragraph: etree.ElementBase) -> str:
        """Returns the marks of a heading or of a list item; empty for other paragraphs."""
        name = paragraph.find(f"{W}pPr/{W}pStyle")
        style = self._styles.get(name.get(f"{W}val")) if name is not None else None
        is_list = paragraph.find(f"{W}pPr/{W}numPr") is not None
        while style is not None:
            if found := HEADING.fullmatch(style.name or ""):
                return "#" * int(found[1]) + " "
            if style.name == "Title":
                return "# "
            is_list = is_list or (style.name or "").startswith("List ")
            style = getattr(style, "base_style", None)
        if not is_list:
            return ""
        level = paragraph.find(f"{W}pPr/{W}numPr/{W}ilvl")
        return "  " * min(int(level.get(f"{W}val", 0)) if level is not None else 0, 8) + "- "


def _list_words(element: etree.ElementBase, boxes: list[etree.ElementBase]) -> Iterator[str]:
    """Lists the text inside a paragraph, and puts the text boxes in it aside."""
    for child in element:
        if child.tag in UNREAD:
            continue
        if child.tag in {f"{W}t", MATH_TEXT}:
            yield child.text or ""
        elif child.tag in SPACES:
            yield SPACES[child.tag]
        elif child.tag == f"{W}txbxContent":
            boxes.append(child)
        else:
            yield from _list_words(child, boxes)


def _list_rows(table: etree.ElementBase) -> Iterator[list[str]]:
    """Lists the cells of each row."""
    for row in table.iter(f"{W}tr"):
        if next(row.iterancestors(f"{W}tbl")) is table:
            cells = row.iter(f"{W}tc")
            yield [_read_cell(cell) for cell in cells if next(cell.iterancestors(f"{W}tr")) is row]


def _read_cell(cell: etree.ElementBase) -> str:
    """Returns the paragraphs of a cell, and of the tables inside it, as one line."""
    read = (each for each in cell.iter(f"{W}p") if UNREAD.isdisjoint(up.tag for up in each.iterancestors()))
    return " ".join("".join(_list_words(paragraph, [])) for paragraph in read)


def _list_note_parts(document: Document) -> Iterator[etree.ElementBase]:
    """Lists the parts that contain footnotes and endnotes."""
    parser = etree.XMLParser(resolve_entities=False, no_network=True)
    for relation in document.part.rels.values():
        if relation.reltype in NOTES and not relation.is_external:
            yield etree.fromstring(relation.target_part.blob, parser)


def _join_blocks(blocks: list[str]) -> str:
    """Joins blocks by empty lines, and the items of a list by line ends."""
    before = ""
    parts: list[str] = []
    for block in filter(None, blocks):
        items = block.lstrip().startswith("- ") and before.lstrip().startswith("- ")
        parts.append(("\n" if items else "\n\n") + block)
        before = block
    return "".join(parts).lstrip("\n")
