"""The interface of the knowledge service, as dialects and the HTTP layer use it.

Each call is made for the project of an actor. A table, document or chunk that this project does not have
raises NotFound, whoever else has it. Embedding calls are made as the actor, so its limits, its prices and the
ledger count them.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from antiphon.domain.context import Context
from antiphon.domain.identity import Actor
from antiphon.retrieval.base import (
    ChunkInput,
    ChunkPage,
    DocumentInfo,
    DocumentInput,
    DocumentPage,
    IndexLimits,
    IndexUsage,
    SearchHit,
    SizeUnit,
    TableInfo,
    TextChunk,
)


class AutomaticModel(StrEnum):
    """Stands for a model that the server chooses."""

    FIRST = "first"
    """The first embedding model that the caller can use; none if there is none."""


@dataclass(frozen=True, slots=True)
class TableRequest:
    """A table to create. None is the server's choice."""

    name: str
    embedding_model: str | AutomaticModel | None = AutomaticModel.FIRST
    """None: the table finds by words only."""
    chunk_size: int | None = None
    chunk_overlap: int | None = None
    chunk_unit: SizeUnit | None = None
    attributes: tuple[tuple[str, str], ...] = ()
    """Anything that a dialect keeps with a table."""


@dataclass(frozen=True, slots=True)
class FileUpload:
    """A file to add to a table. None is the table's own setting."""

    name: str
    content: bytes
    media_type: str = "application/octet-stream"
    chunk_size: int | None = None
    chunk_overlap: int | None = None
    chunk_unit: SizeUnit | None = None


@dataclass(frozen=True, slots=True)
class DocumentPart:
    """Some chunks of a document of an exported table, with or without their vectors."""

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


@dataclass(frozen=True, slots=True)
class TableSearch:
    """A search in a table."""

    query: str
    k: int = 3
    """Most hits."""
    mode: SearchMode = SearchMode.HYBRID
    documents: tuple[str, ...] = ()
    """Ids of the only documents to search; empty: all."""


class KnowledgeTables(Protocol):
    """The knowledge tables of a server. `KnowledgeService` implements it."""

    @property
    def max_file_bytes(self) -> int:
        """The most bytes of a file."""

    @property
    def media_types(self) -> tuple[str, ...]:
        """The media types of the files that can be read here."""

    async def create_table(self, request: TableRequest, context: Context) -> TableInfo:
        """Raises Conflict where the name is taken, and ModelNotFound or PermissionDenied for the embedding
        model."""

    async def list_tables(self, actor: Actor) -> tuple[TableInfo, ...]:
        """Lists the tables of the actor's project, by name."""

    async def get_table(self, actor: Actor, table: str) -> TableInfo:
        """Returns one table."""

    async def rename_table(self, actor: Actor, table: str, new_name: str) -> TableInfo:
        """Raises Conflict where the new name is taken, or while a document of the table is being read."""

    async def duplicate_table(
        self, actor: Actor, table: str, new_name: str, *, with_documents: bool = True
    ) -> TableInfo:
        """Copies a table with its ready documents and chunks."""

    async def delete_table(self, actor: Actor, table: str) -> None:
        """Removes a table with all that it contains."""

    async def count_usage(self, actor: Actor) -> tuple[IndexUsage, IndexLimits]:
        """Returns what the actor's project keeps, and the most that it can keep."""

    async def add_document(
        self, table: str, upload: FileUpload, context: Context, *, wait: bool = False
    ) -> DocumentInfo:
        """Keeps a file and reads it in the background. `wait`: returns when the document is READY, and raises
        the error of one that cannot be read. The same file again returns the document that is there."""

    async def import_part(self, table: str, part: DocumentPart, context: Context) -> DocumentInfo:
        """Adds chunks of a document, and embeds those without a vector. Search finds the document after its
        last part. A repeated part changes nothing."""

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
        """Adds chunks without a document, and embeds those without a vector."""

    async def list_chunks(
        self,
        actor: Actor,
        table: str,
        document: str | None = None,
        offset: int = 0,
        limit: int = 100,
        *,
        with_vectors: bool = False,
    ) -> ChunkPage:
        """Lists chunks of one document, or of all, in the order in which they were added."""

    async def get_chunk(self, actor: Actor, table: str, chunk: str) -> TextChunk:
        """Returns one chunk with its vector."""

    async def update_chunks(
        self, table: str, contents: Mapping[str, ChunkInput], context: Context
    ) -> tuple[TextChunk, ...]:
        """Replaces the contents of chunks by their ids. All have their new vectors before the first one
        changes. Errors name the place of a chunk. Vectors of the input are not read."""

    async def delete_chunks(self, actor: Actor, table: str, chunks: Sequence[str]) -> int:
        """Removes chunks. Returns how many there were."""

    async def search(self, table: str, search: TableSearch, context: Context) -> tuple[SearchHit, ...]:
        """Returns the best chunks, the best first."""


# --- reading files ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChunkSizes:
    """How a document is split."""

    size: int
    overlap: int
    unit: SizeUnit


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file to read, on this machine's disk."""

    path: Path
    name: str
    """As the caller named it."""
    media_type: str


@dataclass(frozen=True, slots=True)
class TokenRule:
    """How an embedding model counts."""

    count: Callable[[Sequence[str]], Awaitable[Sequence[int]]]
    """Returns the tokens of each text."""
    longest: int
    """Most tokens of one chunk."""


@dataclass(frozen=True, slots=True)
class SplitDocument:
    """The chunks of a document, without vectors."""

    chunks: tuple[ChunkInput, ...]
    notes: tuple[str, ...] = ()
    """What could not be read or was done otherwise, one sentence each."""


class DocumentReader(Protocol):
    """Reads files and splits them. The same file with the same sizes gives the same chunks."""

    @property
    def max_file_bytes(self) -> int:
        """The most bytes of a file."""

    @property
    def media_types(self) -> tuple[str, ...]:
        """The media types of the files that can be read here."""

    def require_sizes(self, sizes: ChunkSizes) -> None:
        """Raises InvalidValue for sizes that cannot be had."""

    def require_readable(self, name: str, media_type: str) -> None:
        """Raises UnsupportedMediaType or InvalidValue for a file that cannot be read, by its name."""

    async def read(self, file: StoredFile, sizes: ChunkSizes, tokens: TokenRule | None) -> SplitDocument:
        """Returns the chunks of a file. `tokens`: None where no model counts. Raises InvalidValue or
        UnsupportedMediaType with one sentence."""
