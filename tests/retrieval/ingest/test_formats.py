"""A file's format is told by its name or its media type, and its content must agree."""

import gzip
import io
import zipfile

import pytest

from antiphon.errors import InvalidValue, UnsupportedMediaType
from antiphon.retrieval.ingest.documents import OFFICE, DocumentFormat, detect_format


def archive(*names: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as opened:
        for name in names:
            opened.writestr(name, "x")
    return buffer.getvalue()


OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 504
WORD, SHEET = archive("word/document.xml"), archive("xl/workbook.xml")


@pytest.mark.parametrize(
    ("name", "media_type", "data", "expected"),
    [
        ("a.txt", "", b"x", DocumentFormat.TEXT),
        ("A.MD", "text/plain", b"x", DocumentFormat.MARKDOWN),
        ("a.htm", "text/html; charset=utf-8", b"x", DocumentFormat.HTML),
        ("a.csv", "application/octet-stream", b"x", DocumentFormat.CSV),
        ("a.tsv", "", b"x", DocumentFormat.TSV),
        ("a.json", "", b"1", DocumentFormat.JSON),
        ("a.ndjson", "", b"1", DocumentFormat.JSON_LINES),
        ("notes", "Text/Markdown ; charset=utf-8", b"x", DocumentFormat.MARKDOWN),
        ("main.py", "text/plain", b"x", DocumentFormat.TEXT),
        ("about.md", "", b"A file that begins with %PDF-1.7 is a PDF.", DocumentFormat.MARKDOWN),
        ("a.pdf", "application/pdf", b"%PDF-1.7", DocumentFormat.PDF),
        ("a.pdf", "", b"\n\n%PDF-1.7", DocumentFormat.PDF),
        ("a.docx", OFFICE + "wordprocessingml.document", WORD, DocumentFormat.DOCX),
        ("upload", OFFICE + "spreadsheetml.sheet", SHEET, DocumentFormat.XLSX),
        ("a.pptx", "", archive("ppt/presentation.xml"), DocumentFormat.PPTX),
    ],
)
def test_a_format_is_told_by_name_or_media_type(name, media_type, data, expected):
    assert detect_format(data, name, media_type) is expected


@pytest.mark.parametrize(
    ("name", "media_type", "data", "words"),
    [
        ("a.txt", "", b"", "'a.txt' is empty"),
        ("a.docx", "", b"%PDF-1.7", "says that it is DOCX, but its content is PDF"),
        ("a.txt", "", b"%PDF-1.7", "says that it is text, but its content is PDF"),
        ("a.docx", "", SHEET, "says that it is DOCX, but its content is XLSX"),
        ("a.docx", "", archive("other"), "its content is a ZIP archive"),
        ("a.md", "", b"\x89PNG\r\n", "its content is a PNG image"),
        ("a.csv", "", gzip.compress(b"a,b", mtime=0), "its content is a gzip archive"),
        ("a.docx", "", OLE, "its content is an Office file from before 2007"),
        ("a.xlsx", "", OLE + "EncryptedPackage".encode("utf-16-le"), "is encrypted; remove its password"),
        ("a.pdf", "", b"hello", "is not a PDF file, or it is damaged"),
        ("a.docx", "", WORD[:-30], "is not a DOCX file, or it is damaged"),
        ("a.pdf", "text/html", b"%PDF-1.7", "has the media type of HTML"),
    ],
)
def test_other_content_than_the_name_says_is_refused(name, media_type, data, words):
    with pytest.raises(InvalidValue, match=r"^'") as raised:
        detect_format(data, name, media_type)
    assert words in raised.value.message
    assert raised.value.param == "file"


@pytest.mark.parametrize("name", ["a.odt", "photo.png", "noname", "x.doc"])
def test_an_unknown_type_is_refused_with_the_known_ones(name):
    with pytest.raises(UnsupportedMediaType, match=r"txt, text, .*docx, pptx, xlsx"):
        detect_format(b"data", name, "application/octet-stream")


def test_an_error_shows_a_name_without_control_characters():
    with pytest.raises(InvalidValue) as raised:
        detect_format(b"", "a\n\x1b[31m" + "b" * 500 + ".txt")
    assert raised.value.message.startswith("'a??[31mbbb")
    assert len(raised.value.message) < 300
