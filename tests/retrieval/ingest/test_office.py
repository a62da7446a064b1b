"""PDF, DOCX, PPTX and XLSX files: their text comes back, and bad ones are refused in one sentence."""

import io
import os
import zipfile

import pytest

from antiphon.domain.values import replace
from antiphon.errors import InvalidValue, UnsupportedMediaType
from antiphon.retrieval.ingest import archives, documents
from antiphon.retrieval.ingest.document_reader import extract
from antiphon.retrieval.ingest.documents import DEFAULT_LIMITS, ExtractedPage, require_readable
from antiphon.retrieval.ingest.reading_job import read_document
from tests.support.documents import (
    lie_about_size,
    make_docx,
    make_docx_of,
    make_pdf,
    make_pdf_of,
    make_pptx,
    make_xlsx,
    replace_part,
)
from tests.support.processes import descendants

WORD_TEXT = """# Guide

Intro with bold

## Install

- one
- two

| Name | Age |
| --- | --- |
| Ada | 36 |

inserted

linked

boxed

controlled"""

COMPATIBILITY = "http://schemas.openxmlformats.org/markup-compatibility/2006"

SLIDE_TEXT = """# First slide

point
- below

| Head |
| --- |
| Cell |

grouped

Notes: said aloud"""

PEOPLE = """Name: Ada
Born: 1915-12-10
Score: 1.5
Member: TRUE

Name: Grace
Score: 2"""


def test_a_pdf_has_numbered_pages_and_a_title():
    read = read_document(make_pdf([["Hello", "world (one)"], [], ["Grüße"]], "Report"), "a.pdf")
    assert read.pages == (
        ExtractedPage("Hello\nworld (one)", 1),
        ExtractedPage("", 2),
        ExtractedPage("Grüße", 3),
    )
    assert read.title == "Report"
    assert read.notes == ("1 of 3 pages have no text, perhaps because they are scanned: 2",)


def test_a_word_file_becomes_markdown():
    read = read_document(make_docx(), "a.docx")
    assert read.pages == (ExtractedPage(WORD_TEXT),)
    assert (read.title, read.markdown) == ("Manual", True)


def test_a_table_in_a_cell_and_two_forms_of_a_box_are_read_once():
    inner = "<w:tbl><w:tr><w:tc><w:p><w:r><w:t>deep|</w:t></w:r></w:p></w:tc></w:tr></w:tbl>"
    box = "<w:txbxContent><w:p><w:r><w:t>box</w:t></w:r></w:p></w:txbxContent>"
    cells = (f"<w:p><w:r><w:t>own</w:t></w:r></w:p>{inner}", f"<w:p><w:r>{make_two_forms(box)}</w:r></w:p>")
    row = "".join(f"<w:tc>{cell}</w:tc>" for cell in cells)
    body = f"<w:tbl><w:tr>{row}</w:tr></w:tbl><w:p><w:r>{make_two_forms(box)}<w:t>end</w:t></w:r></w:p>"
    read = read_document(make_docx_of(body), "a.docx")
    assert read.pages[0].text == "| own deep\\| | box |\n| --- | --- |\n\nend\n\nbox"


def test_slides_have_titles_tables_and_notes():
    read = read_document(make_pptx(), "a.pptx")
    assert read.pages == (ExtractedPage(SLIDE_TEXT, 1, "First slide"), ExtractedPage("", 2))
    assert (read.title, read.markdown) == ("Talk", True)


def test_sheets_become_records():
    read = read_document(make_xlsx(), "a.xlsx")
    assert read.pages == (ExtractedPage(PEOPLE, 1, "People"), ExtractedPage("far cell", 2, "Other"))
    assert (read.title, read.markdown) == ("Book", False)


PARAGRAPH = f"<w:p><w:r><w:t>{'a' * 40}</w:t></w:r></w:p>"
ENTITIES = b'<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>'


def make_two_forms(inner: str) -> str:
    """A text box in the form of today's programs, and again in that of older ones."""
    forms = "".join(f"<mc:{kind}>{inner}</mc:{kind}>" for kind in ("Choice", "Fallback"))
    return f'<mc:AlternateContent xmlns:mc="{COMPATIBILITY}">{forms}</mc:AlternateContent>'


def make_encrypted_docx() -> bytes:
    data = bytearray(make_docx())
    data[data.rindex(b"PK\x01\x02") + 8] |= 1  # the flag of the last part
    return bytes(data)


