"""The interface of knowledge tables and their index. It names no file, no SQL and no process.

A table belongs to a project. It contains documents; a document contains chunks. Each call names the project,
and an implementation opens a table by project and name together, so no filter separates the projects.

A document is added in steps: `begin_document`, `put_chunks` for each batch, and `finish_document`. Search
finds its chunks once it is finished, and all of them at once. A step that is repeated changes nothing, so a
caller that lost an answer repeats the step.

Vectors are float32, little-endian, of any length but zero; similarity is the cosine. Times are Unix
milliseconds. All values can cross a process border.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

LONGEST_NAME = 200
"""Most characters of a table's name."""

LONGEST_FILE_NAME = 500
"""Most characters of a document's name."""

LONGEST_TEXT = 65_536
"""Most characters of a chunk's text, its title and its metadata together."""

MAX_BATCH = 512
"""Most chunks of one batch."""

MAX_BATCH_BYTES = 8 * 1024 * 1024
"""Most bytes of one batch: texts in UTF-8, and vectors."""

MAX_PAGE = 1000
"""Most documents, or chunks, of one listing."""

MAX_HITS = 1024
"""Most hits of one search, and of each of its rankings."""

MAX_HIT_BYTES = 12 * 1024 * 1024
"""Most bytes of text in the hits of one search. Of more hits, the worst are left out."""

MAX_DIMENSIONS = 16_384
"""Most dimensions of a vector."""

FUSED_HITS = 50
"""Hits of each ranking that a search fuses unless it says otherwise."""


class SizeUnit(StrEnum):
    """The unit of a chunk's size."""

    CHARACTERS = "characters"
    TOKENS = "tokens"
    """Tokens of the table's embedding model."""


@dataclass(frozen=True, slots=True)
class TableSettings:
    """What a table is made with. Only its name can change later."""

    name: str
    """From 1 to LONGEST_NAME characters, any but control characters. Two tables of a project have two
    names."""
    embedding_model: str | None = None
    """The model that makes the vectors. None: the table finds by words only."""
    dimensions: int = 0
    """Dimensions of each vector; 0 exactly where there is no embedding model."""
    chunk_size: int = 2000
    chunk_overlap: int = 200
    """Less than the size. Index and search do not read the sizes; they are kept for those who split."""
    chunk_unit: SizeUnit = SizeUnit.CHARACTERS
    attributes: Mapping[str, str] = field(default_factory=dict)
    """Anything that a dialect keeps with a table."""


@dataclass(frozen=True, slots=True)
class TableInfo:
    """A table and what it contains."""

    settings: TableSettings
    created_at: int
    updated_at: int
    """When its contents or its name changed last."""
    documents: int
    """Documents in any state."""
    chunks: int
    """Chunks of documents in any state, and chunks without a document."""
    bytes: int
    """Texts and vectors of all chunks, as they are kept."""
    damage: str | None = None
    """Why the table cannot be used, and the remedy. Its numbers are then 0."""


class DocumentState(StrEnum):
    """How far a document is."""

    INDEXING = "indexing"
    """Its chunks arrive. Search does not find them."""
    READY = "ready"
    """Search finds its chunks."""
    FAILED = "failed"
    """It has no chunks. It can begin again."""


@dataclass(frozen=True, slots=True)
class DocumentInput:
    """A document to add."""

    name: str
    """The file's name. A new document of the same name replaces the old one when it is finished."""
    digest: str
    """Names the content and everything that changes its chunks, such as their size."""
    media_type: str = "application/octet-stream"
    bytes: int = 0
    """Size of the file."""
    id: str = ""
    """Its id in the table, for a document of an exported table; empty: the index makes one. A document of the
    same digest keeps its own."""


@dataclass(frozen=True, slots=True)
class DocumentInfo:
    """A document."""

    id: str
    name: str
    digest: str
    media_type: str
    bytes: int
    """Size of the file."""
    chunks: int
    """Chunks that are kept, also while it is INDEXING."""
    batches: tuple[int, ...]
    """Numbers of the batches that are kept while it is INDEXING. A resumed caller leaves these out."""
    state: DocumentState
    error: str | None
    """Why it FAILED, in one sentence. The knowledge service also tells here why an INDEXING one waits."""
    progress: int
    """Percent, from 0 to 100."""
    warnings: tuple[str, ...]
    """What could not be read of a READY document, such as a page."""
    created_at: int
    updated_at: int


@dataclass(frozen=True, slots=True)
class DocumentPage:
    """Some documents of a table, the latest first."""

    items: tuple[DocumentInfo, ...]
    total: int
    """Documents of the table."""


