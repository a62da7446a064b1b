"""Knowledge tables of the caller's project: tables, documents, chunks and search.

The module `documents` runs the jobs that put files into a table. `KnowledgeErasure` removes all tables and
uploads of a project, for its owners and the operator.
"""

import asyncio
from collections.abc import Mapping, Sequence

from antiphon.domain.context import Context
from antiphon.domain.identity import Actor
from antiphon.domain.values import replace
from antiphon.errors import AntiphonError, Conflict, InvalidValue, PermissionDenied
from antiphon.retrieval.base import (
    MAX_BATCH,
    ChunkInput,
    DocumentInfo,
    DocumentPage,
    DocumentState,
    IndexLimits,
    IndexUsage,
    KnowledgeIndex,
    SearchHit,
    SearchQuery,
    TableInfo,
    TableSettings,
    TextChunk,
    add_usage,
)
from antiphon.retrieval.knowledge import (
    AutomaticModel,
    DocumentPart,
    FileUpload,
    SearchMode,
    TableRequest,
    TableSearch,
)
from antiphon.services.changes import DirectoryChanges
from antiphon.services.knowledge.documents import DocumentJobs
from antiphon.services.knowledge.uploads import UploadFolder
from antiphon.services.knowledge.vectors import (
    EmbeddingModelInfo,
    EmbeddingModels,
    choose_sizes,
    embed_texts,
    measure_dimensions,
)
from antiphon.services.policy import find_by_id
from antiphon.store.base import TenancyStore


class KnowledgeService:
    """Implements `KnowledgeTables` in one HTTP process, with the rights of each caller."""

    def __init__(self, index: KnowledgeIndex, models: EmbeddingModels, jobs: DocumentJobs) -> None:
        self.index = index
        self._models = models
        self._jobs = jobs

    @property
    def max_file_bytes(self) -> int:
        return self._jobs.reader.max_file_bytes

    @property
    def media_types(self) -> tuple[str, ...]:
        return self._jobs.reader.media_types

    # --- tables ---------------------------------------------------------------------------------------------

    async def create_table(self, request: TableRequest, context: Context) -> TableInfo:
        require_addressable(request.name)
        project = context.actor.project
        if any(table.settings.name == request.name for table in await self.index.list_tables(project)):
            raise Conflict(
                f"this project already has a knowledge table {request.name!r}; choose another name",
                param="name",
            )
        model: EmbeddingModelInfo | None = None
        if request.embedding_model is AutomaticModel.FIRST:
            model = await self._models.find_first(context.actor)
        elif request.embedding_model is not None:
            try:
                model = await self._models.find(request.embedding_model, context.actor)
            except AntiphonError as error:
                error.param = "embedding_model"
                raise
        sizes = choose_sizes(model, request.chunk_size, request.chunk_overlap, request.chunk_unit)
        self._jobs.reader.require_sizes(sizes)
        dimensions = 0 if model is None else await measure_dimensions(self._models, model.name, context)
        settings = TableSettings(
            request.name,
            None if model is None else model.name,
            dimensions,
            sizes.size,
            sizes.overlap,
            sizes.unit,
            dict(request.attributes),
        )
        return await self.index.create_table(project, settings)

    async def rename_table(self, actor: Actor, table: str, new_name: str) -> TableInfo:
        require_addressable(new_name)
        if await self._jobs.has_uploads(actor.project, table):
            raise Conflict(
                "a document of this knowledge table is being read: wait until it is ready, and try again",
                param="table",
            )
        return await self.index.rename_table(actor.project, table, new_name)

    async def duplicate_table(
        self, actor: Actor, table: str, new_name: str, *, with_documents: bool = True
    ) -> TableInfo:
        require_addressable(new_name)
        return await self.index.duplicate_table(actor.project, table, new_name, with_documents=with_documents)

    async def delete_table(self, actor: Actor, table: str) -> None:
        await self.index.get_table(actor.project, table)
        await self._jobs.remove_uploads(actor.project, table)
        await self.index.delete_table(actor.project, table)

    async def count_usage(self, actor: Actor) -> tuple[IndexUsage, IndexLimits]:
        stored = await self.index.count_usage(actor.project)
        return add_usage(stored, await self._jobs.count_waiting(actor.project)), self._jobs.limits

    # --- documents ------------------------------------------------------------------------------------------

    async def add_document(
        self, table: str, upload: FileUpload, context: Context, *, wait: bool = False
    ) -> DocumentInfo:
        info = await self.index.get_table(context.actor.project, table)
        return await self._jobs.add(info, upload, context, wait=wait)

    async def import_part(self, table: str, part: DocumentPart, context: Context) -> DocumentInfo:
        if len(part.chunks) > MAX_BATCH:
            raise InvalidValue(f"chunks must be at most {MAX_BATCH} in one call", param="chunks")
        index, project = self.index, context.actor.project
        chunks = await self._embed_chunks(table, part.chunks, context) if part.chunks else []
        document = await index.begin_document(project, table, part.document)
        info = await index.put_chunks(project, table, document.id, part.batch, chunks)
        if part.is_last:
            info = await index.finish_document(project, table, document.id, part.warnings)
        return info

    async def list_documents(
        self, actor: Actor, table: str, offset: int = 0, limit: int = 100
    ) -> DocumentPage:
        page = await self.index.list_documents(actor.project, table, offset, limit)
        items = await self._jobs.describe(actor.project, table, page.items)
        return replace(page, items=tuple(items))

    async def get_document(self, actor: Actor, table: str, document: str) -> DocumentInfo:
        info = await self.index.get_document(actor.project, table, document)
        (document_info,) = await self._jobs.describe(actor.project, table, [info])
        return document_info

    async def delete_document(self, actor: Actor, table: str, document: str) -> None:
        info = await self.index.get_document(actor.project, table, document)
        if info.state is DocumentState.INDEXING:
            await self._jobs.remove_uploads(actor.project, table, info.digest)
        await self.index.delete_document(actor.project, table, document)

    # --- chunks ---------------------------------------------------------------------------------------------

    async def add_chunks(
        self, table: str, chunks: Sequence[ChunkInput], context: Context
    ) -> tuple[TextChunk, ...]:
        if not 1 <= len(chunks) <= MAX_BATCH:
            raise InvalidValue(f"chunks must be from 1 to {MAX_BATCH} in one call", param="chunks")
        embedded = await self._embed_chunks(table, chunks, context)
        return await self.index.add_chunks(context.actor.project, table, embedded)

    async def update_chunks(
        self, table: str, contents: Mapping[str, ChunkInput], context: Context
    ) -> tuple[TextChunk, ...]:
        project = context.actor.project
        for chunk in contents:
            await self.index.get_chunk(project, table, chunk)
        embedded = await self._embed_chunks(table, list(contents.values()), context)
        return tuple(
            [
                await self.index.update_chunk(project, table, chunk, content)
                for chunk, content in zip(contents, embedded, strict=True)
            ]
        )

    async def _embed_chunks(
        self, table: str, chunks: Sequence[ChunkInput], context: Context
    ) -> list[ChunkInput]:
        """Returns the chunks, each with a vector. The table's model makes the vectors that the caller did not
        send. Without a model, returns the chunks unchanged. Raises InvalidValue for a blank text."""
        info = await self.index.get_table(context.actor.project, table)
        for index, chunk in enumerate(chunks):
            if not chunk.text.strip():
                raise InvalidValue("text is empty; send at least one word", param=f"chunks[{index}].text")
        model = info.settings.embedding_model
        without_vector = [index for index, chunk in enumerate(chunks) if not chunk.vector]
        if model is None or not without_vector:
            return list(chunks)
        texts = [chunks[index].text for index in without_vector]
        dimensions = info.settings.dimensions
        fields = ["text" if len(chunks) == 1 else f"chunks[{index}].text" for index in without_vector]
        vectors = await embed_texts(self._models, model, dimensions, texts, context, fields)
        embedded = list(chunks)
        for index, vector in zip(without_vector, vectors, strict=True):
            embedded[index] = replace(embedded[index], vector=vector)
        return embedded

    # --- search ---------------------------------------------------------------------------------------------

    async def search(self, table: str, search: TableSearch, context: Context) -> tuple[SearchHit, ...]:
        project = context.actor.project
        info = await self.index.get_table(project, table)
        if not search.query.strip():
            raise InvalidValue("query is empty; send at least one word", param="query")
        model, vector = info.settings.embedding_model, b""
        if search.mode is SearchMode.VECTORS and model is None:
            raise InvalidValue(
                "this knowledge table has no embedding model: search it by words", param="mode"
            )
        if model is not None and search.mode is not SearchMode.WORDS:
            dimensions = info.settings.dimensions
            (vector,) = await embed_texts(self._models, model, dimensions, [search.query], context, ["query"])
        words = None if search.mode is SearchMode.VECTORS else search.query
        query = SearchQuery(words, vector, search.k, documents=search.documents)
        return await self.index.search(project, table, query)


