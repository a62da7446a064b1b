"""Reads bodies of the type multipart/form-data (RFC 7578)."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated
from urllib.parse import unquote

from msgspec import Meta, Struct

from antiphon.errors import InvalidValue, MalformedBody, MissingParameter, UnknownParameter

MOST_PARTS = 32
"""The most parts of a form."""

FORM_OVERHEAD = 64 * 1024
"""The most bytes of a form in addition to its file."""

LONGEST_HEADERS = 8192
"""The most bytes of a part's headers."""

LONGEST_FIELD = 10_000
"""The most bytes of a field that is not a file."""

BOUNDARY = re.compile(rb';\s*boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))', re.IGNORECASE)

PARAMETER = re.compile(r';\s*([a-z]+\*?)=(?:"((?:[^"\\]|\\.)*)"|([^;\s"]*))', re.IGNORECASE)

ESCAPED = re.compile(r'\\(["\\])')

PLAIN_CODINGS = frozenset({"7bit", "8bit", "binary"})

BinaryText = Annotated[str, Meta(extra_json_schema={"format": "binary"})]
"""A file of a form, in the OpenAPI document."""


class FormFile(Struct, frozen=True):
    """A file of a form."""

    name: str
    content: bytes
    media_type: str


class Form(Struct, frozen=True):
    """The values of a form, by name."""

    fields: Mapping[str, str]
    files: Mapping[str, FormFile]

    def require_known(self, *names: str) -> None:
        """Raises UnknownParameter if the form has a field or file whose name is not in `names`."""
        for name in (*self.fields, *self.files):
            if name not in names:
                known_names = ", ".join(names)
                raise UnknownParameter(f"unknown field {name[:40]!r}; known: {known_names}", param=name[:40])

    def require_file(self, name: str) -> FormFile:
        """Returns a file. Raises MissingParameter."""
        if name not in self.files:
            raise MissingParameter(f"{name} is missing; send a file with a file name", param=name)
        return self.files[name]

    def read_integer(self, name: str) -> int | None:
        """Returns an integer of at most nine digits; None if it is absent. Raises InvalidValue."""
        text = self.fields.get(name)
        if text is None:
            return None
        if re.fullmatch(r"-?[0-9]{1,9}", text) is None:
            raise InvalidValue(f"{name} must be an integer", param=name)
        return int(text)

    def read_flag(self, name: str) -> bool:
        """Returns a boolean; False if it is absent. Raises InvalidValue."""
        text = self.fields.get(name, "false")
        if text not in ("true", "false"):
            raise InvalidValue(f"{name} must be true or false", param=name)
        return text == "true"


def read_form(body: bytes, headers: Mapping[bytes, Sequence[bytes]]) -> Form:
    """Reads the form of a request. Raises MalformedBody, and InvalidValue for a repeated field."""
    (content_type,) = headers.get(b"content-type", [b""])
    boundary = BOUNDARY.search(content_type)
    if boundary is None:
        raise MalformedBody("the header Content-Type has no boundary; let your client make the form")
    fields: dict[str, str] = {}
    files: dict[str, FormFile] = {}
    for part_headers, content in _split_parts(body, boundary[1] or boundary[2]):
        name, file = _read_part(part_headers, content)
        if name in fields or name in files:
            raise InvalidValue(f"{name[:40]} is sent twice; send one", param=name[:40])
        if file is not None:
            files[name] = file
        elif len(content) > LONGEST_FIELD:
            raise InvalidValue(f"{name[:40]} is longer than {LONGEST_FIELD} bytes", param=name[:40])
        else:
            fields[name] = _decode(content)
    return Form(fields, files)


def _split_parts(body: bytes, boundary: bytes) -> Iterator[tuple[str, bytes]]:
    """Yields the headers and the content of each part. Raises MalformedBody."""
    delimiter = b"\r\n--" + boundary
    form = b"\r\n" + body if not body.startswith(b"\r\n") else body
    position = form.find(delimiter)
    for _ in range(MOST_PARTS + 1):
        if position < 0:
            raise MalformedBody("the form has no end; send the complete form")
        start = position + len(delimiter)
        if form.startswith(b"--", start):
            return
        header_end = form.find(b"\r\n\r\n", start, start + LONGEST_HEADERS)
        if not form.startswith(b"\r\n", start) or header_end < 0:
            raise MalformedBody("a part of the form has no proper headers")
        position = form.find(delimiter, header_end + 2)
        if position >= 0:
            yield _decode(form[start:header_end]), form[header_end + 4 : max(position, header_end + 4)]
    raise MalformedBody(f"the form has more than {MOST_PARTS} parts")


def _read_part(headers: str, content: bytes) -> tuple[str, FormFile | None]:
    """Returns the name of a part, and its file if the part is a file. Raises MalformedBody."""
    lines = (line.partition(":") for line in headers.split("\r\n") if line)
    values = {name.strip().lower(): value.strip() for name, _, value in lines}
    if values.get("content-transfer-encoding", "binary").lower() not in PLAIN_CODINGS:
        raise MalformedBody("a part of the form is encoded; send its bytes as they are")
    disposition = values.get("content-disposition", "")
    parameters = {match[1].lower(): _unquote(match) for match in PARAMETER.finditer(disposition)}
    name = parameters.get("name")
    if not name or not disposition.lower().startswith("form-data"):
        raise MalformedBody("a part of the form has no name")
    file_name = (
        _decode_extended(parameters["filename*"]) if "filename*" in parameters else parameters.get("filename")
    )
    if file_name is None:
        return name, None
    return name, FormFile(file_name, content, values.get("content-type", "application/octet-stream"))


def _unquote(match: re.Match[str]) -> str:
    r"""Returns a parameter's value without its quotes. Browsers encode a quote as %22, curl as \\"."""
    text = ESCAPED.sub(r"\1", match[2]) if match[2] is not None else match[3]
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
