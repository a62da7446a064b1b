"""The interface of knowledge tables and their index. It names no file, no SQL and no process.

A table belongs to a project. It contains documents; a document contains chunks. Each call names the project.
An implementation opens a table by project and name together, so a missing filter cannot mix projects.

A document is added in steps: `begin_document`, `put_chunks` for each batch, and `finish_document`. After the
last step, search finds all its chunks; before, it finds none. A repeated step changes nothing, so a caller
that did not receive the result of a step can repeat the step.

Vectors are float32, little-endian, of any length but zero; similarity is the cosine. Times are Unix
milliseconds. All values can cross a process border.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Protocol

from antiphon.domain.values import Struct, field

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
    """Texts and vectors of all chunks."""


class IndexUsage(Struct, frozen=True):
    """How much one project stores now, in the units of IndexLimits."""

    tables: int = 0
    documents: int = 0
    chunks: int = 0
    bytes: int = 0


class KnowledgeIndex(Protocol):
    """Knowledge tables of all projects.

    A table, document or chunk that the project does not have raises NotFound, even if another project has it.
    A value out of range raises InvalidValue. A call that would exceed the project's IndexLimits raises
    KnowledgeLimitReached. A full disk, or an index that does not answer, raises KnowledgeUnavailable. A
    damaged table raises KnowledgeTableDamaged; it can still be listed, shown and deleted.

    A failed call changes nothing. If the connection to the index is lost during a call, the call may have
    succeeded, and can be repeated.
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