def require_addressable(name: str) -> None:
    """Raises InvalidValue if a table's name cannot be a part of a URL's path."""
    if "/" in name or not name.strip("."):
        raise InvalidValue(
            "a table's name must not contain a slash, and must not be dots alone", param="name"
        )


class KnowledgeErasure:
    """Removes everything that a project stores in knowledge tables."""

    def __init__(
        self, changes: DirectoryChanges, tenancy: TenancyStore, index: KnowledgeIndex, uploads: UploadFolder
    ) -> None:
        self._changes = changes
        self._tenancy = tenancy
        self._index = index
        self._uploads = uploads

    async def erase(self, actor: Actor, project: str) -> int:
        """Removes all tables of a project, and all its uploaded files that are not in a table yet. Returns
        the number of removed tables. Damaged tables and tables of an archived project are removed too. Raises
        NotFound, PermissionDenied and KnowledgeUnavailable."""
        policy = self._changes.policy
        find_by_id(policy.list_projects(actor), project, "project")
        if not (actor.admin or policy.is_owner(actor, project)):
            raise PermissionDenied("only an owner of the project can remove all its knowledge tables")
        for order in await asyncio.to_thread(self._uploads.list_orders):
            if order.project == project:
                await asyncio.to_thread(self._uploads.remove, order.id)
        table_count = await self._index.delete_project_tables(project)

        def write_audit_entry() -> None:
            author = self._changes.attribute_to(actor)
            self._changes.update_directory(
                self._tenancy.note_erasure(project, {"tables": table_count}, author)
            )

        await self._changes.apply(write_audit_entry)
        return table_count
