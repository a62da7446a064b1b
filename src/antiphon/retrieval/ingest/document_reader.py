"""Reads a file and splits its text into chunks. The sandbox extracts the text; a thread splits it.

The sandbox is another process. So no document can block or end the caller's process, or use up its memory.
"""

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import NamedTemporaryFile

from msgspec import convert

from antiphon.domain.values import asdict
from antiphon.errors import InvalidValue
from antiphon.processes.sandbox import NOTHING, JobRunner, JobStopped, Limits, Stop, run_job
from antiphon.retrieval.base import ChunkInput, SizeUnit
from antiphon.retrieval.ingest.documents import (
    BINARY_FORMATS,
    DEFAULT_LIMITS,
    DocumentFormat,
    ExtractedDocument,
    ExtractedPage,
    ExtractionLimits,
    build_refusal,
    find_format,
    list_media_types,
    require_readable,
)
from antiphon.retrieval.ingest.split import SMALLEST_SIZE, CountTokens, DocumentChunk, SplitOptions, split
from antiphon.retrieval.knowledge import MAX_READINGS, ChunkSizes, SplitDocument, StoredFile, TokenRule

JOB = "antiphon.retrieval.ingest.reading_job:run_reading"
"""The sandbox's job. It is not imported here, because only the sandbox may import the readers."""

BYTES_PER_CHARACTER = 12
"""The most bytes of JSON for one character."""

OVERHEAD_BYTES = 1 << 20
"""The most bytes of JSON besides the text."""

REASONS = {
    Stop.TIME: "takes more than {seconds:g} s of computing to read; simplify it or split it",
    Stop.MEMORY: "takes more than {mebibytes:,} MiB of memory to read; simplify it or split it",
    Stop.OUTPUT: "has too much text; split it",
    Stop.CRASH: "is damaged, or takes more than {mebibytes:,} MiB to read; save it again or split it",
}


async def extract(
    path: Path,
    file_name: str,
    media_type: str = "",
    limits: ExtractionLimits = DEFAULT_LIMITS,
    run: JobRunner = run_job,
) -> ExtractedDocument:
    """Returns the text of the document at `path`.

    `file_name`: the caller's name of the file; its extension names the format. `media_type`: what the caller
    declares, perhaps with a charset. `run`: runs the job that reads. Raises InvalidValue or
    UnsupportedMediaType, with one sentence that names the file and the remedy; ServerBusy if the machine is
    too busy.
    """
    payload = {
        "path": str(path),
        "file_name": file_name,
        "media_type": media_type,
        "limits": asdict(limits),
    }
    max_result_bytes = BYTES_PER_CHARACTER * limits.characters + OVERHEAD_BYTES
    is_text = find_format(file_name, media_type) not in BINARY_FORMATS
    cpu_seconds = limits.text_cpu_seconds if is_text else limits.cpu_seconds
    job_limits = Limits(cpu_seconds, limits.wall_seconds, limits.memory_bytes, max_result_bytes)
    try:
        result = await run(JOB, payload, job_limits, NOTHING)
    except JobStopped as stopped:
        stopped.raise_if_machine_was_busy()
        reason = REASONS[stopped.stop].format(seconds=cpu_seconds, mebibytes=limits.memory_bytes >> 20)
        raise build_refusal(file_name, reason) from None
    return convert(result, ExtractedDocument)


async def extract_text(data: bytes, media_type: str) -> str:
    """Returns the text of a document of a message. Raises the errors of `extract`, and UnsupportedMediaType
    if the reader of its format is not installed."""
    name = "document"
    require_readable(name, media_type)
    with NamedTemporaryFile() as file:
        await asyncio.to_thread(Path(file.name).write_bytes, data)
        document = await extract(Path(file.name), name, media_type)
    return "\n\n".join([page.text for page in document.pages if page.text.strip()])


