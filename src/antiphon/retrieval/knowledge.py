"""The interface of the knowledge service, as dialects and the HTTP layer use it.

Each call is for the project of an actor. A table, document or chunk that this project does not have raises
NotFound, even if another project has it. Embedding calls are made as the actor, so the actor's limits, prices
and ledger include them.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from antiphon.domain.context import Context
from antiphon.domain.identity import Actor
from antiphon.domain.values import Struct
from antiphon.retrieval.base import (
    ChunkInput,
    DocumentInfo,
    DocumentInput,
    DocumentPage,
    IndexLimits,
    IndexUsage,
    KnowledgeIndex,
    SearchHit,
    SizeUnit,
    TableInfo,
    TextChunk,
)


class AutomaticModel(StrEnum):
    """Used in place of a model's name: the server chooses the model."""

    FIRST = "first"
    """The first embedding model that the caller can use. If there is none, the table has no model."""


class TableRequest(Struct, frozen=True):
    """A table to create. For None, the server chooses the value."""

    name: str
    embedding_model: str | AutomaticModel | None = AutomaticModel.FIRST
    """None: the table finds by words only."""
    chunk_size: int | None = None
    chunk_overlap: int | None = None
    chunk_unit: SizeUnit | None = None
    attributes: tuple[tuple[str, str], ...] = ()
    """Values that a dialect stores with a table."""


class FileUpload(Struct, frozen=True):
    """A file to add to a table. For None, the table's setting applies."""

    name: str
    content: bytes
    media_type: str = "application/octet-stream"
    chunk_size: int | None = None
    chunk_overlap: int | None = None
    chunk_unit: SizeUnit | None = None


class DocumentPart(Struct, frozen=True):
    """Some chunks of a document from an exported table, with or without vectors."""

    document: DocumentInput
    chunks: Sequence[ChunkInput]
    batch: int
    """Parts are numbered from 0."""
    is_last: bool
    warnings: Sequence[str] = ()


class SearchMode(StrEnum):
    """The rankings that a search fuses."""

    HYBRID = "hybrid"
    """Words and vectors; words alone in a table without vectors."""
    WORDS = "words"
    VECTORS = "vectors"


class TableSearch(Struct, frozen=True):
    """A search in a table."""

    query: str
    k: int = 3
    """The most hits."""
    mode: SearchMode = SearchMode.HYBRID
    documents: tuple[str, ...] = ()
    """Ids of the only documents to search; empty: all."""


class KnowledgeTables(Protocol):
    """The knowledge tables of a server. `KnowledgeService` implements it.

    It has the operations that need more than the index: a model, a file, or documents that are being read.
    """

    @property
    def index(self) -> KnowledgeIndex:
        """The index, for all other operations. A handler names the project of its request's actor."""

    @property
    def max_file_bytes(self) -> int:
        """The most bytes of a file."""

    @property
    def media_types(self) -> tuple[str, ...]:
        """The media types of the files that can be read here."""

    async def create_table(self, request: TableRequest, context: Context) -> TableInfo:
        """Raises Conflict if the name is taken, and ModelNotFound or PermissionDenied for the embedding
        model."""

    async def rename_table(self, actor: Actor, table: str, new_name: str) -> TableInfo:
        """Raises Conflict if the new name is taken, or while a document of the table is being read."""

    async def duplicate_table(
        self, actor: Actor, table: str, new_name: str, *, with_documents: bool = True
    ) -> TableInfo:
        """Copies a table with its ready documents and chunks."""

    async def delete_table(self, actor: Actor, table: str) -> None:
        """Removes a table with its content."""

    async def count_usage(self, actor: Actor) -> tuple[IndexUsage, IndexLimits]:
        """Returns how much the actor's project stores, and how much it can store."""

    async def add_document(
        self, table: str, upload: FileUpload, context: Context, *, wait: bool = False
    ) -> DocumentInfo:
        """Stores a file, and reads it in the background. `wait`: waits until the document is READY, and
        raises the error if it cannot be read. For a file that the table already has, returns the existing
        document."""

    async def import_part(self, table: str, part: DocumentPart, context: Context) -> DocumentInfo:
        """Adds chunks of a document, and embeds the chunks without a vector. Search finds the document after
        its last part. A repeated part changes nothing."""

    async def list_documents(
        self, actor: Actor, table: str, offset: int = 0, limit: int = 100
    ) -> DocumentPage:
        """Lists documents, the latest first."""

    async def get_document(self, actor: Actor, table: str, document: str) -> DocumentInfo:
        """Returns one document."""

    async def delete_document(self, actor: Actor, table: str, document: str) -> None:
        """Removes a document with its chunks."""

    async def add_chunks(
        self, table: str, chunks: Sequence[ChunkInput], context: Context
    ) -> tuple[TextChunk, ...]:
        """Adds chunks that belong to no document, and embeds the chunks without a vector."""

    async def update_chunks(
        self, table: str, contents: Mapping[str, ChunkInput], context: Context
    ) -> tuple[TextChunk, ...]:
        """Replaces the contents of chunks. `contents`: by chunk id; vectors in it are ignored. All chunks are
        embedded before the first chunk changes. Errors name the position of a chunk."""

    async def search(self, table: str, search: TableSearch, context: Context) -> tuple[SearchHit, ...]:
        """Returns the best chunks, the best first."""


# --- reading files ------------------------------------------------------------------------------------------


MAX_READINGS = 3
"""The most documents that one process reads and splits at the same time."""


class ChunkSizes(Struct, frozen=True):
    """How a document is split."""

    size: int
    overlap: int
    unit: SizeUnit


class StoredFile(Struct, frozen=True):
    """A file to read, on this machine's disk."""

    path: Path
    name: str
    """As the caller named it."""
    media_type: str


class TokenRule(Struct, frozen=True):
    """How an embedding model counts tokens, and its limit."""

    count: Callable[[Sequence[str]], Awaitable[Sequence[int]]]
    """Returns the tokens of each text."""
    max_tokens: int
    """The most tokens of one chunk."""


class SplitDocument(Struct, frozen=True):
    """The chunks of a document, without vectors."""

    chunks: tuple[ChunkInput, ...]
    notes: tuple[str, ...] = ()
    """Problems, one sentence each: what could not be read, or was split in another way."""


class DocumentReader(Protocol):
    """Reads files and splits them. The same file with the same sizes gives the same chunks."""

    @property
    def max_file_bytes(self) -> int:
        """The most bytes of a file."""

    @property
    def media_types(self) -> tuple[str, ...]:
        """The media types of the files that can be read here."""

    def require_sizes(self, sizes: ChunkSizes) -> None:
        """Raises InvalidValue for sizes that are impossible."""

    def require_readable(self, name: str, media_type: str) -> None:
        """Raises UnsupportedMediaType or InvalidValue if a file of this name and media type cannot be
        read."""

    async def read(self, file: StoredFile, sizes: ChunkSizes, tokens: TokenRule | None) -> SplitDocument:
        """Returns the chunks of a file. `tokens`: None if no model counts. Raises InvalidValue or
        UnsupportedMediaType with one sentence."""
