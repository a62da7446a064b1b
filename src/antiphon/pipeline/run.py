"""One request from start to end: resolve, remember, retrieve, attempt, meter. The HTTP edge calls only this
module.

`resolve` also checks the caller's rights. `attempt` prepares the request for each route that it tries, and
reserves its size in the limits before the route starts. Embeddings of texts and rankings of documents pass
the same stages as a generation.
"""

import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

from antiphon.domain.context import Context
from antiphon.domain.events import Event, Usage, UsageSource
from antiphon.domain.request import EmbeddingRequest, Embeddings, GenerationRequest, Ranking, RerankRequest
from antiphon.domain.values import Struct, replace
from antiphon.engines.base import RerankEngine, TextEmbeddingEngine
from antiphon.engines.registry import Model, ModelRegistry
from antiphon.errors import UnsupportedParameter
from antiphon.limits.base import Limiter
from antiphon.memory import ProcessSummaries, SummaryCache
from antiphon.pipeline.attempt import Reserve, StartedStream, attempt, pass_unlimited, try_routes
from antiphon.pipeline.child_calls import ChildCalls
from antiphon.pipeline.meter import OK, find_status, is_logged_by_edge, meter_stream, record_stream
from antiphon.pipeline.remember import MemoryStages, RelevanceStages, SummaryStages, remember
from antiphon.pipeline.request_meter import RequestMeter, RequestOutcome
from antiphon.pipeline.reserve import Accounting
from antiphon.pipeline.retrieve import ReferencedEvents, RetrievalStages
from antiphon.pipeline.routing import RoutePolicy, RouteUse, resolve
from antiphon.pipeline.spans import (
    EMBEDDINGS,
    RERANK,
    close_operation,
    describe_references,
    open_generation,
    open_memory,
    open_operation,
    open_retrieval,
)
from antiphon.retrieval.base import KnowledgeIndex
from antiphon.telemetry.logs import record
from antiphon.telemetry.metrics import Metrics


class CountedAnswer(Protocol):
    """An answer with the number of tokens that the model read."""

    @property
    def prompt_tokens(self) -> int: ...

    @property
    def source(self) -> UsageSource: ...


T = TypeVar("T", bound=CountedAnswer)

Attempt = Callable[[RouteUse, Reserve], Awaitable[T]]
"""Sends the request on one route, after its usage is reserved."""


class RequestInfo(Struct, frozen=True):
    """The facts of a request that are logged and counted."""

    kind: str
    """The event of the log record: `embedding` or `rerank`."""
    model: Model
    requested_model: str
    """The model's name as the caller wrote it."""
    inputs: int
    count_request: Callable[[str, str, int, float], None]
    """Counts the request in the metrics: label of the model, status, tokens, seconds."""


class EmbeddingStages(Struct, frozen=True):
    """The stages of embeddings and rankings."""

    models: ModelRegistry
    policy: RoutePolicy
    accounting: Accounting | None = None

    async def embed(self, request: EmbeddingRequest, context: Context) -> Embeddings:
        """Returns the vectors of a request. After an error it tries other routes, like a generation.
        Cancelling ends the work.

        Raises ModelNotFound, PermissionDenied if the caller's key does not allow the model,
        UnsupportedParameter for a model that makes no vectors, and LedgerFull if the ledger cannot record
        the request.
        """
        model = resolve(self.models, request.model, context.actor)
        if context.span is not None:
            context = open_operation(EMBEDDINGS, model, context, context.span)
        attempt = partial(_embed, replace(request, model=model.name), context)
        count = self.policy.metrics.count_embedding
        info = RequestInfo("embedding", model, request.model, len(request.inputs), count)
        return await self._run(info, attempt, context)

    async def rerank(self, request: RerankRequest, context: Context) -> Ranking:
        """Returns the scores of a request's documents. Raises the errors of `embed`, and UnsupportedParameter
        for a model that is not a reranker."""
        model = resolve(self.models, request.model, context.actor)
        if context.span is not None:
            context = open_operation(RERANK, model, context, context.span)
        attempt = partial(_rank, replace(request, model=model.name), context)
        count = self.policy.metrics.count_rerank
        info = RequestInfo("rerank", model, request.model, len(request.documents), count)
        return await self._run(info, attempt, context)

    async def _run(self, info: RequestInfo, attempt: Attempt[T], context: Context) -> T:
        """Sends the request on the first route that works, and records it."""
        model = info.model
        context.progress.model = model.name
        meter = None
        if self.accounting is not None:
            meter = RequestMeter(
                self.accounting, model, info.requested_model, True, context, self.policy.metrics
            )
        reserve = pass_unlimited if meter is None else meter.reserve
        started_at, answer, ledger_error = context.clock.monotonic(), None, None
        status = OK
        try:
            if meter is not None:
                await meter.reserve_early()
            answer = await try_routes(model, lambda use: attempt(use, reserve), context, self.policy)
        except BaseException as error:
            status = find_status(error, context)
            raise
        finally:
            if answer is None:
                usage = Usage(context.progress.embedded_tokens, 0)
            else:
                usage = Usage(answer.prompt_tokens, 0, source=answer.source)
            outcome = RequestOutcome(status, usage, context.clock.monotonic() - started_at)
            ledger_error = None if meter is None else meter.close(outcome)
            logged_by_edge = ledger_error is not None or is_logged_by_edge(sys.exception(), context)
            outcome = outcome if ledger_error is None else replace(outcome, status=ledger_error.code)
            close_operation(context, model, outcome)
            _report(outcome, info, context, logged_by_edge)
        try:
            if ledger_error is not None:
                raise ledger_error
        finally:
            del ledger_error  # the error's own traceback would keep the whole request in memory
        return answer


async def _embed(request: EmbeddingRequest, context: Context, use: RouteUse, reserve: Reserve) -> Embeddings:
    """Makes the vectors on one route."""
    engine = use.route.engine
    if not isinstance(engine, TextEmbeddingEngine):
        raise UnsupportedParameter(
            f"{request.model} makes no vectors; name an embedding model", param="model"
        )
    prepared = await engine.prepare_embedding(request, context)
    await reserve(use.route, prepared.size)
    use.begin_attempt()
    answer = await prepared.embed(use.context)
    use.record_first_event()
    use.close()
    return answer


async def _rank(request: RerankRequest, context: Context, use: RouteUse, reserve: Reserve) -> Ranking:
    """Scores the documents on one route."""
    engine = use.route.engine
    if not isinstance(engine, RerankEngine):
        raise UnsupportedParameter(f"{request.model} is not a reranker; name a reranker", param="model")
    prepared = await engine.prepare_rerank(request, context)
    await reserve(use.route, prepared.size)
    use.begin_attempt()
    answer = await prepared.rank(use.context)
    use.record_first_event()
    use.close()
    return answer


def _report(outcome: RequestOutcome, info: RequestInfo, context: Context, logged_by_edge: bool) -> None:
    """Counts the request in the metrics. Writes its log record, or passes the fields to the HTTP edge if the
    edge writes the record."""
    tokens = outcome.usage.prompt_tokens
    info.count_request(info.model.label, outcome.status, tokens, outcome.total_s)
    fields = {
        "actor": context.actor.id,
        "inputs": info.inputs,
        "prompt_tokens": tokens,
        "total_ms": round(outcome.total_s * 1000, 1),
    }
    if logged_by_edge:
        context.progress.log_fields = fields
    else:
        log_fields = {"request_id": context.request_id, "model": info.model.name, "status": outcome.status}
        record(info.kind, logging.INFO, **log_fields, **fields)


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
            is_bounded = request.output.max_tokens is not None and not request.output.is_usual
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
