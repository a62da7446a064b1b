"""Reads bodies of the type multipart/form-data (RFC 7578)."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import unquote

from msgspec import Meta

from antiphon.dialects.base import Request
from antiphon.errors import InvalidValue, MalformedBody, MissingParameter, UnknownParameter

MOST_PARTS = 32
"""The most parts of a form."""

FRAMING = 64 * 1024
"""Bytes of a form besides its file."""

LONGEST_HEADERS = 8192
"""The most bytes of a part's headers."""

LONGEST_FIELD = 10_000
"""The most bytes of a field that is no file."""

BOUNDARY = re.compile(rb';\s*boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))', re.IGNORECASE)

PARAMETER = re.compile(r';\s*([a-z]+\*?)=(?:"((?:[^"\\]|\\.)*)"|([^;\s"]*))', re.IGNORECASE)

ESCAPED = re.compile(r'\\(["\\])')

PLAIN_CODINGS = frozenset({"7bit", "8bit", "binary"})


BinaryText = Annotated[str, Meta(extra_json_schema={"format": "binary"})]
"""A file of a form, in the OpenAPI document."""


@dataclass(frozen=True, slots=True)
class FormFile:
    """A file of a form."""

    name: str
    content: bytes
    media_type: str


@dataclass(frozen=True, slots=True)
class Form:
    """The values of a form by their names."""

    fields: Mapping[str, str]
    files: Mapping[str, FormFile]

    def require_known(self, *names: str) -> None:
        """Raises UnknownParameter for any other field."""
        for name in (*self.fields, *self.files):
            if name not in names:
                known = ", ".join(names)
                raise UnknownParameter(f"unknown field {name[:40]!r}; known: {known}", param=name[:40])

    def require_file(self, name: str) -> FormFile:
        """Returns a file. Raises MissingParameter."""
        if name not in self.files:
            raise MissingParameter(f"{name} is missing; send a file with a file name", param=name)
        return self.files[name]

    def read_integer(self, name: str) -> int | None:
        """Returns a number of at most nine digits, or None. Raises InvalidValue."""
        text = self.fields.get(name)
        if text is None:
            return None
        if re.fullmatch(r"-?[0-9]{1,9}", text) is None:
            raise InvalidValue(f"{name} must be an integer", param=name)
        return int(text)

    def read_flag(self, name: str) -> bool:
        """Returns true or false; false if it is absent. Raises InvalidValue."""
        text = self.fields.get(name, "false")
        if text not in ("true", "false"):
            raise InvalidValue(f"{name} must be true or false", param=name)
        return text == "true"


def read_form(request: Request) -> Form:
    """Reads a request's form. Raises MalformedBody, or InvalidValue for a field that is sent twice."""
    fields: dict[str, str] = {}
    files: dict[str, FormFile] = {}
    for headers, content in _split_parts(request.body, _find_boundary(request)):
        name, file = _read_part(headers, content)
        if name in fields or name in files:
            raise InvalidValue(f"{name[:40]} is sent twice; send one", param=name[:40])
        if file is not None:
            files[name] = file
        elif len(content) > LONGEST_FIELD:
            raise InvalidValue(f"{name[:40]} is longer than {LONGEST_FIELD} bytes", param=name[:40])
        else:
            fields[name] = _decode(content)
    return Form(fields, files)


def _find_boundary(request: Request) -> bytes:
    """Returns the text between the parts. Raises MalformedBody."""
    (content_type,) = request.headers.get(b"content-type", [b""])
    found = BOUNDARY.search(content_type)
    if found is None:
        raise MalformedBody("the header Content-Type has no boundary; let your client make the form")
    return found[1] or found[2]


def _split_parts(body: bytes, boundary: bytes) -> Iterator[tuple[str, bytes]]:
    """Yields the headers and the content of each part. Raises MalformedBody."""
    mark = b"\r\n--" + boundary
    whole = b"\r\n" + body if not body.startswith(b"\r\n") else body
    at = whole.find(mark)
    for _ in range(MOST_PARTS + 1):
        if at < 0:
            raise MalformedBody("the form has no end; send it whole")
        start = at + len(mark)
        if whole.startswith(b"--", start):
            return
        head = whole.find(b"\r\n\r\n", start, start + LONGEST_HEADERS)
        if not whole.startswith(b"\r\n", start) or head < 0:
            raise MalformedBody("a part of the form has no proper headers")
        at = whole.find(mark, head + 2)
        if at >= 0:
            yield _decode(whole[start:head]), whole[head + 4 : max(at, head + 4)]
    raise MalformedBody(f"the form has more than {MOST_PARTS} parts")


def _read_part(headers: str, content: bytes) -> tuple[str, FormFile | None]:
    """Returns the name of a part, and its file if it is one. Raises MalformedBody."""
    lines = (line.partition(":") for line in headers.split("\r\n") if line)
    values = {name.strip().lower(): value.strip() for name, _, value in lines}
    if values.get("content-transfer-encoding", "binary").lower() not in PLAIN_CODINGS:
        raise MalformedBody("a part of the form is encoded; send its bytes as they are")
    disposition = values.get("content-disposition", "")
    given = {found[1].lower(): _unquote(found) for found in PARAMETER.finditer(disposition)}
    name = given.get("name")
    if not name or not disposition.lower().startswith("form-data"):
        raise MalformedBody("a part of the form has no name")
    file_name = _decode_extended(given["filename*"]) if "filename*" in given else given.get("filename")
    if file_name is None:
        return name, None
    return name, FormFile(file_name, content, values.get("content-type", "application/octet-stream"))


def _unquote(found: re.Match[str]) -> str:
    """Returns a parameter's value without its quotes. Browsers write a quote as %22, curl as \\"."""
    text = ESCAPED.sub(r"\1", found[2]) if found[2] is not None else found[3]
    return text.replace("%22", '"').replace("%0D", "\r").replace("%0A", "\n")


def _decode_extended(text: str) -> str:
    """Decodes a file name in the form of RFC 5987. Raises MalformedBody."""
    charset, _, encoded = text.partition("'")
    if charset.lower() != "utf-8":
        raise MalformedBody("filename* must be in UTF-8")
    try:
        return unquote(encoded.partition("'")[2], errors="strict")
    except UnicodeDecodeError:
        raise MalformedBody("filename* must be in UTF-8") from None


def _decode(data: bytes) -> str:
    """Decodes a text of the form. Raises MalformedBody."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise MalformedBody("the form's names and fields must be UTF-8") from None
