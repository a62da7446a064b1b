"""Splits a document's text into chunks: at headings, paragraphs, lines, sentences or words where it can.

Sizes are in characters, or in tokens that a callback counts. No chunk is larger than requested. Chunks of one
page overlap; chunks of two pages do not.

The library's time grows with the square of a text without breaks. With tokens, the library would count each
text many times. So the library gets one window of a page at a time, and splits it by characters. Then the
tokens of the chunks are counted in batches. Only chunks with too many tokens are split again.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from math import ceil
from typing import TYPE_CHECKING

from antiphon.domain.values import Struct
from antiphon.errors import InvalidValue
from antiphon.retrieval.base import SizeUnit
from antiphon.retrieval.ingest.documents import ExtractedDocument

if TYPE_CHECKING:
    from semantic_text_splitter import MarkdownSplitter, TextSplitter

SMALLEST_SIZE = 16
"""The smallest size of a chunk. One character can be several tokens."""

LARGEST_SIZE = 32_768
"""The largest size of a chunk. No chunk has more characters, also if the unit is tokens."""

WINDOW_CHUNKS = 16
"""The number of chunks in a window."""

SMALLEST_WINDOW = 8_192
"""Characters. Smaller windows cost more calls than they save."""

WORD_START = re.compile(r"\S")
"""The first character of a word. Windows begin with a word, because many newlines make the library slow."""

SAMPLE_CHARACTERS = 4_096
"""How many characters are counted first, to estimate the characters of a token."""

FILL_SHARE = 0.9
"""The share of a chunk's size in tokens that the splitter plans to fill. The rest is a reserve, because the
tokens per character vary."""

HEADING_OR_FENCE = re.compile(
    r"^ {0,3}(?:(?P<fence>`{3,}|~{3,})|(?P<marks>#{1,6})[ \t]+(?P<words>\S.*))", re.MULTILINE
)
"""A line that is a heading, or opens or closes a code block (fence)."""

CLOSING_HASHES = re.compile(r"[ \t]+#+[ \t]*$")

JOINT = " > "

LONGEST_PATH = 500
"""The most characters of a path of headings. A longer path is cut at its beginning."""

CountTokens = Callable[[Sequence[str]], Sequence[int]]
"""Returns the number of tokens of each text."""

Span = tuple[int, str]
"""The index of a chunk in its page, and its text."""


class SplitOptions(Struct, frozen=True):
    """How documents are split. Raises InvalidValue for sizes that are impossible."""

    size: int
    """The most characters or tokens of a chunk."""
    overlap: int = 0
    """The most characters, or approximately tokens, that a chunk repeats from the chunk before."""
    unit: SizeUnit = SizeUnit.CHARACTERS

    def __post_init__(self) -> None:
        if not SMALLEST_SIZE <= self.size <= LARGEST_SIZE:
            problem = f"chunk_size must be from {SMALLEST_SIZE} to {LARGEST_SIZE:,}, not {self.size:,}"
            raise InvalidValue(problem, param="chunk_size")
        if not 0 <= self.overlap < self.size:
            problem = f"chunk_overlap must be from 0 to {self.size - 1:,}, so that it is less than chunk_size"
            raise InvalidValue(f"{problem}; it is {self.overlap:,}", param="chunk_overlap")


class DocumentChunk(Struct, frozen=True):
    """One chunk of a document."""

    text: str
    title: str
    """The headings above the chunk, joined by ` > `. Without headings: the page's title, or the
    document's."""
    page: int | None
    start: int
    """Index of its first character in the text of its page."""
    file_name: str


def split(
    document: ExtractedDocument, options: SplitOptions, count: CountTokens | None = None
) -> Iterator[DocumentChunk]:
    """Yields the chunks of a document in order. Together they contain every character except spaces.

    `count`: required if the unit is tokens. The same document, options and counts give the same chunks.
    """
    splitter = _PageSplitter(document.markdown, options, count)
    for page in document.pages:
        headings = find_headings(page.text) if document.markdown else []
        end = 0
        for start, text in splitter.split_page(page.text):
            path = find_path(headings, page.text, max(start, end))  # of the text after the overlap
            end = start + len(text)
            title = path or page.title or document.title
            yield DocumentChunk(text, title, page.number, start, document.file_name)


