"""Splits a document's text into chunks: at headings, paragraphs, lines, sentences or words where it can.

Sizes are characters, or tokens that a callback counts. A chunk is never larger than asked. Chunks of one page
overlap; chunks of two pages do not.

Where a text has no breaks, the library's time grows with the square of its length, and in tokens it would
count each text many times. So it gets a window of a page at a time and splits that by characters. Chunks in
tokens are then counted in batches, and only those that are too large are split again.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from antiphon.errors import InvalidValue
from antiphon.retrieval.base import SizeUnit
from antiphon.retrieval.ingest.documents import ExtractedDocument
from antiphon.retrieval.ingest.headings import find_headings, find_path

if TYPE_CHECKING:
    from semantic_text_splitter import MarkdownSplitter, TextSplitter

SMALLEST_SIZE = 16
"""The smallest size of a chunk. One character can be several tokens."""

LARGEST_SIZE = 32_768
"""The largest size of a chunk. No chunk has more characters, also where the unit is tokens."""

WINDOW = 16
"""Chunks that a window has room for."""

SMALLEST_WINDOW = 8_192
"""Characters. Smaller windows cost more calls than they save."""

WORD = re.compile(r"\S")
"""The first character of a word. Windows begin there, since the library is slow with runs of newlines."""

SAMPLE = 4_096
"""Characters whose tokens are counted before the first chunks in tokens are planned."""

FILL = 0.9
"""The part of its size that a chunk in tokens is planned to fill, since texts differ in tokens a
character."""

CountTokens = Callable[[Sequence[str]], Sequence[int]]
"""Returns the number of tokens of each text."""

Span = tuple[int, str]
"""A chunk: where it begins in its page, and its text."""


@dataclass(frozen=True, slots=True)
class SplitOptions:
    """How documents are split. Raises InvalidValue for what cannot be done."""

    size: int
    """The most characters or tokens of a chunk."""
    overlap: int = 0
    """The most characters that a chunk repeats of the one before. In tokens it is an estimate."""
    unit: SizeUnit = SizeUnit.CHARACTERS

    def __post_init__(self) -> None:
        if not SMALLEST_SIZE <= self.size <= LARGEST_SIZE:
            problem = f"chunk_size must be from {SMALLEST_SIZE} to {LARGEST_SIZE:,}, not {self.size:,}"
            raise InvalidValue(problem, param="chunk_size")
        if not 0 <= self.overlap < self.size:
            problem = f"chunk_overlap must be from 0 to {self.size - 1:,}, so that it is less than chunk_size"
            raise InvalidValue(f"{problem}; it is {self.overlap:,}", param="chunk_overlap")


@dataclass(frozen=True, slots=True)
class DocumentChunk:
    """One chunk of a document."""

    text: str
    title: str
    """The headings above it, joined by ` > `; otherwise its page's title, or its document's."""
    page: int | None
    start: int
    """Where it begins in its page's text, in characters."""
    file_name: str


def split(
    document: ExtractedDocument, options: SplitOptions, count: CountTokens | None = None
) -> Iterator[DocumentChunk]:
    """Lists the chunks of a document, in order and lazily. They contain every character of it but spaces.

    `count`: required where the unit is tokens. The same document, options and counts give the same chunks.
    """
    splitter = _PageSplitter(document.markdown, options, count)
    for page in document.pages:
        headings = find_headings(page.text) if document.markdown else []
        end = 0
        for start, text in splitter.split_page(page.text):
            path = find_path(headings, page.text, max(start, end))  # of what is not repeated
            end = start + len(text)
            title = path or page.title or document.title
            yield DocumentChunk(text, title, page.number, start, document.file_name)


class _PageSplitter:
    """Splits the pages of one document, and learns how many characters its tokens have."""

    def __init__(self, markdown: bool, options: SplitOptions, count: CountTokens | None) -> None:
        if options.unit is SizeUnit.TOKENS and count is None:
            raise ValueError("chunks in tokens need a function that counts them")
        self._markdown = markdown
        self._size, self._overlap = options.size, options.overlap
        self._count = count if options.unit is SizeUnit.TOKENS else None
        self._characters_per_token = 1.0 if self._count is None else 0.0
        """0 until something is counted."""

    def split_page(self, text: str) -> Iterator[Span]:
        """Lists the chunks of a page. The last chunk of a window, which the window's end cut short, is left
        to the next window."""
        start = 0
        while word := WORD.search(text, start):
            start = word.start()
            size, overlap = self._plan(text[start : start + SAMPLE])
            window = text[start : start + max(WINDOW * size, SMALLEST_WINDOW)]
            spans = self._split_text(window, start, size, overlap)
            following = start + len(window)
            if following < len(text) and len(spans) > 1 and spans[-1][0] > start:
                following = spans.pop()[0]
            texts = [text for _, text in spans]
            counts = self._count_tokens(texts)
            self._learn(texts, counts)
            yield from self._fit(spans, counts)
            start = following

    def _plan(self, sample: str) -> tuple[int, int]:
        """Returns the size and the overlap of the next chunks in characters."""
        if self._count is None:
            return self._size, self._overlap
        if not self._characters_per_token:
            self._learn([sample], self._count_tokens([sample]))
        size = max(1, min(LARGEST_SIZE, int(self._size * FILL * self._characters_per_token)))
        return size, min(size - 1, int(self._overlap * self._characters_per_token))

    def _count_tokens(self, texts: Sequence[str]) -> Sequence[int]:
        """Returns the tokens of each text; nothing where the unit is characters."""
        return self._count(texts) if self._count is not None and texts else ()

    def _learn(self, texts: Sequence[str], counts: Sequence[int]) -> None:
        """Remembers how many characters a token has in these texts."""
        if counts:
            self._characters_per_token = sum(map(len, texts)) / max(1, sum(counts))

    def _split_text(self, text: str, start: int, size: int, overlap: int) -> list[Span]:
        """Splits a text that begins at `start` by characters."""
        spans: list[Span] = []
        end = start
        for offset, chunk in _make_splitter(self._markdown, size, overlap).chunk_indices(text):
            excess = max(
                0, end - overlap - (start + offset)
            )  # the library does not count a line's indentation
            spans.append((start + offset + excess, chunk[excess:]))
            end = start + offset + len(chunk)
        return spans

    def _fit(self, spans: list[Span], counts: Sequence[int]) -> Iterator[Span]:
        """Lists the chunks. Those with too many tokens are split again until they fit."""
        if not counts:
            yield from spans
            return
        for (start, text), tokens in zip(spans, counts, strict=True):
            if tokens <= self._size:
                yield start, text
            else:
                smaller = self._divide(start, text, ceil(tokens / (self._size * FILL)))
                yield from self._fit(smaller, self._count_tokens([text for _, text in smaller]))

    def _divide(self, start: int, text: str, parts: int) -> list[Span]:
        """Splits a chunk into about `parts` chunks, and at least two. Raises InvalidValue for one
        character."""
        if len(text) == 1:
            problem = f"chunk_size is too small: '{text}' alone has more than {self._size} tokens"
            raise InvalidValue(problem, param="chunk_size")
        return self._split_text(text, start, ceil(len(text) / parts), 0)


def _make_splitter(markdown: bool, size: int, overlap: int) -> "MarkdownSplitter | TextSplitter":
    """Makes the library's splitter."""
    from semantic_text_splitter import MarkdownSplitter, TextSplitter

    return MarkdownSplitter(size, overlap) if markdown else TextSplitter(size, overlap)
