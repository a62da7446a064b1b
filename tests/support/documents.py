"""Makes small documents of the formats that the extra `documents` reads: good, encrypted and hostile."""

import datetime as dt
import io
import zipfile
import zlib
from collections.abc import Sequence

import docx
import openpyxl
import pptx

WORDS = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"


def make_pdf(pages: Sequence[Sequence[str]], title: str = "", *, encrypted: bool = False) -> bytes:
    """A PDF file with the lines of each page, in characters of Latin-1."""
    contents = []
    for lines in pages:
        shown = "".join(f"({_escape(line)}) Tj 0 -14 Td " for line in lines)
        contents.append(f"BT /F1 11 Tf 72 780 Td {shown}ET".encode("latin-1"))
    return make_pdf_of(contents, title, encrypted=encrypted)


def make_pdf_of(contents: Sequence[bytes], title: str = "", *, encrypted: bool = False) -> bytes:
    """A PDF file with the content stream of each page."""
    kids = " ".join(f"{5 + 2 * number} 0 R" for number in range(len(contents)))
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        f"<</Type/Pages/Kids[{kids}]/Count {len(contents)}>>".encode(),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>",
        f"<</Title({_escape(title)})>>".encode("latin-1"),
    ]
    for number, content in enumerate(contents):
        packed, place = zlib.compress(content), 6 + 2 * number
        objects += [
            b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 595 842]/Resources<</Font<</F1 3 0 R>>>>"
            b"/Contents %d 0 R>>" % place,
            b"<</Filter/FlateDecode/Length %d>>stream\n%b\nendstream" % (len(packed), packed),
        ]
    secret = b"/Encrypt<</Filter/Standard/V 1/R 2/P -4/O<%b>/U<%b>>>/ID[<00><00>]" % (b"aa" * 32, b"bb" * 32)
    return _number_objects(objects, secret if encrypted else b"")


def make_docx() -> bytes:
    """A DOCX file with headings, lists, a table, a link, a content control, inserted and deleted text."""
    document = docx.Document()
    document.core_properties.title = "Manual"
    document.add_heading("Guide", 1)
    paragraph = document.add_paragraph("Intro with ")
    paragraph.add_run("bold").bold = True
    document.add_heading("Install", 2)
    for item in ("one", "two"):
        document.add_paragraph(item, style="List Bullet")
    table = document.add_table(2, 2)
    for cell, text in zip(table._cells, ("Name", "Age", "Ada", "36"), strict=True):
        cell.text = text
    for inner in (
        "<w:ins><w:r><w:t>inserted</w:t></w:r></w:ins>"
        "<w:del><w:r><w:delText>deleted</w:delText></w:r></w:del>",
        "<w:hyperlink><w:r><w:t>linked</w:t></w:r></w:hyperlink>",
        "<w:r><w:pict><w:txbxContent><w:p><w:r><w:t>boxed</w:t></w:r></w:p></w:txbxContent></w:pict></w:r>",
    ):
        _append(document, f'<w:p xmlns:w="{WORDS}">{inner}</w:p>')
    control = "<w:sdtContent><w:p><w:r><w:t>controlled</w:t></w:r></w:p></w:sdtContent>"
    _append(document, f'<w:sdt xmlns:w="{WORDS}">{control}</w:sdt>')
    return _save(document)


def make_pptx() -> bytes:
    """A PPTX file of two slides: text at two levels, a table and notes; a slide that is empty."""
    presentation = pptx.Presentation()
    presentation.core_properties.title = "Talk"
    slide = presentation.slides.add_slide(presentation.slide_layouts[1])
    slide.shapes.title.text = "First slide"
    frame = slide.placeholders[1].text_frame
    frame.text = "point"
    below = frame.add_paragraph()
    below.text, below.level = "below", 1
    table = slide.shapes.add_table(2, 1, 0, 0, 100, 100).table
    table.cell(0, 0).text, table.cell(1, 0).text = "Head", "Cell"
    group = slide.shapes.add_group_shape()
    group.shapes.add_textbox(0, 0, 10, 10).text_frame.text = "grouped"
    slide.notes_slide.notes_text_frame.text = "said aloud"
    presentation.slides.add_slide(presentation.slide_layouts[6])
    return _save(presentation)


def make_xlsx() -> bytes:
    """An XLSX file of two sheets: texts, a date, a number, a truth value, a formula without its value."""
    book = openpyxl.Workbook()
    book.properties.title = "Book"
    sheet = book.active
    sheet.title = "People"
    sheet.append(["Name", "Born", "Score", "Member", "Sum"])
    sheet.append(["Ada", dt.date(1915, 12, 10), 1.5, True, "=1+1"])
    sheet.append(["Grace", None, 2])
    book.create_sheet("Other")["B3"] = "far cell"
    return _save(book)


def replace_part(data: bytes, name: str, content: bytes) -> bytes:
    """An archive with another content of one part."""
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(data)) as source,
        zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as target,
    ):
        for part in source.namelist():
            target.writestr(part, content if part == name else source.read(part))
    return buffer.getvalue()


def make_docx_of(body: str) -> bytes:
    """A DOCX file with the XML of its body."""
    content = f'<w:document xmlns:w="{WORDS}"><w:body>{body}</w:body></w:document>'.encode()
    return replace_part(_save(docx.Document()), "word/document.xml", content)


def lie_about_size(data: bytes, name: str, size: int) -> bytes:
    """An archive whose directory gives a false size of one part."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        part = archive.getinfo(name)
        local = part.header_offset
        true_size = part.file_size.to_bytes(4, "little")
        central = data.rindex(name.encode(), archive.start_dir) - 46
    changed = bytearray(data)
    for place in (local + 22, central + 24):
        assert changed[place : place + 4] == true_size
        changed[place : place + 4] = size.to_bytes(4, "little")
    return bytes(changed)


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)")


def _number_objects(objects: Sequence[bytes], trailer: bytes) -> bytes:
    data = b"%PDF-1.4\n"
    offsets = []
    for number, content in enumerate(objects, 1):
        offsets.append(len(data))
        data += b"%d 0 obj\n%b\nendobj\n" % (number, content)
    start = len(data)
    data += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    data += b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    head = b"trailer<</Size %d/Root 1 0 R/Info 4 0 R%b>>" % (len(objects) + 1, trailer)
    return data + head + b"\nstartxref\n%d\n%%%%EOF" % start


def _append(document, xml: str) -> None:
    from docx.oxml import parse_xml

    document.element.body.insert(
        len(document.element.body) - 1, parse_xml(xml)
    )  # before the section's settings


def _save(document) -> bytes:
    buffer = io.BytesIO()
    document.save(buffer)
    return buffer.getvalue()
