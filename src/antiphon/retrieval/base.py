"""The interface of knowledge tables and their index, and the checks of its arguments. It names no file, no
SQL and no process.

A table belongs to a project. It contains documents; a document contains chunks. Each call names the project.
An implementation opens a table by project and name together, so a missing filter cannot mix projects.

A document is added in steps: `begin_document`, `put_chunks` for each batch, and `finish_document`. After the
last step, search finds all its chunks; before, it finds none. A repeated step changes nothing, so a caller
that did not receive the result of a step can repeat the step.

Vectors are float32, little-endian, of any length but zero; similarity is the cosine. Times are Unix
milliseconds. All values can cross a process border. Every index makes the same checks, whose errors name the
field and the remedy.
"""

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Protocol, runtime_checkable

from antiphon.domain.values import Struct, astuple, field
from antiphon.errors import InvalidValue, KnowledgeLimitReached, NotFound

LONGEST_NAME = 200
"""The most characters of a table's name."""

LONGEST_FILE_NAME = 500
"""The most characters of a document's name."""

LONGEST_TEXT = 65_536
"""The most characters of a chunk's text, its title and its metadata together."""

MAX_BATCH = 512
"""The most chunks of one batch."""

MAX_BATCH_BYTES = 8 * 1024 * 1024
"""The most bytes of one batch: texts in UTF-8, and vectors."""

MAX_PAGE = 1000
"""The most documents, or chunks, of one listing."""

MAX_HITS = 1024
"""The most hits of one search, and of each ranking in it."""

MAX_HIT_BYTES = 12 * 1024 * 1024
"""The most bytes of text in the hits of one search. If there is more text, the worst hits are left out."""

MAX_DIMENSIONS = 16_384
"""The most dimensions of a vector."""

FUSED_HITS = 50
"""How many hits of each ranking a search fuses by default."""


class SizeUnit(StrEnum):
    """The unit of a chunk's size."""

    CHARACTERS = "characters"
    TOKENS = "tokens"
    """Tokens of the table's embedding model."""


class TableSettings(Struct, frozen=True):
    """The settings of a table. Only the name can change later."""

    name: str
    """From 1 to LONGEST_NAME characters, without control characters. It is unique in the project."""
    embedding_model: str | None = None
    """The model that makes the vectors. None: the table finds by words only."""
    dimensions: int = 0
    """Dimensions of each vector. It is 0 if and only if there is no embedding model."""
    chunk_size: int = 2000
    chunk_overlap: int = 200
    """Less than the size. Only code that splits documents uses the sizes; index and search do not."""
    chunk_unit: SizeUnit = SizeUnit.CHARACTERS
    attributes: Mapping[str, str] = field(default_factory=dict)
    """Values that a dialect stores with a table."""


class TableInfo(Struct, frozen=True):
    """A table, with the amount of its content."""

    settings: TableSettings
    created_at: int
    updated_at: int
    """When the content or the name changed last."""
    documents: int
    """Documents in any state."""
    chunks: int
    """Chunks of documents in any state, and chunks without a document."""
    bytes: int
    """The size of the stored texts and vectors of all chunks."""
    damage: str | None = None
    """Why the table cannot be used, and the remedy. The counts of such a table are 0."""


class DocumentState(StrEnum):
    """The progress of a document."""

    INDEXING = "indexing"
    """Chunks are being added. Search does not find them yet."""
    READY = "ready"
    """Search finds its chunks."""
    FAILED = "failed"
    """The document has no chunks. It can be begun again."""


class DocumentInput(Struct, frozen=True):
    """A document to add."""

    name: str
    """The file's name. When a new document with the same name is finished, it replaces the old document."""
    digest: str
    """Identifies the content and everything that changes the chunks, for example their size."""
    media_type: str = "application/octet-stream"
    bytes: int = 0
    """Size of the file."""
    id: str = ""
    """The id of a document from an exported table. If it is empty, the index creates an id. An existing
    document with the same digest keeps its id."""


