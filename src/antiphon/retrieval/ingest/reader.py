"""Reads a file and splits it for the ingest job. The sandbox extracts the text; a thread splits it."""

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from antiphon.errors import InvalidValue
from antiphon.retrieval.base import ChunkInput, SizeUnit
from antiphon.retrieval.ingest.documents import (
    DEFAULT_LIMITS,
    DocumentFormat,
    ExtractedDocument,
    ExtractedPage,
    ExtractionLimits,
    refuse,
)
from antiphon.retrieval.ingest.extract import extract
from antiphon.retrieval.ingest.formats import find_format, list_media_types
from antiphon.retrieval.ingest.split import SMALLEST_SIZE, CountTokens, DocumentChunk, SplitOptions, split
from antiphon.retrieval.knowledge import ChunkSizes, SplitDocument, StoredFile, TokenRule


@dataclass(frozen=True, slots=True)
class SandboxedReader:
    """The `DocumentReader` of one process."""

    limits: ExtractionLimits = DEFAULT_LIMITS
    threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, "antiphon-split"), compare=False
    )
    """The thread that splits documents. More threads would only compete for the interpreter lock."""

    @property
    def max_file_bytes(self) -> int:
        return self.limits.size

    @property
    def media_types(self) -> tuple[str, ...]:
        return list_media_types()

    def require_sizes(self, sizes: ChunkSizes) -> None:
        SplitOptions(sizes.size, sizes.overlap, sizes.unit)

    def require_readable(self, name: str, media_type: str) -> None:
        find_format(name, media_type)

    async def read(self, file: StoredFile, sizes: ChunkSizes, tokens: TokenRule | None) -> SplitDocument:
        options = SplitOptions(sizes.size, sizes.overlap, sizes.unit)
        if sizes.unit is SizeUnit.TOKENS and tokens is None:
            problem = "cannot be split: the embedding model's tokens cannot be counted; give characters"
            raise refuse(file.name, problem)
        document = await extract(file.path, file.name, file.media_type, self.limits)
        loop = asyncio.get_running_loop()

        def count(texts: Sequence[str]) -> Sequence[int]:
            """Counts tokens from the thread."""
            if tokens is None:
                raise ValueError("no model counts tokens")
            return asyncio.run_coroutine_threadsafe(_await(tokens, texts), loop).result()

        longest = None if tokens is None else tokens.longest
        work = loop.run_in_executor(self.threads, split_within, document, options, longest, count)
        return await work


async def _await(tokens: TokenRule, texts: Sequence[str]) -> Sequence[int]:
    return await tokens.count(texts)


def split_within(
    document: ExtractedDocument, options: SplitOptions, longest: int | None, count: CountTokens
) -> SplitDocument:
    """Splits a document. Chunks with too many tokens for the embedding model are split again. Raises
    InvalidValue for a document without text.

    `longest`: the most tokens of a chunk; None if no embedding model counts tokens.
    """
    if longest is None:
        chunks, divided = list(split(document, options)), 0
    elif options.unit is SizeUnit.TOKENS:
        chunks, divided = list(split(document, options, count)), 0
    else:
        chunks, divided = _split_long_chunks(
            list(split(document, options)), document.markdown, longest, count
        )
    if not chunks:
        raise InvalidValue("the document has no text; if it is scanned, recognize its text first")
    notes = document.notes
    if divided:
        notes += (
            f"{divided} chunks of {options.size} characters were split further, since the embedding model "
            f"reads at most {longest} tokens.",
        )
    return SplitDocument(tuple(map(_make_input, chunks)), notes)


def _split_long_chunks(
    chunks: list[DocumentChunk], markdown: bool, longest: int, count: CountTokens
) -> tuple[list[DocumentChunk], int]:
    """Splits the chunks that have too many tokens. Returns all chunks, and how many were split."""
    fitting: list[DocumentChunk] = []
    counts = count([chunk.text for chunk in chunks])
    for chunk, tokens in zip(chunks, counts, strict=True):
        fitting += [chunk] if tokens <= longest else _split_by_tokens(chunk, markdown, longest, count)
    return fitting, sum(tokens > longest for tokens in counts)


def _split_by_tokens(
    chunk: DocumentChunk, markdown: bool, longest: int, count: CountTokens
) -> Iterator[DocumentChunk]:
    """Splits one chunk by tokens. The parts keep its title and page."""
    page = ExtractedPage(chunk.text, chunk.page, chunk.title)
    chunk_document = ExtractedDocument(chunk.file_name, DocumentFormat.TEXT, (page,), chunk.title, markdown)
    options = SplitOptions(max(SMALLEST_SIZE, longest), 0, SizeUnit.TOKENS)
    for part in split(chunk_document, options, count):
        yield DocumentChunk(part.text, chunk.title, chunk.page, chunk.start + part.start, chunk.file_name)


def _make_input(chunk: DocumentChunk) -> ChunkInput:
    return ChunkInput(chunk.text, chunk.title, chunk.page, chunk.file_name)
