"""Answers from a knowledge table: searches, and puts what it finds before the question.

The query, the vectors of the query and the ranking are calls that are the request's children in the ledger.
No such call has tools. The references are the first event of the stream, once the engine has begun.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace

from antiphon.domain.context import Context, RequestProgress
from antiphon.domain.events import Event, TextDelta, Usage
from antiphon.domain.messages import Message
from antiphon.domain.request import Conversation, EmbeddingRequest, GenerationRequest, Output, RawPrompt
from antiphon.domain.rerank import RerankRequest
from antiphon.domain.retrieval import (
    RETRIEVAL_FIELD,
    ReferencedChunk,
    References,
    Retrieval,
    UnknownCitations,
)
from antiphon.domain.sampling import SamplingOptions
from antiphon.domain.values import changed
from antiphon.engines.registry import Model, ModelRegistry
from antiphon.errors import (
    AntiphonError,
    ContextLengthExceeded,
    InvalidValue,
    ModelNotFound,
    NotFound,
    PermissionDenied,
    UnsupportedParameter,
)
from antiphon.pipeline.attempt import try_routes
from antiphon.pipeline.child import ChildCalls, name_model
from antiphon.pipeline.count_prompt import require_conversation
from antiphon.pipeline.prepare import prepare
from antiphon.pipeline.resolve import resolve
from antiphon.pipeline.route_use import RoutePolicy, RouteUse
from antiphon.retrieval.base import (
    FUSED_HITS,
    MAX_HITS,
    KnowledgeIndex,
    SearchHit,
    SearchQuery,
    TableSettings,
)
from antiphon.retrieval.prompt import (
    MAX_QUERY_TOKENS,
    build_query_messages,
    clean_query,
    find_question,
    find_unknown_citations,
    insert_chunks,
)

TABLE_FIELD = f"{RETRIEVAL_FIELD}.table_id"
RERANKER_FIELD = f"{RETRIEVAL_FIELD}.reranking_model"

RANKED_HITS = 4
"""A reranker sees so many times the chunks that the caller wants."""

ANSWER_ROOM = 256
"""Tokens that are left for the answer where the caller leaves its length to the server."""


@dataclass(frozen=True, slots=True)
class RetrievalStages:
    """What retrieval needs, built once."""

    models: ModelRegistry
    policy: RoutePolicy
    index: KnowledgeIndex | None

    async def retrieve(
        self, request: GenerationRequest, model: Model, context: Context, calls: ChildCalls
    ) -> tuple[GenerationRequest, References]:
        """Returns the request with the chunks in its prompt, and the references. Raises what `open` raises,
        and InvalidValue without a question."""
        search = await self.open(request, context, calls)
        wanted, table = search.wanted, await search.find_table()
        messages = require_conversation(request, RETRIEVAL_FIELD).messages
        question = find_question(messages, RETRIEVAL_FIELD)
        query = wanted.query or await search.write_query(model.name, messages[: question + 1])
        chunks = await search.find(query, table)
        request, kept = await self._fit(request, question, chunks, model, context)
        if len(kept) < len(chunks):
            search.notes.append(
                f"{len(chunks) - len(kept)} of {len(chunks)} chunks did not fit the context of {model.name}"
            )
        found = References(wanted.table, context.actor.project, query, kept, tuple(search.notes))
        return request, found

    async def open(
        self, request: GenerationRequest, context: Context, calls: ChildCalls
    ) -> "ReferenceSearch":
        """Returns the search of a request, which costs nothing yet. Raises NotFound for a table that the
        project does not have, ModelNotFound or PermissionDenied for the reranker, and UnsupportedParameter
        for a raw prompt."""
        wanted = request.retrieval
        if wanted is None or self.index is None:
            raise UnsupportedParameter(
                f"{RETRIEVAL_FIELD}: this server keeps no knowledge tables; the operator turns them on",
                param=RETRIEVAL_FIELD,
            )
        require_conversation(request, RETRIEVAL_FIELD)
        self._check_reranker(wanted, context)
        search = ReferenceSearch(self.index, wanted, context.actor.project, calls)
        await search.find_table()
        return search

    def _check_reranker(self, wanted: Retrieval, context: Context) -> None:
        """Raises ModelNotFound and PermissionDenied, which name the field."""
        if wanted.reranker is None:
            return
        try:
            resolve(self.models, wanted.reranker, context.actor)
        except (ModelNotFound, PermissionDenied) as error:
            raise type(error)(f"{RERANKER_FIELD}: {error.message}", param=RERANKER_FIELD) from None

    async def _fit(
        self,
        request: GenerationRequest,
        question: int,
        chunks: tuple[ReferencedChunk, ...],
        model: Model,
        context: Context,
    ) -> tuple[GenerationRequest, tuple[ReferencedChunk, ...]]:
        """Returns the request with as many of the first chunks as fit the model's context, and these."""
        scratch = changed(context, progress=RequestProgress())
        low, high, at = 0, len(chunks), len(chunks)  # mostly all of them fit
        while low < high:
            if await self._has_room(_insert(request, question, chunks[:at]), model, scratch):
                low = at
            else:
                high = at - 1
            at = (low + high + 1) // 2
        return _insert(request, question, chunks[:low]), chunks[:low]

    async def _has_room(self, request: GenerationRequest, model: Model, context: Context) -> bool:
        """Whether the whole prompt fits what the caller keeps of it and the model's context, and leaves room
        for an answer."""
        output = request.output
        wanted = min(ANSWER_ROOM, ANSWER_ROOM if output.max_tokens is None else output.max_tokens)
        wanted *= max(output.choices, output.best_of or 0)
        kept = -1 if output.truncate_prompt is None else output.truncate_prompt
        whole = changed(request, output=changed(output, truncate_prompt=None))

        async def measure(use: RouteUse) -> bool:
            prepared = await prepare(use.route.engine, whole, context)
            use.close()
            size = prepared.size
            return size.output_tokens >= wanted and (kept < 0 or size.prompt_tokens <= kept)

        try:
            return await try_routes(model, measure, context, self.policy)
        except ContextLengthExceeded:
            return False