class DocumentInfo(Struct, frozen=True):
    """A document."""

    id: str
    name: str
    digest: str
    media_type: str
    bytes: int
    """Size of the file."""
    chunks: int
    """Number of stored chunks, also while the document is INDEXING."""
    batches: tuple[int, ...]
    """Numbers of the stored batches, while the document is INDEXING. A caller that resumes skips these
    batches."""
    state: DocumentState
    error: str | None
    """Why the document FAILED, in one sentence. The knowledge service also uses it to say why an INDEXING
    document waits."""
    progress: int
    """Percent, from 0 to 100."""
    warnings: tuple[str, ...]
    """Parts of a READY document that could not be read, for example a page."""
    created_at: int
    updated_at: int
    total_chunks: int | None = None
    """Number of chunks of an INDEXING document. The knowledge service sets it once the file is split."""


class DocumentPage(Struct, frozen=True):
    """Some documents of a table, the latest first."""

    items: tuple[DocumentInfo, ...]
    total: int
    """Documents of the table."""


class ChunkInput(Struct, frozen=True):
    """A chunk to add, or the new content of a chunk."""

    text: str
    title: str = ""
    page: int | None = None
    file_name: str = ""
    """Empty: the document's name."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    vector: bytes = b""
    """One number for each dimension of the table. Empty in a table without vectors."""


class TextChunk(Struct, frozen=True):
    """A stored chunk."""

    id: str
    """Unique in its table, and never used again."""
    document: str
    """Id of its document; empty if the chunk belongs to no document."""
    text: str
    title: str
    page: int | None
    file_name: str
    metadata: Mapping[str, str]
    created_at: int
    updated_at: int
    vector: bytes = b""
    """Its vector, with length 1 and rounded to half precision; empty unless the call requested vectors."""


class ChunkPage(Struct, frozen=True):
    """Some chunks of the ready documents of a table, in the order in which they were added."""

    items: tuple[TextChunk, ...]
    total: int


class SearchQuery(Struct, frozen=True):
    """A search of one table by words, by a vector, or by both. Without them, it finds nothing."""

    words: str | None = None
    """Text of any length. A chunk that contains any of these words matches. Rare words count most (BM25). In
    a search with a vector, a chunk needs a third of the words by weight, unless the table is tiny."""
    vector: bytes = b""
    """As in ChunkInput. Empty: the search is by words only."""
    k: int = 3
    """The most hits, from 1 to MAX_HITS."""
    depth: int = FUSED_HITS
    """How many hits of each ranking are fused; at least `k`."""
    documents: tuple[str, ...] = ()
    """Ids of the only documents to search; empty: all."""


class SearchHit(Struct, frozen=True):
    """A chunk that was found."""

    chunk: TextChunk
    words_rank: int | None
    """Its rank among the hits by words, from 1; None if it is no such hit."""
    vector_rank: int | None
    """Its rank among the hits by vectors, from 1; None if it is no such hit."""
    score: float
    """The sum of 1 / (60 + rank) over both rankings. Higher is better."""
    similarity: float | None = None
    """The cosine of the vectors, for a hit by vectors."""


class IndexLimits(Struct, frozen=True):
    """The limits of what one project can store."""

    tables: int = 100
    documents: int = 100_000
    """In all tables, in any state."""
    chunks: int = 2_000_000
    bytes: int = 20 * 1024**3
    """Texts and vectors of all chunks, and the files that wait to be read."""
    waiting_files: int = 1_000
    """Files that are stored and not in the index yet."""


class IndexUsage(Struct, frozen=True):
    """How much one project stores now, in the units of IndexLimits."""

    tables: int = 0
    documents: int = 0
    chunks: int = 0
    bytes: int = 0
    waiting_files: int = 0
    """The index knows no waiting files: `services.knowledge` counts them."""


@runtime_checkable
class KnowledgeIndex(Protocol):
    """Knowledge tables of all projects.

    A table, document or chunk that the project does not have raises NotFound, even if another project has it.
    A value out of range raises InvalidValue. A call that would exceed the project's IndexLimits raises
    KnowledgeLimitReached. A full disk, or an index that does not answer, raises KnowledgeUnavailable. A
    damaged table raises KnowledgeTableDamaged; it can still be listed, shown and deleted.

    A failed call changes nothing. If the connection to the index is lost during a call, the call may have
    succeeded, and can be repeated.

    The annotations tell how a call crosses the border between two processes: a new method needs no other code
    there.
    """

    async def create_table(self, project: str, settings: TableSettings) -> TableInfo:
        """Raises Conflict if the name is taken."""

    async def list_tables(self, project: str) -> tuple[TableInfo, ...]:
        """Returns all tables of a project, by name."""

    async def get_table(self, project: str, table: str) -> TableInfo:
        """Returns one table."""

    async def rename_table(self, project: str, table: str, new_name: str) -> TableInfo:
        """Raises Conflict if the new name is taken."""

    async def duplicate_table(
        self, project: str, table: str, new_name: str, *, with_documents: bool = True
    ) -> TableInfo:
        """Copies a table with its ready documents and chunks. Ids stay. Raises Conflict if the new name is
        taken."""

    async def delete_table(self, project: str, table: str) -> None:
        """Removes a table with its content."""

    async def delete_project_tables(self, project: str) -> int:
        """Removes all tables of a project. Returns their number."""

    async def count_usage(self, project: str) -> IndexUsage:
        """Returns how much a project stores."""

    async def begin_document(self, project: str, table: str, document: DocumentInput) -> DocumentInfo:
        """Adds a document in the state INDEXING. If a document with the same digest exists, returns that
        document; a FAILED document becomes INDEXING again. Raises Conflict if the id belongs to a document
        with another digest."""

    async def put_chunks(
        self,
        project: str,
        table: str,
        document: str,
        batch: int,
        chunks: Sequence[ChunkInput],
        progress: int | None = None,
    ) -> DocumentInfo:
        """Adds a batch of chunks to an INDEXING document. Send the batches in the order of the text. A batch
        number that is stored already changes nothing. A batch for a READY document changes nothing.
        `progress`: percent. Raises Conflict for a FAILED document."""

    async def finish_document(
        self, project: str, table: str, document: str, warnings: Sequence[str] = ()
    ) -> DocumentInfo:
        """Makes a document READY, and removes the earlier documents with the same name, in one step. A READY
        document does not change. Raises Conflict for a FAILED document."""

    async def fail_document(self, project: str, table: str, document: str, error: str) -> DocumentInfo:
        """Makes an INDEXING document FAILED: removes its chunks, and stores the error. Documents in other
        states do not change."""

    async def list_documents(
        self, project: str, table: str, offset: int = 0, limit: int = 100
    ) -> DocumentPage:
        """Returns at most `limit` documents, the latest first. `limit`: at most MAX_PAGE."""

    async def get_document(self, project: str, table: str, document: str) -> DocumentInfo:
        """Returns one document."""

    async def delete_document(self, project: str, table: str, document: str) -> None:
        """Removes a document with its chunks."""

    async def add_chunks(
        self, project: str, table: str, chunks: Sequence[ChunkInput]
    ) -> tuple[TextChunk, ...]:
        """Adds chunks that belong to no document, at most MAX_BATCH. Search finds them at once. A repeated
        call adds them again."""

    async def list_chunks(
        self,
        project: str,
        table: str,
        document: str | None = None,
        offset: int = 0,
        limit: int = 100,
        *,
        with_vectors: bool = False,
    ) -> ChunkPage:
        """Returns at most `limit` chunks of one document, or of all documents. `limit`: at most MAX_PAGE."""

    async def get_chunk(self, project: str, table: str, chunk: str) -> TextChunk:
        """Returns one chunk with its vector."""

    async def update_chunk(self, project: str, table: str, chunk: str, content: ChunkInput) -> TextChunk:
        """Replaces the content of a chunk. The id, document and order of the chunk stay."""

    async def delete_chunks(self, project: str, table: str, chunks: Sequence[str]) -> int:
        """Removes chunks. Returns how many were removed. Unknown ids are ignored."""

    async def search(self, project: str, table: str, query: SearchQuery) -> tuple[SearchHit, ...]:
        """Returns the best chunks, the best first, with at most MAX_HIT_BYTES of text. Raises InvalidValue
        for a vector with other dimensions than the table."""


DOCUMENT_ID = re.compile("[0-9A-Za-z_-]{1,64}")
"""The form of a document's id from a caller."""

