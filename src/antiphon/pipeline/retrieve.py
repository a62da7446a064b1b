"""Answers from a knowledge table: searches, and inserts the chunks before the question.

Child calls of the request write the query, embed it and rank the chunks. These calls have no tools. The
references are the first event of the stream, once the engine has begun.
"""

from collections.abc import AsyncIterator, Sequence

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
from antiphon.domain.values import Struct, replace
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
from antiphon.pipeline.child import ChildCalls, name_model_in_errors
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
"""A reranker gets this many times the number of chunks that the caller wants."""

MIN_ANSWER_TOKENS = 256
"""Tokens that stay free for the answer if the caller sets no maximum."""


class RetrievalStages(Struct, frozen=True):
    """The stages of retrieval, built once per process."""

    models: ModelRegistry
    policy: RoutePolicy
    index: KnowledgeIndex | None

    async def retrieve(
        self, request: GenerationRequest, model: Model, context: Context, calls: ChildCalls
    ) -> tuple[GenerationRequest, References]:
        """Returns the request with the chunks in its prompt, and the references. Raises the errors of
        `prepare_search`, and InvalidValue if the messages contain no question."""
        search = await self.prepare_search(request, context, calls)
        retrieval, table = search.retrieval, await search.load_table_settings()
        messages = require_conversation(request, RETRIEVAL_FIELD).messages
        question_index = find_question(messages, RETRIEVAL_FIELD)
        query = retrieval.query or await search.write_query(model.name, messages[: question_index + 1])
        chunks = await search.find_chunks(query, table)
        request, fitting = await self._fit_chunks(request, question_index, chunks, model, context)
        if len(fitting) < len(chunks):
            search.notes.append(
                f"{len(chunks) - len(fitting)} of {len(chunks)} chunks did not fit the context of "
                f"{model.name}"
            )
        references = References(retrieval.table, context.actor.project, query, fitting, tuple(search.notes))
        return request, references

    async def prepare_search(
        self, request: GenerationRequest, context: Context, calls: ChildCalls
    ) -> "ReferenceSearch":
        """Checks the retrieval of a request, and returns its search, which has not started. Raises NotFound
        for an unknown table, ModelNotFound or PermissionDenied for the reranker, and UnsupportedParameter
        for a raw prompt."""
        retrieval = request.retrieval
        if retrieval is None or self.index is None:
            raise UnsupportedParameter(
                f"{RETRIEVAL_FIELD}: this server has no knowledge tables; the operator can turn them on",
                param=RETRIEVAL_FIELD,
            )
        require_conversation(request, RETRIEVAL_FIELD)
        self._require_reranker(retrieval, context)
        search = ReferenceSearch(self.index, retrieval, context.actor.project, calls)
        await search.load_table_settings()
        return search

    def _require_reranker(self, retrieval: Retrieval, context: Context) -> None:
        """Raises ModelNotFound or PermissionDenied if the caller cannot use the reranker."""
        if retrieval.reranker is None:
            return
        try:
            resolve(self.models, retrieval.reranker, context.actor)
        except (ModelNotFound, PermissionDenied) as error:
            raise type(error)(f"{RERANKER_FIELD}: {error.message}", param=RERANKER_FIELD) from None

    async def _fit_chunks(
        self,
        request: GenerationRequest,
        question_index: int,
        chunks: tuple[ReferencedChunk, ...],
        model: Model,
        context: Context,
    ) -> tuple[GenerationRequest, tuple[ReferencedChunk, ...]]:
        """Returns the request with as many of the best chunks as fit the model's context, and these
        chunks."""
        scratch_context = replace(context, progress=RequestProgress())
        low, high, count = 0, len(chunks), len(chunks)  # usually all of them fit
        while low < high:
            if await self._fits_context(
                _insert_before(request, question_index, chunks[:count]), model, scratch_context
            ):
                low = count
            else:
                high = count - 1
            count = (low + high + 1) // 2
        return _insert_before(request, question_index, chunks[:low]), chunks[:low]

    async def _fits_context(self, request: GenerationRequest, model: Model, context: Context) -> bool:
        """Whether the prompt leaves room for an answer in the model's context, and is not longer than the
        caller's truncation."""
        output = request.output
        answer_tokens = min(
            MIN_ANSWER_TOKENS, MIN_ANSWER_TOKENS if output.max_tokens is None else output.max_tokens
        )
        answer_tokens *= max(output.choices, output.best_of or 0)
        max_prompt_tokens = -1 if output.truncate_prompt is None else output.truncate_prompt
        untruncated = replace(request, output=replace(output, truncate_prompt=None))

        async def measure(use: RouteUse) -> bool:
            prepared = await prepare(use.route.engine, untruncated, context)
            use.close()
            size = prepared.size
            return size.output_tokens >= answer_tokens and (
                max_prompt_tokens < 0 or size.prompt_tokens <= max_prompt_tokens
            )

        try:
            return await try_routes(model, measure, context, self.policy)
        except ContextLengthExceeded:
            return False