class ReferenceSearch:
    """The search of one request in one table."""

    def __init__(self, index: KnowledgeIndex, wanted: Retrieval, project: str, calls: ChildCalls) -> None:
        self._index = index
        self.wanted = wanted
        self._project = project
        self._calls = calls
        self._table: TableSettings | None = None
        self.notes: list[str] = []
        """What did not go as asked, one sentence each."""

    async def find_table(self) -> TableSettings:
        """Returns the table's settings. Raises NotFound."""
        if self._table is None:
            try:
                table = await self._index.get_table(self._project, self.wanted.table)
            except NotFound as error:
                raise NotFound(f"{TABLE_FIELD}: {error.message}", param=TABLE_FIELD) from None
            self._table = table.settings
        return self._table

    async def write_query(self, model: str, messages: Sequence[Message]) -> str:
        """Has the model write the query. What fails is noted, and the question itself is searched for."""
        conversation = Conversation(build_query_messages(messages))
        request = GenerationRequest(
            model,
            (conversation,),
            sampling=SamplingOptions(temperature=0.0),
            output=Output(max_tokens=MAX_QUERY_TOKENS),
            optional=frozenset({"temperature"}),
        )
        question = messages[-1].text
        try:
            answer = await self._calls.generate(request)
        except AntiphonError as error:
            self.notes.append(f"the model wrote no query ({error.code}); the question was searched for")
            return question
        query = clean_query(answer.choices[0].text)
        if not query:
            self.notes.append("the model wrote no query; the question was searched for")
        return query or question

    async def find(self, query: str, table: TableSettings) -> tuple[ReferencedChunk, ...]:
        """Returns the best chunks, the best first."""
        wanted = self.wanted
        vector = await self._embed(query, table)
        most = wanted.k if wanted.reranker is None else min(wanted.k * RANKED_HITS, MAX_HITS)
        search = SearchQuery(query, vector, most, depth=max(most, FUSED_HITS))
        hits = await self._index.search(self._project, wanted.table, search)
        chunks = [_refer(hit) for hit in hits]
        if wanted.reranker is not None and chunks:
            chunks = await self._rank(query, chunks, wanted.reranker)
        return tuple(chunks[: wanted.k])

    async def _embed(self, query: str, table: TableSettings) -> bytes:
        """Returns the vector of the query; none for a table without vectors, and for a query that is longer
        than the embedding model reads. Raises what the embedding model raises, and names the table."""
        model = table.embedding_model
        if model is None:
            return b""
        request = EmbeddingRequest(model, (RawPrompt(text=query),))
        try:
            with name_model(TABLE_FIELD, f"the table's embedding model {model} made no vector of the query"):
                embeddings = await self._calls.embed(request)
        except ContextLengthExceeded:
            self.notes.append(f"the query is longer than {model} reads; the search was by words only")
            return b""
        if embeddings.dimensions != table.dimensions:
            raise InvalidValue(
                f"{TABLE_FIELD}: the table has vectors of {table.dimensions} numbers, and {model} now makes "
                f"{embeddings.dimensions}: name a table that was made with this model",
                param=TABLE_FIELD,
            )
        return embeddings.vectors

    async def _rank(self, query: str, chunks: list[ReferencedChunk], model: str) -> list[ReferencedChunk]:
        """Returns the chunks in the reranker's order, or in their own if it fails."""
        with_titles = self.wanted.ranks_titles
        texts = tuple(f"{each.title}\n{each.text}" if with_titles else each.text for each in chunks)
        try:
            ranking = await self._calls.rerank(RerankRequest(model, query, texts))
        except AntiphonError as error:
            self.notes.append(f"the reranker {model} failed ({error.code}); the order is that of the search")
            return chunks
        ranked = [changed(each, relevance=score) for each, score in zip(chunks, ranking.scores, strict=True)]
        return [ranked[at] for at in ranking.order()]


