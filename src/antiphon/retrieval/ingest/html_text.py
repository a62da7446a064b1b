"""Converts HTML to Markdown: headings, paragraphs, lists, tables and preformatted text. It keeps the text of
links and the descriptions of images. It drops scripts, styles and comments. It fetches nothing."""

import re
from enum import Enum
from html.parser import HTMLParser

from antiphon.retrieval.ingest.records import format_row

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