LARGEST_NUMBER = 2**31 - 1
"""The largest page, size and batch number."""


def require_settings(settings: TableSettings) -> None:
    """Raises InvalidValue for a table that cannot be made."""
    require_name(settings.name)
    if not 0 <= settings.dimensions <= MAX_DIMENSIONS:
        raise InvalidValue(f"dimensions must be from 0 to {MAX_DIMENSIONS}", param="dimensions")
    if (settings.embedding_model is None) != (settings.dimensions == 0):
        raise InvalidValue(
            "dimensions must be given with embedding_model, and without one they must be 0",
            param="dimensions",
        )
    if not 1 <= settings.chunk_size <= LONGEST_TEXT:
        raise InvalidValue(f"chunk_size must be from 1 to {LONGEST_TEXT}", param="chunk_size")
    if not 0 <= settings.chunk_overlap < settings.chunk_size:
        raise InvalidValue("chunk_overlap must be at least 0 and below chunk_size", param="chunk_overlap")
    measure_text(json.dumps(dict(settings.attributes)), "attributes")


def require_name(name: str) -> None:
    """Raises InvalidValue for a name that no table can have."""
    if not 1 <= len(name) <= LONGEST_NAME or name != name.strip():
        raise InvalidValue(
            f"a table's name must have from 1 to {LONGEST_NAME} characters, and no space at its ends",
            param="name",
        )
    _require_printable(name, "a table's name", "name")