class ReferencedEvents:
    """The events of an answer from a table: the references, the answer, and citations that no chunk has."""

    __slots__ = ("_chunks", "_pending", "_rest", "_texts")

    def __init__(self, references: References, started: Event, rest: AsyncIterator[Event]) -> None:
        self._chunks = len(references.chunks)
        self._rest = rest
        self._texts: dict[int, list[str]] = {}
        self._pending: list[Event] = [started]

    def __aiter__(self) -> "ReferencedEvents":
        return self

    async def __anext__(self) -> Event:
        if self._pending:
            return self._pending.pop()
        event = await anext(self._rest)
        if isinstance(event, TextDelta):
            self._texts.setdefault(event.choice, []).append(event.text)
        elif isinstance(event, Usage):
            texts = "\n".join("".join(parts) for _, parts in sorted(self._texts.items()))
            if unknown := find_unknown_citations(texts, self._chunks):
                self._pending.append(event)
                return UnknownCitations(unknown)
        return event


def _insert(
    request: GenerationRequest, question: int, chunks: Sequence[ReferencedChunk]
) -> GenerationRequest:
    """Returns the request with these chunks before its question, and without its search."""
    conversation, wanted = require_conversation(request, RETRIEVAL_FIELD), request.retrieval
    if chunks:
        cites = wanted is not None and wanted.cites
        messages = insert_chunks(conversation.messages, question, chunks, cites)
        conversation = replace(conversation, messages=messages)
    return changed(request, prompts=(conversation,), retrieval=None)


def _refer(hit: SearchHit) -> ReferencedChunk:
    chunk = hit.chunk
    return ReferencedChunk(
        chunk.id,
        chunk.document,
        chunk.text,
        chunk.title,
        chunk.page,
        chunk.file_name,
        hit.score,
        metadata=chunk.metadata,
    )
