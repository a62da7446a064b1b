"""Reads files with records: CSV, JSON and JSON Lines. Writes tables as text: as Markdown, or as records.

Each record becomes a paragraph of lines `name: value`, so that each value in a chunk has its name. Values are
not converted.
"""

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence

from antiphon.retrieval.ingest.documents import build_refusal

DELIMITERS = (",", ";", "\t", "|")

SAMPLE = 65_536
"""The delimiter is searched in this many first characters."""

MAX_FIELD = 1 << 30
"""The most characters of one CSV field. It is above the limit of the file, so it never applies."""


def format_row(cells: Sequence[str]) -> str:
    """Returns one line of a Markdown table. Escapes bars, and joins the lines of a cell."""
    texts = (" ".join(cell.split()).replace("|", "\\|") for cell in cells)
    return "| " + " | ".join(texts) + " |"


def format_table(rows: Iterable[Sequence[str]]) -> str:
    """Returns a Markdown table. The first row becomes the header. Rows without text are left out."""
    lines = [format_row(row) for row in rows if any(cell.strip() for cell in row)]
    if lines:
        columns = lines[0].replace("\\|", "").count("|") - 1
        lines.insert(1, format_row(["---"] * columns))
    return "\n".join(lines)


def format_records(rows: Iterable[Sequence[str]]) -> str:
    """Returns one paragraph for each row after the first row, which contains the names of the columns. Rows
    without text are left out."""
    filled = [row for row in rows if any(cell.strip() for cell in row)]
    if len(filled) < 2:
        return "\n".join(", ".join(filter(None, map(str.strip, row))) for row in filled)
    return "\n\n".join(format_record(filled[0], row) for row in filled[1:])


def format_record(names: Sequence[str], cells: Sequence[str]) -> str:
    """Returns a row as lines `name: value`. A column without a name is named by its number. An empty cell
    gets no line."""
    lines = []
    for position, cell in enumerate(cells):
        name = names[position].strip() if position < len(names) else ""
        if value := cell.strip():
            lines.append(f"{name or f'column {position + 1}'}: {value}")
    return "\n".join(lines)


class Members(list[tuple[str, object]]):
    """The names and values of one JSON object. A name can occur twice."""

    __slots__ = ()


def read_csv(text: str, file_name: str, delimiter: str = "") -> str:
    """Returns the text of a CSV file. The first row contains the names of the columns.

    If `delimiter` is empty, `find_delimiter` finds it. Raises InvalidValue for a field without its closing
    quote.
    """
    csv.field_size_limit(MAX_FIELD)
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter or find_delimiter(text), strict=True)
    try:
        return format_records(rows)
    except csv.Error as problem:
        raise build_refusal(
            file_name, f"is not a CSV file at line {rows.line_num:,}: {problem}; mend it"
        ) from None


def find_delimiter(text: str) -> str:
    """Returns the delimiter: the one that occurs most often in the first row, outside quotes."""
    first_row = next((line for line in text[:SAMPLE].splitlines() if line.strip()), "")
    unquoted = re.sub(r'"[^"]*"?', "", first_row)
    return max(DELIMITERS, key=unquoted.count)


def read_json(text: str, file_name: str) -> str:
    """Returns the text of a JSON file. The elements of a list are paragraphs.

    Raises InvalidValue for text that is not JSON, and for values that are nested too deep.
    """
    try:
        value = _parse_json(text)
        return _join_lines(_list_records(value))
    except ValueError as problem:
        raise build_refusal(file_name, f"is not JSON: {problem}; mend it") from None
    except RecursionError:
        raise build_refusal(file_name, "is nested too deep; send it with fewer levels") from None


def read_json_lines(text: str, file_name: str) -> str:
    """Returns the text of a file with one JSON value in each line. Raises InvalidValue, which names the
    line."""
    records = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            records.append(_join_lines(_list_lines(_parse_json(line), "")))
        except ValueError as problem:
            raise build_refusal(file_name, f"is not JSON in line {number:,}: {problem}; mend it") from None
        except RecursionError:
            raise build_refusal(
                file_name, f"is nested too deep in line {number:,}; send fewer levels"
            ) from None
    return "\n\n".join(records)


def _parse_json(text: str) -> object:
    """Parses JSON. Numbers stay text. Objects become Members, which keep repeated names."""
    value: object = json.loads(
        text, parse_float=str, parse_int=str, parse_constant=_refuse_constant, object_pairs_hook=Members
    )
    return value


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON value")


def _list_records(value: object) -> Iterator[str]:
    """Yields the lines of the whole value. If the value is a list, yields an empty line after each
    element."""
    if isinstance(value, list) and not isinstance(value, Members):
        for element in value:
            yield from _list_lines(element, "")
            yield ""
    else:
        yield from _list_lines(value, "")


def _list_lines(value: object, path: str) -> Iterator[str]:
    """Yields a value as lines `path: value`."""
    if value == []:
        yield f"{path or 'value'}: empty"
    elif isinstance(value, Members):
        for name, member in value:
            yield from _list_lines(member, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for position, element in enumerate(value):
            if isinstance(element, list):
                yield ""
            yield from _list_lines(element, f"{path}[{position}]")
    else:
        text = value if isinstance(value, str) else json.dumps(value)  # null, true or false
        yield f"{path}: {text}" if path else text


def _join_lines(lines: Iterable[str]) -> str:
    """Joins lines. Several empty lines become one."""
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n")
