"""Reads HTML as Markdown, and CSV, JSON and JSON Lines as records. Writes tables as text.

Of HTML it keeps headings, paragraphs, lists, tables, preformatted text, the text of links and the
descriptions of images. It drops scripts, styles and comments. It fetches nothing.

Each record becomes a paragraph of lines `name: value`, so that each value in a chunk has its name. Values are
not converted.
"""

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from html.parser import HTMLParser

from antiphon.retrieval.ingest.documents import build_refusal


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


HEADINGS = {f"h{level}": level for level in range(1, 7)}

LISTS = {"ul": 0, "ol": 1}
"""The number of the first item of each kind of list; 0 for bullets."""

CELLS = frozenset({"td", "th"})

BLOCKS = frozenset(
    "address article aside blockquote body caption dd details dialog div dl dt fieldset figcaption "
    "figure footer form header hgroup hr html legend li main nav ol option p pre section select "
    "summary table tbody textarea tfoot thead ul".split()
) | frozenset(HEADINGS)
"""Elements that are a block. Other elements are part of the text around them."""

HIDDEN_ELEMENTS = frozenset("noscript script style svg template".split())
"""Elements whose content browsers do not show as text."""

SPACE = re.compile(r"[ \t\n\r\f]+")

MAX_LIST_DEPTH = 8
"""Deeper lists are indented no further."""


class Block(Enum):
    """The kind of a block. Consecutive list items are one list, and consecutive rows are one table."""

    TEXT = "text"
    ITEM = "list item"
    ROW = "table row"


class HtmlReader(HTMLParser):
    """Collects the blocks of a page. Feed it once, close it, then call `to_markdown`."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.title = ""
        self._blocks: list[tuple[Block, str]] = []
        self._inline: list[str] = []
        """The texts of the open block or table cell."""
        self._prefix = ""
        """The Markdown mark of a heading or list item with which the open block begins."""
        self._row: list[str] | None = None
        """Cells of the open table row."""
        self._hidden_depth = self._preformatted_depth = 0
        """The numbers of open elements with hidden content, and of open elements with preformatted text."""
        self._in_title = False
        self._lists: list[int] = []
        """For each open list: the number of its next item; 0 for bullets."""

    def close(self) -> None:
        """Ends the page. Raises AssertionError for some malformed declarations, as `feed` does."""
        super().close()
        self._end_row()
        self._end_block()

    def to_markdown(self) -> str:
        """Returns the page's text."""
        parts: list[str] = []
        previous: Block | None = None
        for kind, text in self._blocks:
            if previous is not None:
                is_same_list = kind is previous and kind is not Block.TEXT
                parts.append("\n" if is_same_list else "\n\n")
            parts.append(text)
            previous = kind
        return "".join(parts)

    # --- methods that the base class calls

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in HIDDEN_ELEMENTS:
            self._hidden_depth += 1
        elif tag == "title":
            self._in_title = not self.title
        elif tag == "br":
            self._inline.append("\n")
        elif tag == "img":
            self._inline.append(dict(attrs).get("alt") or "")
        elif tag == "tr":
            self._end_row()
            self._end_block()
            self._row = []
        elif tag in CELLS:
            self._end_cell()
        else:
            self._open_block(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in HIDDEN_ELEMENTS:  # `<svg/>` is closed, and has no end tag
            self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        if tag in HIDDEN_ELEMENTS:
            self._hidden_depth = max(0, self._hidden_depth - 1)
        elif tag == "title":
            self._in_title = False
        elif tag in CELLS:
            self._end_cell(adds_empty=True)
        elif tag in {"tr", "table"}:
            self._end_row()
        elif tag in BLOCKS:
            self._end_block()
            self._close_nesting(tag)

    def handle_data(self, data: str) -> None:
        if self._hidden_depth:
            return
        if self._in_title:
            self.title = SPACE.sub(" ", self.title + data).strip()
        else:
            self._inline.append(data if self._preformatted_depth else SPACE.sub(" ", data))

    # --- blocks, rows and lists

    def _open_block(self, tag: str) -> None:
        """Begins a block at a start tag. Does nothing for inline elements."""
        if tag not in BLOCKS:
            return
        self._end_block()
        if level := HEADINGS.get(tag):
            self._prefix = "#" * level + " "
        elif tag == "pre":
            self._preformatted_depth += 1
        elif tag in LISTS:
            self._lists.append(LISTS[tag])
        elif tag == "li":
            self._prefix = self._write_item_mark()

    def _close_nesting(self, tag: str) -> None:
        """Leaves a list or preformatted text."""
        if tag == "pre":
            self._preformatted_depth = max(0, self._preformatted_depth - 1)
        elif tag in LISTS and self._lists:
            self._lists.pop()

    def _write_item_mark(self) -> str:
        """Returns the indented mark of a list's next item."""
        if not self._lists:
            return "- "
        indent = "  " * min(len(self._lists) - 1, MAX_LIST_DEPTH)
        number = self._lists[-1]
        if not number:
            return f"{indent}- "
        self._lists[-1] += 1
        return f"{indent}{number}. "

    def _end_block(self) -> None:
        """Ends the open block. In a table cell it only separates words, because a cell is one line."""
        if self._row is not None:
            self._inline.append(" ")
            return
        text = "".join(self._inline)
        self._inline.clear()
        if not text.strip():
            return
        kind = Block.ITEM if self._prefix and not self._prefix.startswith("#") else Block.TEXT
        markdown = _fence(text) if self._preformatted_depth else self._prefix + _strip_lines(text)
        self._blocks.append((kind, markdown))
        self._prefix = ""

    def _end_cell(self, *, adds_empty: bool = False) -> None:
        """Adds the text since the last cell to the open row. `adds_empty`: also if the text is empty."""
        text = " ".join("".join(self._inline).split())
        if self._row is None:
            return
        self._inline.clear()
        if text or adds_empty:
            self._row.append(text)

    def _end_row(self) -> None:
        """Ends the open row. After the first row of a table, adds the separator line of Markdown."""
        self._end_cell()
        cells, self._row = self._row, None
        if not cells or not any(cells):
            return
        is_first = not self._blocks or self._blocks[-1][0] is not Block.ROW
        self._blocks.append((Block.ROW, format_row(cells)))
        if is_first:
            self._blocks.append((Block.ROW, format_row(["---"] * len(cells))))


def read_html(text: str) -> tuple[str, str]:
    """Returns the title of an HTML page and its text as Markdown. Raises ValueError if it cannot be read."""
    reader = HtmlReader()
    try:
        reader.feed(text)
        reader.close()
    except AssertionError as problem:
        raise ValueError(str(problem)) from None
    return reader.title, reader.to_markdown()


def _fence(text: str) -> str:
    """Returns preformatted text as a code block. The fence is one that the text does not contain."""
    fence = "~~~~" if "```" in text else "```"
    body = text.strip("\n").rstrip()
    return f"{fence}\n{body}\n{fence}"


def _strip_lines(text: str) -> str:
    """Removes the spaces around each line, and empty lines."""
    return "\n".join(stripped for line in text.split("\n") if (stripped := line.strip()))


DELIMITERS = (",", ";", "\t", "|")

SAMPLE = 65_536
"""The delimiter is searched in this many first characters."""

MAX_FIELD = 1 << 30
"""The most characters of one CSV field. It is above the limit of the file, so it never applies."""


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