class ReferenceSearch:
    """The search of one request in one table."""

    def __init__(self, index: KnowledgeIndex, retrieval: Retrieval, project: str, calls: ChildCalls) -> None:
        self._index = index
        self.retrieval = retrieval
        self._project = project
        self._calls = calls
        self._table: TableSettings | None = None
        self.notes: list[str] = []
        """Notes for the caller about steps that failed, one sentence each."""

    async def load_table_settings(self) -> TableSettings:
        """Returns the table's settings. Raises NotFound."""
        if self._table is None:
            try:
                table = await self._index.get_table(self._project, self.retrieval.table)
            except NotFound as error:
                raise NotFound(f"{TABLE_FIELD}: {error.message}", param=TABLE_FIELD) from None
            self._table = table.settings
        return self._table

    async def write_query(self, model: str, messages: Sequence[Message]) -> str:
        """Has the model write the query. If that fails, adds a note and returns the question itself."""
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

    async def find_chunks(self, query: str, table: TableSettings) -> tuple[ReferencedChunk, ...]:
        """Returns the best chunks, the best first."""
        retrieval = self.retrieval
        vector = await self._embed(query, table)
        max_hits = retrieval.k if retrieval.reranker is None else min(retrieval.k * RANKED_HITS, MAX_HITS)
        search = SearchQuery(query, vector, max_hits, depth=max(max_hits, FUSED_HITS))
        hits = await self._index.search(self._project, retrieval.table, search)
        chunks = [_to_reference(hit) for hit in hits]
        if retrieval.reranker is not None and chunks:
            chunks = await self._rank(query, chunks, retrieval.reranker)
        return tuple(chunks[: retrieval.k])

    async def _embed(self, query: str, table: TableSettings) -> bytes:
        """Returns the vector of the query. It is empty for a table without vectors, and for a query that is
        too long for the embedding model. Errors of the embedding model name the table's field."""
        model = table.embedding_model
        if model is None:
            return b""
        request = EmbeddingRequest(model, (RawPrompt(text=query),))
        try:
            with name_model_in_errors(
                TABLE_FIELD, f"the table's embedding model {model} made no vector of the query"
            ):
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
        """Returns the chunks in the reranker's order. If the reranker fails, the order stays."""
        with_titles = self.retrieval.ranks_titles
        texts = tuple(f"{chunk.title}\n{chunk.text}" if with_titles else chunk.text for chunk in chunks)
        try:
            ranking = await self._calls.rerank(RerankRequest(model, query, texts))
        except AntiphonError as error:
            self.notes.append(f"the reranker {model} failed ({error.code}); the order is that of the search")
            return chunks
        ranked = [
            replace(chunk, relevance=score) for chunk, score in zip(chunks, ranking.scores, strict=True)
        ]
        return [ranked[index] for index in ranking.order()]


class ReferencedEvents:
    """Iterates over the events of an answer. Before its usage, yields the citations that name no chunk of the
    references, if there are any."""

    __slots__ = ("_chunk_count", "_events", "_pending", "_texts")

    def __init__(self, references: References, started: Event, events: AsyncIterator[Event]) -> None:
        """`started`: the first event of the answer. `events`: its further events."""
        self._chunk_count = len(references.chunks)
        self._events = events
        self._texts: dict[int, list[str]] = {}
        self._pending: list[Event] = [started]

    def __aiter__(self) -> "ReferencedEvents":
        return self

    async def __anext__(self) -> Event:
        if self._pending:
            return self._pending.pop()
        event = await anext(self._events)
        if isinstance(event, TextDelta):
            self._texts.setdefault(event.choice, []).append(event.text)
        elif isinstance(event, Usage):
            texts = "\n".join("".join(parts) for _, parts in sorted(self._texts.items()))
            if unknown := find_unknown_citations(texts, self._chunk_count):
                self._pending.append(event)
                return UnknownCitations(unknown)
        return event


def _insert_before(
    request: GenerationRequest, question_index: int, chunks: Sequence[ReferencedChunk]
) -> GenerationRequest:
    """Returns the request with these chunks before its question, and without its retrieval. `question_index`:
    the index of the message that asks the question."""
    conversation, retrieval = require_conversation(request, RETRIEVAL_FIELD), request.retrieval
    if chunks:
        cites = retrieval is not None and retrieval.cites
        messages = insert_chunks(conversation.messages, question_index, chunks, cites)
        conversation = replace(conversation, messages=messages)
    return replace(request, prompts=(conversation,), retrieval=None)


def _to_reference(hit: SearchHit) -> ReferencedChunk:
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
