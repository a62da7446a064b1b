"""Embeddings of texts, and rankings of documents. They pass the same stages as a generation."""

import logging
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol, TypeVar

from antiphon.domain.context import Context
from antiphon.domain.events import Usage, UsageSource
from antiphon.domain.request import EmbeddingRequest, Embeddings, Ranking, RerankRequest
from antiphon.domain.values import Struct, replace
from antiphon.engines.base import RerankEngine, TextEmbeddingEngine
from antiphon.engines.registry import Model, ModelRegistry
from antiphon.errors import UnsupportedParameter
from antiphon.pipeline.attempt import Reserve, pass_unlimited, try_routes
from antiphon.pipeline.meter import OK, find_status, is_logged_by_edge
from antiphon.pipeline.request_meter import RequestMeter, RequestOutcome
from antiphon.pipeline.reserve import Accounting
from antiphon.pipeline.routing import RoutePolicy, RouteUse, resolve
from antiphon.pipeline.spans import EMBEDDINGS, RERANK, close_operation, open_operation
from antiphon.telemetry.logs import record


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
            if answer is None and meter is not None:
                usage = meter.charge_unfinished(usage, sys.exception())
            outcome = RequestOutcome(status, usage, context.clock.monotonic() - started_at)
            ledger_error = None if meter is None else meter.close(outcome)
            logged_by_edge = ledger_error is not None or is_logged_by_edge(sys.exception(), context)
            outcome = outcome if ledger_error is None else replace(outcome, status=ledger_error.code)
            close_operation(context, model, outcome)
            self.policy.metrics.count_project(context.actor.project, outcome.usage.prompt_tokens, 0)
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
        log_fields |= {"path": context.origin.operation, "client": context.actor.client or ""}
        record(info.kind, logging.INFO, **log_fields, **fields)