class _PageSplitter:
    """Splits the pages of one document, and measures how many characters a token has."""

    def __init__(self, markdown: bool, options: SplitOptions, count: CountTokens | None) -> None:
        if options.unit is SizeUnit.TOKENS and count is None:
            raise ValueError("chunks in tokens need a function that counts them")
        self._markdown = markdown
        self._size, self._overlap = options.size, options.overlap
        self._count = count if options.unit is SizeUnit.TOKENS else None
        self._characters_per_token = 1.0 if self._count is None else 0.0
        """0 until tokens are counted."""

    def split_page(self, text: str) -> Iterator[Span]:
        """Yields the chunks of a page. The end of a window cuts its last chunk, so the next window begins
        with this chunk."""
        start = 0
        while word := WORD_START.search(text, start):
            start = word.start()
            size, overlap = self._estimate_size(text[start : start + SAMPLE_CHARACTERS])
            window = text[start : start + max(WINDOW_CHUNKS * size, SMALLEST_WINDOW)]
            spans = self._split_text(window, start, size, overlap)
            next_start = start + len(window)
            if next_start < len(text) and len(spans) > 1 and spans[-1][0] > start:
                next_start = spans.pop()[0]
            texts = [text for _, text in spans]
            counts = self._count_tokens(texts)
            self._measure_tokens(texts, counts)
            yield from self._split_large_chunks(spans, counts)
            start = next_start

    def _estimate_size(self, sample: str) -> tuple[int, int]:
        """Returns the size and the overlap of the next chunks in characters."""
        if self._count is None:
            return self._size, self._overlap
        if not self._characters_per_token:
            self._measure_tokens([sample], self._count_tokens([sample]))
        size = max(1, min(LARGEST_SIZE, int(self._size * FILL_SHARE * self._characters_per_token)))
        return size, min(size - 1, int(self._overlap * self._characters_per_token))

    def _count_tokens(self, texts: Sequence[str]) -> Sequence[int]:
        """Returns the tokens of each text; empty if the unit is characters."""
        return self._count(texts) if self._count is not None and texts else ()

    def _measure_tokens(self, texts: Sequence[str], counts: Sequence[int]) -> None:
        """Updates the mean number of characters of a token. `counts`: the tokens of each text; empty if the
        unit is characters, so that nothing changes."""
        if counts:
            self._characters_per_token = sum(map(len, texts)) / max(1, sum(counts))

    def _split_text(self, text: str, start: int, size: int, overlap: int) -> list[Span]:
        """Splits a text by characters. `start`: its index in the page."""
        spans: list[Span] = []
        end = start
        for offset, chunk in _make_splitter(self._markdown, size, overlap).chunk_indices(text):
            # The library does not count a line's indentation, so its overlap can be too long.
            excess = max(0, end - overlap - (start + offset))
            spans.append((start + offset + excess, chunk[excess:]))
            end = start + offset + len(chunk)
        return spans

    def _split_large_chunks(self, spans: list[Span], counts: Sequence[int]) -> Iterator[Span]:
        """Yields the chunks, and splits chunks with too many tokens again until they fit. `counts`: tokens of
        each chunk; empty if the unit is characters."""
        if not counts:
            yield from spans
            return
        for (start, text), tokens in zip(spans, counts, strict=True):
            if tokens <= self._size:
                yield start, text
            else:
                smaller = self._split_chunk(start, text, ceil(tokens / (self._size * FILL_SHARE)))
                yield from self._split_large_chunks(
                    smaller, self._count_tokens([text for _, text in smaller])
                )

    def _split_chunk(self, start: int, text: str, part_count: int) -> list[Span]:
        """Splits a chunk into about `part_count` chunks, but at least two. Raises InvalidValue for a chunk of
        one character."""
        if len(text) == 1:
            problem = f"chunk_size is too small: '{text}' alone has more than {self._size} tokens"
            raise InvalidValue(problem, param="chunk_size")
        return self._split_text(text, start, ceil(len(text) / part_count), 0)


def _make_splitter(markdown: bool, size: int, overlap: int) -> "MarkdownSplitter | TextSplitter":
    """Makes the library's splitter."""
    from semantic_text_splitter import MarkdownSplitter, TextSplitter

    return MarkdownSplitter(size, overlap) if markdown else TextSplitter(size, overlap)


# --- headings -----------------------------------------------------------------------------------------------


class Heading(Struct, frozen=True):
    """A heading of a Markdown text."""

    start: int
    """Index of its first character."""
    path: tuple[str, ...]
    """The texts of the headings above it and its own, the highest first."""


def find_headings(text: str) -> list[Heading]:
    """Returns the headings of a Markdown text that begin with `#`, in order. Lines in code blocks are no
    headings."""
    headings: list[Heading] = []
    open_levels: list[tuple[int, str]] = []
    fence = ""
    for line in HEADING_OR_FENCE.finditer(text):
        if marks := line["fence"]:
            if not fence:
                fence = marks
            elif marks.startswith(fence):
                fence = ""
        elif not fence:
            level = len(line["marks"])
            while open_levels and open_levels[-1][0] >= level:
                open_levels.pop()
            open_levels.append((level, CLOSING_HASHES.sub("", line["words"]).strip()))
            headings.append(Heading(line.start(), tuple(words for _, words in open_levels)))
    return headings


def find_path(headings: Sequence[Heading], text: str, start: int) -> str:
    """Returns the headings, joined by ` > `, under which the text at `start` is. Spaces after `start` are
    skipped. Returns an empty text if no heading comes before."""
    while start < len(text) and text[start].isspace():
        start += 1
    position = bisect_right(headings, start, key=lambda heading: heading.start)
    return JOINT.join(headings[position - 1].path)[-LONGEST_PATH:] if position else ""