@dataclass(frozen=True, slots=True)
class SandboxedReader:
    """The `DocumentReader` of one process."""

    limits: ExtractionLimits = DEFAULT_LIMITS
    run: JobRunner = run_job
    """Runs the job that reads a file."""
    threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(MAX_READINGS, "antiphon-split"), compare=False
    )
    """The threads that split documents. A thread waits while the model's tokens are counted, so each document
    that is read has its own."""

    @property
    def max_file_bytes(self) -> int:
        return self.limits.file_bytes

    @property
    def media_types(self) -> tuple[str, ...]:
        return list_media_types()

    def require_sizes(self, sizes: ChunkSizes) -> None:
        SplitOptions(sizes.size, sizes.overlap, sizes.unit)

    def require_readable(self, name: str, media_type: str) -> None:
        require_readable(name, media_type)

    async def read(self, file: StoredFile, sizes: ChunkSizes, tokens: TokenRule | None) -> SplitDocument:
        options = SplitOptions(sizes.size, sizes.overlap, sizes.unit)
        if sizes.unit is SizeUnit.TOKENS and tokens is None:
            problem = "cannot be split: the embedding model's tokens cannot be counted; give characters"
            raise build_refusal(file.name, problem)
        document = await extract(file.path, file.name, file.media_type, self.limits, self.run)
        loop = asyncio.get_running_loop()

        def count_tokens(texts: Sequence[str]) -> Sequence[int]:
            """Counts tokens in the event loop. The thread that splits calls it and waits for the result."""
            if tokens is None:
                raise ValueError("no model counts tokens")
            return asyncio.run_coroutine_threadsafe(_await_counts(tokens, texts), loop).result()

        max_tokens = None if tokens is None else tokens.max_tokens
        return await loop.run_in_executor(
            self.threads, split_for_model, document, options, max_tokens, count_tokens
        )


async def _await_counts(tokens: TokenRule, texts: Sequence[str]) -> Sequence[int]:
    return await tokens.count(texts)


def split_for_model(
    document: ExtractedDocument, options: SplitOptions, max_tokens: int | None, count_tokens: CountTokens
) -> SplitDocument:
    """Splits a document. Chunks with too many tokens for the embedding model are split again. Raises
    InvalidValue for a document without text.

    `max_tokens`: the most tokens of a chunk that the embedding model reads; None if no model counts tokens.
    """
    if max_tokens is None:
        chunks, split_count = list(split(document, options)), 0
    elif options.unit is SizeUnit.TOKENS:
        chunks, split_count = list(split(document, options, count_tokens)), 0
    else:
        chunks, split_count = _split_long_chunks(
            list(split(document, options)), document.markdown, max_tokens, count_tokens
        )
    if not chunks:
        raise InvalidValue("the document has no text; if it is scanned, recognize its text first")
    notes = document.notes
    if split_count:
        notes += (
            f"{split_count} chunks of {options.size} characters were split further, because the embedding "
            f"model reads at most {max_tokens} tokens.",
        )
    inputs = (ChunkInput(chunk.text, chunk.title, chunk.page, chunk.file_name) for chunk in chunks)
    return SplitDocument(tuple(inputs), notes)


def _split_long_chunks(
    chunks: list[DocumentChunk], markdown: bool, max_tokens: int, count_tokens: CountTokens
) -> tuple[list[DocumentChunk], int]:
    """Splits the chunks that have too many tokens. Returns all chunks, and how many were split."""
    fitting: list[DocumentChunk] = []
    counts = count_tokens([chunk.text for chunk in chunks])
    for chunk, tokens in zip(chunks, counts, strict=True):
        fitting += (
            [chunk] if tokens <= max_tokens else _split_by_tokens(chunk, markdown, max_tokens, count_tokens)
        )
    return fitting, sum(tokens > max_tokens for tokens in counts)


def _split_by_tokens(
    chunk: DocumentChunk, markdown: bool, max_tokens: int, count_tokens: CountTokens
) -> Iterator[DocumentChunk]:
    """Splits one chunk by tokens. The parts keep its title and page."""
    page = ExtractedPage(chunk.text, chunk.page, chunk.title)
    chunk_document = ExtractedDocument(chunk.file_name, DocumentFormat.TEXT, (page,), chunk.title, markdown)
    options = SplitOptions(max(SMALLEST_SIZE, max_tokens), 0, SizeUnit.TOKENS)
    for part in split(chunk_document, options, count_tokens):
        yield DocumentChunk(part.text, chunk.title, chunk.page, chunk.start + part.start, chunk.file_name)