@pytest.mark.parametrize(
    ("name", "make", "limits", "words"),
    [
        ("a.pdf", lambda: make_pdf([["x"]], encrypted=True), {}, "is encrypted; remove its password"),
        (
            "a.pdf",
            lambda: make_pdf([[]]),
            {},
            "has no text; if it is scanned, have its text recognized first",
        ),
        ("a.pdf", lambda: b"%PDF-1.7 nothing", {}, "is damaged; open it and save it again"),
        ("a.pdf", lambda: make_pdf([["x"]] * 3), {"pages": 2}, "has 3 pages; the most is 2: split it"),
        (
            "a.pdf",
            lambda: make_pdf([["x" * 50]] * 3),
            {"characters": 90},
            "has more than 90 characters of text",
        ),
        ("a.docx", make_encrypted_docx, {}, "is encrypted; remove its password"),
        ("a.docx", lambda: make_docx_of(""), {}, "has no text"),
        (
            "a.docx",
            lambda: make_docx_of(PARAGRAPH * 50_000),
            {"unpacked_bytes": 1 << 20},
            "unpacks to more than 1 MiB",
        ),
        ("a.docx", lambda: replace_part(make_docx(), "word/document.xml", ENTITIES), {}, "declares entities"),
        ("a.docx", lambda: replace_part(make_docx(), "word/document.xml", b"<a><b></a>"), {}, "is damaged"),
        ("a.docx", lambda: replace_part(make_docx(), "[Content_Types].xml", b""), {}, "is damaged"),
        (
            "a.docx",
            lambda: lie_about_size(make_docx_of(PARAGRAPH * 99), "word/document.xml", 9),
            {},
            "is damaged",
        ),
        ("a.pptx", lambda: replace_part(make_pptx(), "ppt/presentation.xml", b"<a/>"), {}, "is damaged"),
        ("a.pptx", make_pptx, {"pages": 1}, "has 2 slides; the most is 1"),
        ("a.xlsx", lambda: replace_part(make_xlsx(), "xl/worksheets/sheet1.xml", b"<a><"), {}, "is damaged"),
        ("a.xlsx", make_xlsx, {"pages": 1}, "has 2 sheets; the most is 1"),
    ],
)
def test_a_bad_file_is_refused_in_one_sentence(name, make, limits, words):
    with pytest.raises(InvalidValue) as raised:
        read_document(make(), name, "", replace(DEFAULT_LIMITS, **limits))
    assert words in raised.value.message and raised.value.message.startswith(f"'{name}' ")


@pytest.mark.parametrize("make", [make_docx, make_pptx, make_xlsx])
def test_a_file_that_is_cut_off_is_refused(make):
    data, name = make(), make.__name__.replace("make_", "a.")
    with pytest.raises(InvalidValue, match="damaged"):
        read_document(data[: len(data) * 2 // 3], name)


@pytest.mark.parametrize(
    ("name", "make", "words"),
    [
        # 72 MB of drawing on one page, in 70 kB
        ("a.pdf", lambda: make_pdf_of([b"BT (a) Tj ET " * 6_000_000]), "150 MiB"),
        # 20 MB of XML, whose tree takes much more
        ("a.docx", lambda: make_docx_of(PARAGRAPH * 250_000), "150 MiB|is damaged"),
    ],
)
async def test_a_bomb_ends_only_its_own_process(tmp_path, name, make, words):
    path = tmp_path / "upload"
    path.write_bytes(make())
    assert path.stat().st_size < 400_000
    with pytest.raises(InvalidValue, match=words):
        await extract(path, name, "", replace(DEFAULT_LIMITS, memory_bytes=150 << 20))
    assert descendants(os.getpid(), "antiphon.processes.sandbox", recursive=False) == []


async def test_each_format_is_read_in_the_sandbox(tmp_path):
    path = tmp_path / "upload"
    for name, data in {
        "a.pdf": make_pdf([["word"]]),
        "a.docx": make_docx(),
        "a.pptx": make_pptx(),
        "a.xlsx": make_xlsx(),
    }.items():
        path.write_bytes(data)
        assert await extract(path, name) == read_document(data, name)


def test_without_the_extra_a_format_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(documents, "LIBRARIES", dict.fromkeys(documents.LIBRARIES, "no_such_library"))
    for name, kind in {"a.pdf": "PDF", "a.docx": "DOCX", "a.pptx": "PPTX", "a.xlsx": "XLSX"}.items():
        with pytest.raises(UnsupportedMediaType, match=rf"is {kind}, .* EXTRAS=documents"):
            require_readable(name)
    require_readable("a.html")


def test_many_parts_are_refused(monkeypatch):
    monkeypatch.setattr(archives, "MAX_PARTS", 1_000)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("word/document.xml", "")
        for number in range(1_000):
            archive.writestr(str(number), "")
    with pytest.raises(InvalidValue, match="1,000 parts"):
        read_document(buffer.getvalue(), "a.docx")
