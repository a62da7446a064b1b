"""Encodes usage as files: JSON lines, and CSV in which no spreadsheet finds a formula."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

import msgspec
from msgspec import Struct

FORMULAS = frozenset("=+-@\uff1d\uff0b\uff0d\uff20")
"""With what a formula begins, in one width or the other."""
QUOTE = "'"
"""What a spreadsheet takes for the sign of a text, and does not show."""


class FileFormat(StrEnum):
    """As what usage is given."""

    JSON = "json"
    CSV = "csv"
    JSONL = "jsonl"


MEDIA = {FileFormat.CSV: "text/csv; charset=utf-8; header=present", FileFormat.JSONL: "application/jsonl"}


def encode_rows(cards: Sequence[Struct], columns: Sequence[str], shape: FileFormat) -> bytes:
    """The lines of some cards; of CSV each with these columns, in their order."""
    if shape is FileFormat.CSV:
        return encode_csv(map(_flatten, cards), columns)
    return b"".join(msgspec.json.encode(card) + b"\n" for card in cards)


def encode_csv(rows: Iterable[Mapping[str, object]], columns: Sequence[str]) -> bytes:
    """Rows of CSV as RFC 4180 has it."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerows([format_cell(row[name]) for name in columns] for row in rows)
    return text.getvalue().encode("utf-8", "replace")


def encode_header(columns: Sequence[str]) -> bytes:
    """The first line of CSV."""
    return encode_csv([dict(zip(columns, columns, strict=True))], columns)


def format_cell(value: object) -> str:
    """A value as a cell. A text that a spreadsheet might run gets a quote before it: one whose first
    character begins a formula or is a control character, whatever blanks stand before it."""
    if value is None:
        return ""
    if not isinstance(value, str):
        return str(value) if isinstance(value, int | float) else msgspec.json.encode(value).decode()
    first = value.lstrip(" \u00a0\u3000")[:1]
    runs = first in FORMULAS or (first < " " and first) or first == "\x7f"
    return QUOTE + value if runs else value


def list_columns(card: type[Struct]) -> tuple[str, ...]:
    """The fields of a card that are not the same in all of them."""
    return tuple(name for name in card.__struct_fields__ if name != "object")


def _flatten(card: Struct) -> dict[str, object]:
    """The fields of a card; what it is grouped by beside the others."""
    fields = msgspec.structs.asdict(card)
    by = fields.pop("by", None)
    return {**by, **fields} if isinstance(by, dict) else fields
