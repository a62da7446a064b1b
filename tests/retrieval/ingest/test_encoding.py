"""The encoding of a text is known or refused, never guessed."""

import codecs

import pytest

from antiphon.errors import InvalidValue
from antiphon.retrieval.ingest.documents import parse_charset
from antiphon.retrieval.ingest.reading_job import clean_text, decode_text, find_html_charset

TEXT = "Grüße, 漢字 😀"


@pytest.mark.parametrize(
    ("mark", "encoding"),
    [
        (b"", "utf-8"),
        (codecs.BOM_UTF8, "utf-8"),
        (codecs.BOM_UTF16_LE, "utf-16-le"),
        (codecs.BOM_UTF16_BE, "utf-16-be"),
        (codecs.BOM_UTF32_LE, "utf-32-le"),
        (codecs.BOM_UTF32_BE, "utf-32-be"),
    ],
)
def test_utf_8_and_byte_order_marks_are_known(mark, encoding):
    assert decode_text(mark + TEXT.encode(encoding), "a.txt") == TEXT


def test_a_declared_charset_is_obeyed():
    charset = parse_charset('text/plain; charset="Shift_JIS"')
    assert decode_text("漢字".encode("shift_jis"), "a.txt", charset) == "漢字"
    assert parse_charset("text/plain") == parse_charset("") == parse_charset("x\r\ny: z; charset") == ""


@pytest.mark.parametrize(
    ("data", "charset", "words"),
    [
        ("Grüße".encode("latin-1"), "", "is not utf-8 text at byte 2"),
        (TEXT.encode("utf-16-le"), "", "null bytes|is not utf-8"),
        (b"a\0b", "", "holds null bytes"),
        (codecs.BOM_UTF16_LE + b"a", "", "is not utf-16-le text"),
        (b"x", "klingon", "unknown charset 'klingon'"),
        (b"x", "base64", "unknown charset 'base64'"),
        ("漢字".encode("shift_jis"), "ascii", "is not ascii text at byte 0"),
    ],
)
def test_other_bytes_are_refused_with_the_remedy(data, charset, words):
    with pytest.raises(InvalidValue, match=words) as raised:
        decode_text(data, "a.txt", charset)
    assert "UTF-8" in raised.value.message


@pytest.mark.parametrize(
    "charset",
    "UTF-8 utf8 US-ASCII ISO-8859-1 latin1 iso-8859-15 windows-1252 cp1251 KOI8-R GB2312 gbk GB18030 Big5 "
    "big5-hkscs Shift_JIS ms932 EUC-JP ISO-2022-JP EUC-KR ks_c_5601-1987 TIS-620 macintosh".split(),
)
def test_the_charsets_of_the_web_are_read(charset):
    assert decode_text(b"text", "a.txt", charset) == "text"


@pytest.mark.parametrize(
    ("head", "charset"),
    [
        (b'<html><head><meta charset="windows-1252">', "windows-1252"),
        (b"<META http-equiv=x content='text/html; CHARSET=EUC-JP'>", "euc-jp"),
        (b'<meta charset="utf-16">', "utf-8"),
        (b"<p>charset=latin-1</p>", ""),
        (b" " * 2000 + b'<meta charset="koi8-r">', ""),
    ],
)
def test_an_html_page_declares_its_charset(head, charset):
    assert find_html_charset(head) == charset


def test_what_no_store_keeps_is_cleaned():
    assert clean_text("a\r\nb\rc\0d\ud83de") == "a\nb\ncd\ufffde"