def require_document(document: DocumentInput) -> None:
    """Raises InvalidValue for a document that cannot be added."""
    require_file_name(document.name)
    for value, name in ((document.digest, "digest"), (document.media_type, "media_type")):
        if not 1 <= len(value) <= LONGEST_FILE_NAME:
            raise InvalidValue(f"{name} must have from 1 to {LONGEST_FILE_NAME} characters", param=name)
        _require_printable(value, name, name)
    if document.id and not DOCUMENT_ID.fullmatch(document.id):
        raise InvalidValue("a document's id must have letters, digits, - and _ only, at most 64", param="id")
    if document.bytes < 0:
        raise InvalidValue("bytes must be at least 0", param="bytes")


def require_file_name(name: str) -> None:
    """Raises InvalidValue for a name that no document can have."""
    if not 1 <= len(name) <= LONGEST_FILE_NAME:
        raise InvalidValue(
            f"a document's name must have from 1 to {LONGEST_FILE_NAME} characters", param="file_name"
        )
    _require_printable(name, "a document's name", "file_name")


def _require_printable(text: str, noun: str, field: str) -> None:
    """Raises InvalidValue for control characters and lone surrogates."""
    if any(unicodedata.category(letter) in ("Cc", "Cs") for letter in text):
        raise InvalidValue(f"{noun} must not contain control characters", param=field)


def require_batch(batch: int, chunks: Sequence[ChunkInput], progress: int | None) -> None:
    """Raises InvalidValue for a batch that is too large, or has an invalid number."""
    if not 0 <= batch <= LARGEST_NUMBER:
        raise InvalidValue(f"a batch's number must be from 0 to {LARGEST_NUMBER}", param="batch")
    if progress is not None and not 0 <= progress <= 100:
        raise InvalidValue("progress must be from 0 to 100 percent", param="progress")
    require_chunks(chunks)


def require_chunks(chunks: Sequence[ChunkInput]) -> None:
    """Raises InvalidValue for too many chunks in one call, or for a chunk that cannot be stored."""
    if len(chunks) > MAX_BATCH:
        raise InvalidValue(
            f"one call can have at most {MAX_BATCH} chunks, not {len(chunks)}: send fewer at a time",
            param="chunks",
        )
    total = sum(measure_chunk(chunk, f"chunks[{index}]") for index, chunk in enumerate(chunks))
    if total > MAX_BATCH_BYTES:
        raise InvalidValue(
            f"one call can have at most {MAX_BATCH_BYTES} bytes of chunks, not {total}: send fewer at a time",
            param="chunks",
        )


