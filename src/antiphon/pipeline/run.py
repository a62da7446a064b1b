"""One request from start to end: resolve, remember, retrieve, attempt, meter. The HTTP edge calls only this
module.

Each stage is in the module of its name. `resolve` also checks the caller's rights. `attempt` prepares the
request for each route that it tries, and reserves its size in the limits before the route starts. `embed`
handles embeddings and rankings.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field
from functools import partial

from antiphon.domain.context import Context
from antiphon.domain.events import Event
from antiphon.domain.request import EmbeddingRequest, Embeddings, GenerationRequest, Ranking, RerankRequest
from antiphon.domain.values import replace
from antiphon.engines.registry import Model, ModelRegistry
from antiphon.limits.base import Limiter
from antiphon.memory import ProcessSummaries, SummaryCache
from antiphon.pipeline.attempt import Reserve, StartedStream, attempt, pass_unlimited
from antiphon.pipeline.child import ChildCalls
from antiphon.pipeline.embed import EmbeddingStages
from antiphon.pipeline.meter import meter_stream, record_stream
from antiphon.pipeline.remember import MemoryStages, RelevanceStages, remember
from antiphon.pipeline.request_meter import RequestMeter
from antiphon.pipeline.reserve import Accounting
from antiphon.pipeline.retrieve import ReferencedEvents, RetrievalStages
from antiphon.pipeline.routing import RoutePolicy, resolve
from antiphon.pipeline.spans import describe_references, open_generation, open_memory, open_retrieval
from antiphon.pipeline.summarise import SummaryStages
from antiphon.retrieval.base import KnowledgeIndex
from antiphon.telemetry.metrics import Metrics

StartStream = Callable[[], Awaitable[StartedStream]]
"""Starts the stream of a request."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """All stages of requests, built once per process."""

    models: ModelRegistry
    metrics: Metrics
    restart_patience: float
    """Seconds that a request waits for a restarting engine."""
    accounting: Accounting | None = None
    """Limiter and ledger; None if keys are off."""
    route_limiter: Limiter | None = None
    """Counts the requests in flight of routes with a limit over all HTTP processes; None if there is only
    this process."""
    summary_cache: SummaryCache | None = None
    """The cache of summaries; None stores a few in memory."""
    knowledge: KnowledgeIndex | None = None
    """The knowledge tables; None if this server has none."""
    policy: RoutePolicy = field(init=False)
    """The options that all uses of routes share."""
    embedding: EmbeddingStages = field(init=False)
    """The stages of embeddings and rankings."""
    memory: MemoryStages = field(init=False)
    """The stages of memory strategies."""
    retrieval: RetrievalStages = field(init=False)
    """The stages of answers from knowledge tables."""

    def __post_init__(self) -> None:
        policy = RoutePolicy(self.metrics, self.restart_patience, self.route_limiter)
        object.__setattr__(self, "policy", policy)
        object.__setattr__(self, "embedding", EmbeddingStages(self.models, policy, self.accounting))
        cache = self.summary_cache or ProcessSummaries()
        summaries = SummaryStages(self.models, policy, cache)
        memory = MemoryStages(summaries, RelevanceStages(self.models, policy))
        object.__setattr__(self, "memory", memory)
        retrieval = RetrievalStages(self.models, policy, self.knowledge)
        object.__setattr__(self, "retrieval", retrieval)

    @property
    def keeps_records(self) -> bool:
        """Whether the usage of each request is recorded."""
        return self.accounting is not None

    def run(
        self, request: GenerationRequest, context: Context
    ) -> AbstractAsyncContextManager[AsyncIterator[Event]]:
        """Yields the events of a generation. The work starts when the iterator is read. Leaving the context
        ends the work at any point.

        Raises ModelNotFound. Raises PermissionDenied if the caller's key does not allow the model, or if a
        cost limit applies and the model has no price.
        """
        requested_model = request.model
        model = resolve(self.models, requested_model, context.actor)
        context.progress.model = model.name
        if requested_model != model.name:
            request = replace(request, model=model.name)
        if request.timeout is not None:
            context = context.limit_time(request.timeout)
        if context.span is not None:
            context = open_generation(request, model, context, context.span)
        meter = None
        if self.accounting is not None:
            is_bounded = request.output.max_tokens is not None and not request.output.is_default_max_tokens
            meter = RequestMeter(self.accounting, model, requested_model, is_bounded, context, self.metrics)
        reserve = pass_unlimited if meter is None else meter.reserve
        if request.memory is None and request.retrieval is None:
            start_stream: StartStream = partial(attempt, model, request, context, self.policy, reserve)
        else:
            child_calls = ChildCalls(self.run, self.embed, self.rerank, context, meter)
            start_stream = partial(self._prepare_and_attempt, model, request, context, reserve, child_calls)
        events = meter_stream(start_stream, model, context, self.metrics, meter)
        recorder = None if self.accounting is None else self.accounting.recorder
        if meter is None or recorder is None or context.parent is not None:
            return aclosing(events)
        if recorder.is_recorded(context.actor.project):
            events = record_stream(events, meter, context, recorder)
        return aclosing(events)

    async def _prepare_and_attempt(
        self,
        model: Model,
        request: GenerationRequest,
        context: Context,
        reserve: Reserve,
        child_calls: ChildCalls,
    ) -> StartedStream:
        """Applies the memory strategy, and adds chunks from the knowledge table. After that, starts the
        stream on the first route that works."""
        references = None
        if request.memory is not None:
            if request.retrieval is not None:  # refuses an invalid retrieval before a summary costs anything
                await self.retrieval.prepare_search(request, context, child_calls)
            with child_calls.trace_stage(open_memory(request.memory, context.span)):
                request = await remember(request, model, context, self.memory, child_calls)
        if request.retrieval is not None:
            with child_calls.trace_stage(open_retrieval(request.retrieval, context.span)) as span:
                request, references = await self.retrieval.retrieve(request, model, context, child_calls)
                describe_references(span, references)
        stream = await attempt(model, request, context, self.policy, reserve)
        if references is not None:
            stream.events = ReferencedEvents(references, stream.first_event, stream.events)
            stream.first_event = references
        return stream

    async def embed(self, request: EmbeddingRequest, context: Context) -> Embeddings:
        """Returns the vectors of texts. Cancelling ends the work. Raises ModelNotFound."""
        return await self.embedding.embed(request, context)

    async def rerank(self, request: RerankRequest, context: Context) -> Ranking:
        """Returns the scores of documents for a query. Cancelling ends the work. Raises ModelNotFound."""
        return await self.embedding.rerank(request, context)
