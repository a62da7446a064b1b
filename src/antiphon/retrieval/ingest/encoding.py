"""Decodes the bytes of a text file. It never guesses the encoding.

The encoding is that of the byte order mark, or the one that the caller or the file declares, or UTF-8.
"""

import codecs
import re
from email.message import Message

from antiphon.retrieval.ingest.documents import build_refusal

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


def parse_charset(media_type: str) -> str:
    """Returns the charset of a media type such as `text/plain; charset=latin-1`; empty if there is none."""
    header = Message()
    header["content-type"] = media_type.replace("\r", " ").replace("\n", " ")
    return str(header.get_content_charset(""))


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
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as problem:
        position = f"at byte {problem.start:,}" if problem.start < len(data) else "at its end"
        raise build_refusal(
            file_name,
            f"is not {encoding} text {position}; save it as UTF-8, or name its charset in the media type",
        ) from None
    except LookupError:
        raise build_refusal(
            file_name, f"has the unknown charset '{encoding[:40]}'; save it as UTF-8"
        ) from None
    if "\0" in text:
        raise build_refusal(file_name, "holds null bytes, so it is not text; save it as UTF-8 text")
    return text