def measure_chunk(chunk: ChunkInput, field: str) -> int:
    """Returns the bytes of a chunk's texts and vector. Raises InvalidValue for a chunk that cannot be
    stored."""
    if chunk.page is not None and not 0 <= chunk.page <= LARGEST_NUMBER:
        raise InvalidValue(f"{field}.page must be from 0 to {LARGEST_NUMBER}", param=f"{field}.page")
    if chunk.file_name:
        require_file_name(chunk.file_name)
    texts = measure_text(chunk.text + chunk.title + encode_metadata(chunk.metadata), f"{field}.text")
    return texts + len(chunk.vector)


def encode_metadata(metadata: Mapping[str, str]) -> str:
    """Returns metadata as JSON; empty if there is no metadata."""
    return json.dumps(dict(metadata), ensure_ascii=False) if metadata else ""


def measure_text(text: str, field: str) -> int:
    """Returns the bytes of a text in UTF-8. Raises InvalidValue for a text that is too long or has lone
    surrogates."""
    if len(text) > LONGEST_TEXT:
        raise InvalidValue(
            f"{field}, with title and metadata, has {len(text)} characters: the most is {LONGEST_TEXT}",
            param=field,
        )
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise InvalidValue(f"{field} contains half of a character: send whole Unicode", param=field) from None


def require_listing(offset: int, limit: int) -> None:
    """Raises InvalidValue for an invalid offset or limit."""
    if not 0 <= offset <= LARGEST_NUMBER:
        raise InvalidValue(f"offset must be from 0 to {LARGEST_NUMBER}", param="offset")
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidValue(f"limit must be from 1 to {MAX_PAGE}", param="limit")


def require_query(query: SearchQuery) -> None:
    """Raises InvalidValue for an invalid search."""
    for value, name in ((query.k, "k"), (query.depth, "depth")):
        if not 1 <= value <= MAX_HITS:
            raise InvalidValue(f"{name} must be from 1 to {MAX_HITS}", param=name)
    require_ids(query.documents, "documents")


def cut_hits(hits: Sequence[SearchHit]) -> tuple[SearchHit, ...]:
    """Returns the best hits that together have at most MAX_HIT_BYTES of text, so that one message can contain
    them. `hits`: the best first."""
    total = 0
    for index, hit in enumerate(hits):
        chunk = hit.chunk
        total += len((chunk.text + chunk.title).encode())
        total += sum(len((name + value).encode()) for name, value in chunk.metadata.items())
        if total > MAX_HIT_BYTES:
            return tuple(hits[:index])
    return tuple(hits)


def require_ids(ids: Sequence[str], field: str) -> None:
    """Raises InvalidValue for too many ids."""
    if len(ids) > MAX_HITS:
        raise InvalidValue(f"{field} must have at most {MAX_HITS} ids", param=field)


def require_within_limits(limits: IndexLimits, total: IndexUsage) -> None:
    """Raises KnowledgeLimitReached if a project would store more than its limits allow. `total`: what it
    would store after the write."""
    for name in ("tables", "documents", "chunks", "bytes"):
        maximum = getattr(limits, name)
        if getattr(total, name) > maximum:
            raise KnowledgeLimitReached(
                f"this project's knowledge tables can keep {maximum} {name}: "
                "remove some, or ask the operator for a higher limit",
                param=name,
            )


def add_usage(*usages: IndexUsage) -> IndexUsage:
    """Returns the sum of each column."""
    columns = zip(*map(astuple, usages), strict=True)
    return IndexUsage(*map(sum, columns))


def build_missing_table_error(table: str) -> NotFound:
    """Returns the error for a table that the project does not have."""
    return NotFound(f"there is no knowledge table {table[:80]!r}", param="table")