@dataclass(frozen=True, slots=True)
class ChunkInput:
    """A chunk to add, or the new content of a chunk."""

    text: str
    title: str = ""
    page: int | None = None
    file_name: str = ""
    """Empty: the document's name."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    vector: bytes = b""
    """One number for each dimension of the table. Empty in a table without vectors."""


@dataclass(frozen=True, slots=True)
class TextChunk:
    """A chunk that is kept."""

    id: str
    """Unique in its table, and never used again."""
    document: str
    """Id of its document; empty where it has none."""
    text: str
    title: str
    page: int | None
    file_name: str
    metadata: Mapping[str, str]
    created_at: int
    updated_at: int
    vector: bytes = b""
    """Its vector of length 1, rounded to half precision, where a call asked for it."""


@dataclass(frozen=True, slots=True)
class ChunkPage:
    """Some chunks of the ready documents of a table, in the order in which they were added."""

    items: tuple[TextChunk, ...]
    total: int


@dataclass(frozen=True, slots=True)
class SearchQuery:
    """What to find. Without words and without a vector nothing is found."""

    words: str | None = None
    """Text of any length. A chunk with any of its words matches; rare words count most (BM25). Beside a
    vector, a chunk needs a third of the words by weight, unless the table is tiny."""
    vector: bytes = b""
    """As in ChunkInput. Empty: the search is by words only."""
    k: int = 3
    """Most hits, from 1 to MAX_HITS."""
    depth: int = FUSED_HITS
    """Hits of each ranking that are fused; at least `k` are."""
    documents: tuple[str, ...] = ()
    """Ids of the only documents to search; empty: all."""


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A chunk that was found."""

    chunk: TextChunk
    words_rank: int | None
    """Its place among the hits by words, from 1; None where it is not among them."""
    vector_rank: int | None
    """Its place among the hits by vectors, from 1; None where it is not among them."""
    score: float
    """The sum of 1 / (60 + rank) over both rankings. Higher is better."""
    similarity: float | None = None
    """The cosine of the vectors, for a hit by vectors."""


@dataclass(frozen=True, slots=True)
class IndexLimits:
    """What one project can keep."""

    tables: int = 100
    documents: int = 100_000
    """In all tables, in any state."""
    chunks: int = 2_000_000
    bytes: int = 20 * 1024**3
    """Texts and vectors of all chunks."""


@dataclass(frozen=True, slots=True)
class IndexUsage:
    """What one project keeps now, in the units of IndexLimits."""

    tables: int = 0
    documents: int = 0
    chunks: int = 0
    bytes: int = 0


class KnowledgeIndex(Protocol):
    """Knowledge tables of all projects.

    A table, document or chunk that the project does not have raises NotFound, whoever else has it. A value
    out of range raises InvalidValue. A project without room raises KnowledgeLimitReached. A full disk
    and an index that is away raise KnowledgeUnavailable; a damaged table raises KnowledgeTableDamaged, and
    can be listed, shown and deleted. A failed call changed nothing; where
    the index went away during the call, it may have been done, and can be repeated.
    """

    async def create_table(self, project: str, settings: TableSettings) -> TableInfo:
        """Raises Conflict where the name is taken."""

    async def list_tables(self, project: str) -> tuple[TableInfo, ...]:
        """Returns all tables of a project, by name."""

    async def get_table(self, project: str, table: str) -> TableInfo:
        """Returns one table."""

    async def rename_table(self, project: str, table: str, new_name: str) -> TableInfo:
        """Raises Conflict where the new name is taken."""

    async def duplicate_table(
        self, project: str, table: str, new_name: str, *, with_documents: bool = True
    ) -> TableInfo:
        """Copies a table with its ready documents and chunks. Ids stay. Raises Conflict where the new name is
        taken."""

    async def delete_table(self, project: str, table: str) -> None:
        """Removes a table with all that it contains."""

    async def delete_project(self, project: str) -> int:
        """Removes all tables of a project. Returns their number."""

    async def count_usage(self, project: str) -> IndexUsage:
        """Returns what a project keeps."""

    async def begin_document(self, project: str, table: str, document: DocumentInput) -> DocumentInfo:
        """Adds a document, INDEXING. Returns the existing document of the same digest, if there is one; a
        FAILED one is then INDEXING again. Raises Conflict for an id of a document of another digest."""

    async def put_chunks(
        self,
        project: str,
        table: str,
        document: str,
        batch: int,
        chunks: Sequence[ChunkInput],
        progress: int | None = None,
    ) -> DocumentInfo:
        """Adds a batch of chunks to an INDEXING document; send the batches in the order of the text. A batch
        number that is kept already changes nothing, and so does any batch of a READY document. `progress`:
        percent. Raises Conflict for a FAILED document."""

    async def finish_document(
        self, project: str, table: str, document: str, warnings: Sequence[str] = ()
    ) -> DocumentInfo:
        """Makes a document READY, and removes the documents of the same name that began before it, in one
        step. A READY document stays as it is. Raises Conflict for a FAILED one."""

    async def fail_document(self, project: str, table: str, document: str, error: str) -> DocumentInfo:
        """Removes the chunks of an INDEXING document and keeps the reason. Other states stay as they are."""

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
        """Returns at most `limit` chunks of one document, or of all. `limit`: at most MAX_PAGE."""

    async def get_chunk(self, project: str, table: str, chunk: str) -> TextChunk:
        """Returns one chunk with its vector."""

    async def update_chunk(self, project: str, table: str, chunk: str, content: ChunkInput) -> TextChunk:
        """Replaces the content of a chunk. Its id, document and place stay."""

    async def delete_chunks(self, project: str, table: str, chunks: Sequence[str]) -> int:
        """Removes chunks. Returns how many there were. An unknown id is left out."""

    async def search(self, project: str, table: str, query: SearchQuery) -> tuple[SearchHit, ...]:
        """Returns the best chunks, the best first, with at most MAX_HIT_BYTES of text. Raises InvalidValue
        for a vector that is not of the table's dimensions."""
