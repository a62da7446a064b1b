"""Decodes the body of an endpoint's requests by its wire type, straight from the bytes.

Most bodies are decoded by the type alone. If that fails, or if a field is set that the type has and the table
does not support, the body is read again by the table of fields. The table names what is wrong, and what is
ignored.

msgspec keeps only the last of two equal keys. So the decoded value is encoded again, and the colons in both
texts are counted. A colon follows each key, and all others are inside texts. A body that repeats a key has
more colons than its value, unless the body escapes a colon. So does a body that sets a field to null or to
its default. The strict parser looks for repeated keys in all these bodies.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Generic, TypeVar

import msgspec

from antiphon.bodies.strict_json import convert, read_object
from antiphon.dialects.common.field_table import FieldReport, FieldSupport, FieldTable
from antiphon.dialects.common.request_types import BodyShape

SEPARATORS = (b"[", b"{", b":", b",")

MAX_SEPARATORS = 1 << 16
"""The most separators in a body that is decoded at once, while no other thread can run. This takes about ten
milliseconds. While the table's parser reads a body with more of them, other threads can run."""

Wire = TypeVar("Wire", bound=BodyShape)

_encode = msgspec.json.Encoder().encode


class BodyDecoder(Generic[Wire]):
    """Decodes the bodies of one endpoint."""

    def __init__(
        self,
        shape: type[Wire],
        field_table: FieldTable,
        scope: str,
        filter_body: Callable[[dict[str, Any], FieldReport], dict[str, Any]] | None = None,
        needs_table: Callable[[Wire], bool] | None = None,
    ) -> None:
        """`filter_body` returns the fields to convert to `shape`, and reports ignored ones; by default it is
        the table's own filter. `needs_table`: whether `filter_body` changes or reports something in a body
        that `shape` accepts, besides the fields that the table does not support."""
        self.shape = shape
        self._decode = msgspec.json.Decoder(shape).decode
        self._filter_body = filter_body or (
            lambda fields, report: field_table.filter(fields, scope, report=report)
        )
        self._needs_table = needs_table
        table = field_table.tables[scope]
        names = [
            name
            for name, key in zip(shape.__struct_fields__, shape.__struct_encode_fields__, strict=True)
            if key not in table or table[key].support is not FieldSupport.SUPPORTED
        ]
        self._get_unsupported = attrgetter(*names) if names else None
        self._absent = (None,) * len(names) if len(names) > 1 else None

    def decode(self, body: bytes, report_unknown: bool = False) -> tuple[Wire, FieldReport]:
        """Decodes a body. `report_unknown`: unknown fields are reported as ignored instead of refused. Raises
        a RequestError that names the wrong field."""
        report, wire = FieldReport(report_unknown), self.decode_at_once(body)
        return (self.decode_by_table(body, report) if wire is None else wire), report

    def decode_at_once(self, body: bytes) -> Wire | None:
        """Decodes a body by the type alone. Returns None if the table must read it. Raises MalformedBody for
        a repeated key."""
        if len(body) > MAX_SEPARATORS and sum(map(body.count, SEPARATORS)) > MAX_SEPARATORS:
            return None
        try:
            wire = self._decode(body)
            encoded = _encode(wire)
        except (ValueError, OverflowError, RecursionError):
            return None
        may_repeat = body.count(b":") != encoded.count(b":")
        if b"\\u003" in body and (b"\\u003a" in body or b"\\u003A" in body):
            may_repeat = True
        if self._get_unsupported is not None:
            if may_repeat or self._get_unsupported(wire) != self._absent:
                return None  # a field that the table does not know is refused even if it is null
        elif may_repeat:
            read_object(body)
        return None if self._needs_table is not None and self._needs_table(wire) else wire

    def decode_by_table(self, body: bytes, report: FieldReport) -> Wire:
        """Decodes a body field by field. Adds ignored fields to `report`. Raises a RequestError."""
        return convert(self._filter_body(read_object(body), report), self.shape)
