"""Chunks of knowledge tables, and search in them: wire types, handlers and endpoints."""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from antiphon.bodies.strict_json import decode_json
from antiphon.dialects.base import Endpoint
from antiphon.dialects.http_types import Answer, Request
from antiphon.dialects.services import Services
from antiphon.domain.identity import Right
from antiphon.errors import InvalidValue, NotFound
from antiphon.http.admin.resource import answer_json, declare_parameter
from antiphon.http.knowledge.tables import (
    PAGING,
    TABLE,
    Removed,
    build_context,
    declare_endpoint,
    read_paging,
    to_seconds,
)
from antiphon.retrieval.base import (
    LONGEST_TEXT,
    MAX_BATCH,
    MAX_HITS,
    ChunkInput,
    SearchHit,
    TextChunk,
)
from antiphon.retrieval.knowledge import SearchMode, TableSearch

CHUNKS = f"{TABLE}/chunks"

CHUNK = f"{CHUNKS}/{{chunk}}"

SEARCH = f"{TABLE}/search"

Text = Annotated[str, Meta(min_length=1, max_length=LONGEST_TEXT)]

Title = Annotated[str, Meta(max_length=LONGEST_TEXT)]

Page = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class NewChunk(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A chunk's content. `vector` has the table's dimensions, as float32 numbers in base64; without it the
    server makes it."""

    text: Text
    title: Title = ""
    page: Page | None = None
    file_name: str = ""
    metadata: dict[str, str] = msgspec.field(default_factory=dict)
    vector: bytes = b""

    def to_input(self) -> ChunkInput:
        return ChunkInput(self.text, self.title, self.page, self.file_name, self.metadata, self.vector)


class NewChunks(Struct, frozen=True, forbid_unknown_fields=True):
    """Chunks to add, which belong to no document."""

    chunks: Annotated[list[NewChunk], Meta(min_length=1, max_length=MAX_BATCH)]


class ChunkCard(Struct, frozen=True, kw_only=True):
    """A chunk. `document` is null if it belongs to none. `vector` is there if the request asks for vectors.
    Times are Unix seconds."""

    object: Literal["knowledge_chunk"] = "knowledge_chunk"
    id: str
    document: str | None
    text: str
    title: str
    page: int | None
    file_name: str
    metadata: dict[str, str]
    created_at: int
    updated_at: int
    vector: bytes | UnsetType = UNSET


class ChunkList(Struct, frozen=True, kw_only=True):
    """Chunks of ready documents, in the order in which they were added. `total` counts all."""

    object: Literal["list"] = "list"
    data: list[ChunkCard]
    total: int


class SearchBody(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A search. `documents` are ids of the only documents to search. An empty list is refused, because it
    would search all of them."""

    query: Annotated[str, Meta(min_length=1, max_length=LONGEST_TEXT)]
    k: Annotated[int, Meta(ge=1, le=MAX_HITS)] = 3
    mode: SearchMode = SearchMode.HYBRID
    documents: Annotated[list[str], Meta(min_length=1, max_length=MAX_HITS)] = msgspec.field(
        default_factory=list
    )


class SearchResult(Struct, frozen=True, kw_only=True):
    """A chunk that was found. `score` is the sum of 1 / (60 + rank) over both rankings; a rank is null where
    the chunk is not in that ranking. `similarity` is the cosine of the vectors."""

    object: Literal["knowledge_hit"] = "knowledge_hit"
    score: float
    words_rank: int | None
    vector_rank: int | None
    similarity: float | None
    chunk: ChunkCard


class SearchAnswer(Struct, frozen=True, kw_only=True):
    """The chunks that were found, the best first."""

    object: Literal["list"] = "list"
    data: list[SearchResult]


def build_chunk_card(chunk: TextChunk, *, with_vector: bool = False) -> ChunkCard:
    return ChunkCard(
        id=chunk.id,
        document=chunk.document or None,
        text=chunk.text,
        title=chunk.title,
        page=chunk.page,
        file_name=chunk.file_name,
        metadata=dict(chunk.metadata),
        created_at=to_seconds(chunk.created_at),
        updated_at=to_seconds(chunk.updated_at),
        vector=chunk.vector if chunk.vector and with_vector else UNSET,
    )


def build_result(hit: SearchHit) -> SearchResult:
    return SearchResult(
        score=hit.score,
        words_rank=hit.words_rank,
        vector_rank=hit.vector_rank,
        similarity=hit.similarity,
        chunk=build_chunk_card(hit.chunk),
    )


def declare_chunks() -> tuple[Endpoint, ...]:
    """Declares the endpoints of chunks and of search."""
    read, write = Right.READ, Right.WRITE
    paging = (*PAGING, declare_parameter("document"), declare_parameter("vectors", {"type": "boolean"}))
    return (
        declare_endpoint(
            "GET", CHUNKS, list_chunks, "Chunks of a table", read, query=paging, gives=ChunkList
        ),
        declare_endpoint(
            "POST",
            CHUNKS,
            add_chunks,
            "Add chunks without a document",
            write,
            body=NewChunks,
            gives=ChunkList,
            statuses=(201,),
        ),
        declare_endpoint("GET", CHUNK, show_chunk, "One chunk", read, gives=ChunkCard),
        declare_endpoint(
            "PUT", CHUNK, replace_chunk, "Replace a chunk's content", write, body=NewChunk, gives=ChunkCard
        ),
        declare_endpoint("DELETE", CHUNK, delete_chunk, "Remove a chunk", write, gives=Removed),
        declare_endpoint(
            "POST",
            SEARCH,
            search_table,
            "Search a knowledge table",
            Right.GENERATE,
            body=SearchBody,
            gives=SearchAnswer,
        ),
    )


async def list_chunks(request: Request, services: Services) -> Answer:
    offset, limit, query = read_paging(request, "document", "vectors")
    if (vectors_text := query.get("vectors", "false")) not in ("true", "false"):
        raise InvalidValue("vectors must be true or false", param="vectors")
    with_vectors = vectors_text == "true"
    table, document = request.path_params["table"], query.get("document")
    page = await services.knowledge.index.list_chunks(
        request.actor.project, table, document, offset, limit, with_vectors=with_vectors
    )
    cards = [build_chunk_card(chunk, with_vector=with_vectors) for chunk in page.items]
    return answer_json(ChunkList(data=cards, total=page.total))


async def add_chunks(request: Request, services: Services) -> Answer:
    chunks = [chunk.to_input() for chunk in decode_json(request.body, NewChunks).chunks]
    context = build_context(request, services, CHUNKS)
    added = await services.knowledge.add_chunks(request.path_params["table"], chunks, context)
    cards = [build_chunk_card(chunk) for chunk in added]
    return answer_json(ChunkList(data=cards, total=len(cards)), 201)


async def show_chunk(request: Request, services: Services) -> Answer:
    table, chunk = request.path_params["table"], request.path_params["chunk"]
    return answer_json(
        build_chunk_card(await services.knowledge.index.get_chunk(request.actor.project, table, chunk))
    )


async def replace_chunk(request: Request, services: Services) -> Answer:
    content = decode_json(request.body, NewChunk).to_input()
    table, chunk = request.path_params["table"], request.path_params["chunk"]
    context = build_context(request, services, CHUNK)
    (changed,) = await services.knowledge.update_chunks(table, {chunk: content}, context)
    return answer_json(build_chunk_card(changed))


async def delete_chunk(request: Request, services: Services) -> Answer:
    table, chunk = request.path_params["table"], request.path_params["chunk"]
    if not await services.knowledge.index.delete_chunks(request.actor.project, table, [chunk]):
        raise NotFound(f"there is no chunk {chunk[:40]!r} in this knowledge table", param="chunk")
    return answer_json(Removed(id=chunk))


async def search_table(request: Request, services: Services) -> Answer:
    body = decode_json(request.body, SearchBody)
    search = TableSearch(body.query, body.k, body.mode, tuple(body.documents))
    context = build_context(request, services, SEARCH)
    hits = await services.knowledge.search(request.path_params["table"], search, context)
    return answer_json(SearchAnswer(data=[build_result(hit) for hit in hits]))
