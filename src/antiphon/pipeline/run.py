"""One request from start to end. The HTTP edge calls only this module.

`Pipeline.run` tells the stages of a generation in order, and `embed` those of embeddings and rankings.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from dataclasses import dataclass, field
from functools import partial

from antiphon.domain.context import Context
from antiphon.domain.events import EventGroup
from antiphon.domain.identity import Actor
from antiphon.domain.request import EmbeddingRequest, Embeddings, GenerationRequest, Ranking, RerankRequest
from antiphon.domain.retrieval import References
from antiphon.domain.values import replace
from antiphon.engines.registry import MAX_SHOWN_NAMES, Model, ModelRegistry
from antiphon.errors import AntiphonError, UnsupportedParameter
from antiphon.limits.base import Limiter
from antiphon.memory.summaries import ProcessSummaries, SummaryCache
from antiphon.pipeline.account import RequestAccount
from antiphon.pipeline.child import ChildCalls
from antiphon.pipeline.documents import DocumentTexts
from antiphon.pipeline.embed import EmbeddingStages
from antiphon.pipeline.open_route import OpenRoute, RoutePolicy
from antiphon.pipeline.plans import RequestPlans
from antiphon.pipeline.prepare import prepare
from antiphon.pipeline.remember import MemoryStages, RelevanceStages, remember
from antiphon.pipeline.retrieve import CitationCheck, RetrievalStages
from antiphon.pipeline.routing import find_affinity
from antiphon.pipeline.rules import Accounting, LimitIndex
from antiphon.pipeline.spans import describe_references, open_generation, open_memory, open_retrieval
from antiphon.pipeline.summarise import SummaryStages
from antiphon.retrieval.base import KnowledgeIndex
from antiphon.telemetry.metrics import Metrics


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
    documents: DocumentTexts | None = None
    """Reads documents for models that take none; None refuses them."""
    plans: RequestPlans = field(init=False)
    """What requests of one key to one model have in common."""
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
        limit_index = LimitIndex() if self.accounting is None else self.accounting.limit_index
        plans = RequestPlans(self.models, limit_index)
        object.__setattr__(self, "plans", plans)
        object.__setattr__(self, "embedding", EmbeddingStages(plans, policy, self.accounting))
        cache = self.summary_cache or ProcessSummaries()
        summaries = SummaryStages(self.models, policy, cache)
        memory = MemoryStages(summaries, RelevanceStages(self.models, policy), self.documents)
        object.__setattr__(self, "memory", memory)
        retrieval = RetrievalStages(self.models, policy, self.knowledge)
        object.__setattr__(self, "retrieval", retrieval)

    @property
    def keeps_records(self) -> bool:
        """Whether the usage of each request is recorded."""
        return self.accounting is not None

    def run(
        self, request: GenerationRequest, context: Context
    ) -> AbstractAsyncContextManager[AsyncIterator[EventGroup]]:
        """Yields the events of a generation. The work starts when the iterator is read. Leaving the context
        ends the work at any point.

        Raises ModelNotFound. Raises PermissionDenied if the caller's key does not allow the model, or if a
        cost limit applies and the model has no price.
        """
        requested_model = request.model
        plan = self.plans.find(requested_model, context.actor)
        model = plan.model
        context.progress.model = model.name
        if requested_model != model.name:
            request = replace(request, model=model.name)
        if request.timeout is not None:
            context = context.limit_time(request.timeout)
        if context.span is not None:
            context = open_generation(request, model, context, context.span)
        is_bounded = request.output.max_tokens is not None and not request.output.is_default_max_tokens
        account = RequestAccount(
            plan, requested_model, context, self.metrics, self.accounting, is_bounded=is_bounded
        )
        return aclosing(self._generate(model, request, context, account))

    async def _generate(
        self, model: Model, request: GenerationRequest, context: Context, account: RequestAccount
    ) -> AsyncGenerator[EventGroup, None]:
        """Yields the events of a generation, and closes its route and its account at the end, for any reason.
        Raises LedgerFull if a complete generation cannot be written to the ledger."""
        async with account:
            await account.reserve_early()
            references = None
            if request.memory is not None or request.retrieval is not None:
                request, references = await self._prepare_conversation(model, request, context, account)
            affinity = find_affinity(request) if model.prefers_prefix and len(model.routes) > 1 else None
            start = partial(start_generation, request, self.models, self.documents)
            route = OpenRoute(model, start, context, self.policy, account, affinity)
            async with route as events:
                citations = None if references is None else CitationCheck(references)
                group: EventGroup | None = route.first_events
                if references is not None:
                    group = (references, *route.first_events)
                while group is not None:
                    if citations is not None:
                        group = citations.check(group)
                    # A group that needs more than is granted goes event by event: a refusal then withholds
                    # and charges one event, not the whole group. Only engines that count tokens get there:
                    # for a vendor's request, all of its tokens are reserved before it is sent.
                    for part in (group,) if account.has_granted(group) else [(event,) for event in group]:
                        if account.count(part):
                            await account.grow()
                        if account.answer is not None:
                            account.answer.add(part)
                        yield part
                    group = await anext(events, None)

    async def _prepare_conversation(
        self, model: Model, request: GenerationRequest, context: Context, account: RequestAccount
    ) -> tuple[GenerationRequest, References | None]:
        """Applies the memory strategy, and adds chunks from the knowledge table."""
        references = None
        child_calls = ChildCalls(self.run, self.embed, self.rerank, context, account)
        if request.memory is not None:
            if request.retrieval is not None:  # refuses an invalid retrieval before a summary costs anything
                await self.retrieval.prepare_search(request, context, child_calls)
            with child_calls.trace_stage(open_memory(request.memory, context.span)):
                request = await remember(request, model, context, self.memory, child_calls)
        if request.retrieval is not None:
            with child_calls.trace_stage(open_retrieval(request.retrieval, context.span)) as span:
                request, references = await self.retrieval.retrieve(request, model, context, child_calls)
                describe_references(span, references)
        return request, references

    async def embed(self, request: EmbeddingRequest, context: Context) -> Embeddings:
        """Returns the vectors of texts. Cancelling ends the work. Raises ModelNotFound."""
        return await self.embedding.embed(request, context)

    async def rerank(self, request: RerankRequest, context: Context) -> Ranking:
        """Returns the scores of documents for a query. Cancelling ends the work. Raises ModelNotFound."""
        return await self.embedding.rerank(request, context)


async def start_generation(
    request: GenerationRequest,
    models: ModelRegistry,
    documents: DocumentTexts | None,
    route: OpenRoute[AsyncIterator[EventGroup]],
) -> AsyncIterator[EventGroup]:
    """Opens the stream of a generation on one route."""
    try:
        prepared = await prepare(route.engine, request, route.context, documents)
    except UnsupportedParameter as error:
        if error.modality is not None:
            error.message += await _name_models(models, error.modality, route.context.actor)
        raise
    await route.begin_attempt(prepared.size, prepared.report)
    return await route.open_stream(prepared.stream(route.context))


async def _name_models(models: ModelRegistry, modality: str, actor: Actor) -> str:
    """Returns the end of an error: the models that the actor can use and that take this kind of content."""
    names: list[str] = []
    for model in models.list_usable(actor):
        with suppress(AntiphonError):  # a model that is not loaded has no profile
            if modality in (await model.engine.profile()).modalities:
                names.append(model.name)
        if len(names) == MAX_SHOWN_NAMES:
            break
    return f", or send it to a model that takes it: {', '.join(names)}" if names else ""
