"""Reads the text of PPTX files: one page for each slide, with its title, its tables and its speaker's notes.
Text in charts and in SmartArt is left out."""

import io
from collections.abc import Iterable, Iterator

import pptx
from pptx.exc import PackageNotFoundError, PythonPptxError
from pptx.shapes.autoshape import Shape
from pptx.shapes.base import BaseShape
from pptx.shapes.graphfrm import GraphicFrame
from pptx.shapes.group import GroupShape
from pptx.slide import Slide
from pptx.text.text import TextFrame, _Paragraph

from antiphon.retrieval.ingest.archives import DAMAGE_ERRORS
from antiphon.retrieval.ingest.documents import (
    DocumentFormat,
    ExtractedDocument,
    ExtractedPage,
    ExtractionLimits,
    build_refusal,
)
from antiphon.retrieval.ingest.records import format_table


def read_slides(data: bytes, file_name: str, limits: ExtractionLimits) -> ExtractedDocument:
    """Returns the text of a PPTX file. Raises InvalidValue if it is damaged or has too many slides."""
    try:
        presentation = pptx.Presentation(io.BytesIO(data))
        slides = list(presentation.slides)
        if len(slides) > limits.pages:
            raise build_refusal(
                file_name, f"has {len(slides):,} slides; the most is {limits.pages:,}: split it"
            )
        pages = tuple(_read_slide(slide, number) for number, slide in enumerate(slides, 1))
        title = (presentation.core_properties.title or "").strip()
    except (PackageNotFoundError, PythonPptxError, *DAMAGE_ERRORS):
        raise build_refusal(file_name, "is damaged; open it and save it again") from None
    return ExtractedDocument(file_name, DocumentFormat.PPTX, pages, title, markdown=True)


def _read_slide(slide: Slide, number: int) -> ExtractedPage:
    """Returns the text of a slide, with its title as a heading."""
    heading = slide.shapes.title
    title = " ".join(heading.text_frame.text.split()) if heading is not None else ""
    heading_id = heading.shape_id if heading is not None else None
    blocks = [f"# {title}" if title else ""]
    blocks.extend(_list_blocks(shape for shape in slide.shapes if shape.shape_id != heading_id))
    if slide.has_notes_slide and (notes := slide.notes_slide.notes_text_frame) is not None:
        notes_text = _read_frame(notes)
        blocks.append(f"Notes: {notes_text}" if notes_text else "")
    return ExtractedPage("\n\n".join(filter(None, blocks)), number, title)


def _list_blocks(shapes: Iterable[BaseShape]) -> Iterator[str]:
    """Yields the texts and tables of shapes, also of the shapes in groups."""
    for shape in shapes:
        if isinstance(shape, GroupShape):
            yield from _list_blocks(shape.shapes)
        elif isinstance(shape, GraphicFrame) and shape.has_table:
            yield format_table([cell.text for cell in row.cells] for row in shape.table.rows)
        elif isinstance(shape, Shape):
            yield _read_frame(shape.text_frame)


def _read_frame(frame: TextFrame) -> str:
    """Returns the paragraphs of a text frame, one in each line."""
    return "\n".join(filter(None, map(_read_paragraph, frame.paragraphs)))


def _read_paragraph(paragraph: _Paragraph) -> str:
    """Returns a paragraph. Below the first level, it becomes a list item with a dash."""
    text = paragraph.text.replace("\v", "\n").strip()
    return "  " * (paragraph.level - 1) + f"- {text}" if text and paragraph.level else text
