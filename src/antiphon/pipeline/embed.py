"""Requests without generated text: vectors of texts, and rankings of documents.

They pass the same stages as a generation.
"""

import logging
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeVar

from antiphon.domain.context import Context
from antiphon.domain.events import Usage, UsageSource
from antiphon.domain.request import EmbeddingRequest, Embeddings
from antiphon.domain.rerank import Ranking, RerankRequest
from antiphon.domain.values import changed
from antiphon.engines.base import RerankEngine, TextEmbeddingEngine
from antiphon.engines.registry import Model, ModelRegistry
from antiphon.errors import UnsupportedParameter
from antiphon.pipeline.attempt import Reserve, pass_unlimited, try_routes
from antiphon.pipeline.meter import OK, find_status, is_logged_by_edge
from antiphon.pipeline.request_meter import RequestMeter, RequestOutcome
from antiphon.pipeline.reserve import Accounting
from antiphon.pipeline.resolve import resolve
from antiphon.pipeline.route_use import RoutePolicy, RouteUse
from antiphon.pipeline.spans import EMBEDDINGS, RERANK, close_operation, open_operation
from antiphon.telemetry.logs import record


class CountedAnswer(Protocol):
    """An answer that tells how many tokens were read."""

    @property
    def prompt_tokens(self) -> int: ...

    @property
    def source(self) -> UsageSource: ...


T = TypeVar("T", bound=CountedAnswer)

Attempt = Callable[[RouteUse, Reserve], Awaitable[T]]
"""Does the work on one route, after the request is reserved."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a request asks for, for the records."""

    kind: str
    """The event of the log record: `embedding` or `rerank`."""
    model: Model
    requested_model: str
    """The model's name as the caller wrote it."""
    inputs: int
    count: Callable[[str, str, int, float], None]
    """Counts the request in the metrics: label of the model, status, tokens, seconds."""


@dataclass(frozen=True, slots=True)
class EmbeddingStages:
    """The stages of requests without generated text."""

    models: ModelRegistry
    policy: RoutePolicy
    accounting: Accounting | None = None

    async def embed(self, request: EmbeddingRequest, context: Context) -> Embeddings:
        """Returns the vectors of a request. Retries until an engine has begun, if the error allows a retry.
        Cancelling ends the work.

        Raises ModelNotFound, PermissionDenied if the caller's key does not allow the model,
        UnsupportedParameter for a model that makes no vectors, and LedgerFull if the request cannot be
        written down.
        """
        model = resolve(self.models, request.model, context.actor)
        if context.span is not None:
            context = open_operation(EMBEDDINGS, model, context, context.span)
        attempt = partial(_embed, replace(request, model=model.name), context)
        count = self.policy.metrics.count_embedding
        work = Work("embedding", model, request.model, len(request.inputs), count)
        return await self._run(work, attempt, context)

    async def rerank(self, request: RerankRequest, context: Context) -> Ranking:
        """Returns the scores of a request's documents. Raises as `embed` does, and UnsupportedParameter for a
        model that is no reranker."""
        model = resolve(self.models, request.model, context.actor)
        if context.span is not None:
            context = open_operation(RERANK, model, context, context.span)
        attempt = partial(_rank, replace(request, model=model.name), context)
        count = self.policy.metrics.count_rerank
        work = Work("rerank", model, request.model, len(request.documents), count)
        return await self._run(work, attempt, context)

    async def _run(self, work: Work, attempt: Attempt[T], context: Context) -> T:
        """Does the work on one of the model's routes, and records it."""
        model = work.model
        context.progress.model = model.name
        account = None
        if self.accounting is not None:
            account = RequestMeter(
                self.accounting, model, work.requested_model, True, context, self.policy.metrics
            )
        reserve = pass_unlimited if account is None else account.reserve
        began, answer, lost = context.clock.monotonic(), None, None
        status = OK
        try:
            if account is not None:
                await account.open()
            answer = await try_routes(model, lambda use: attempt(use, reserve), context, self.policy)
        except BaseException as error:
            status = find_status(error, context)
            raise
        finally:
            if answer is None:
                usage = Usage(context.progress.embedded, 0)
            else:
                usage = Usage(answer.prompt_tokens, 0, source=answer.source)
            ended = RequestOutcome(status, usage, context.clock.monotonic() - began)
            lost = None if account is None else account.close(ended)
            answered = lost is not None or is_logged_by_edge(sys.exception(), context)
            ended = ended if lost is None else changed(ended, status=lost.code)
            close_operation(context, model, ended)
            _report(ended, work, context, answered)
        try:
            if lost is not None:
                raise lost
        finally:
            del lost  # the error's own traceback would keep the whole request in memory
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
    use.begin()
    answer = await prepared.embed(use.context)
    use.serve()
    use.close()
    return answer


async def _rank(request: RerankRequest, context: Context, use: RouteUse, reserve: Reserve) -> Ranking:
    """Scores the documents on one route."""
    engine = use.route.engine
    if not isinstance(engine, RerankEngine):
        raise UnsupportedParameter(f"{request.model} is no reranker; name one", param="model")
    prepared = await engine.prepare_rerank(request, context)
    await reserve(use.route, prepared.size)
    use.begin()
    answer = await prepared.rank(use.context)
    use.serve()
    use.close()
    return answer


def _report(ended: RequestOutcome, work: Work, context: Context, answered: bool) -> None:
    """Counts the request in the metrics, and writes or passes on the values of its log record."""
    tokens = ended.usage.prompt_tokens
    work.count(work.model.label, ended.status, tokens, ended.total)
    values = {
        "actor": context.actor.id,
        "inputs": work.inputs,
        "prompt_tokens": tokens,
        "total_ms": round(ended.total * 1000, 1),
    }
    if answered:
        context.progress.account = values
    else:
        log_fields = {"request_id": context.request_id, "model": work.model.name, "status": ended.status}
        record(work.kind, logging.INFO, **log_fields, **values)
