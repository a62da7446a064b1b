"""One request from start to end: resolve → authorize → reserve → attempt → meter. The edge calls only this
module.

Each stage is in the module of its name. Generations and embeddings use the same stages.
"""

import logging
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field, replace
from functools import partial

from antiphon.domain.context import Context
from antiphon.domain.events import Event, Usage
from antiphon.domain.request import EmbeddingRequest, Embeddings, GenerationRequest
from antiphon.domain.values import changed
from antiphon.engines.base import TextEmbeddingEngine
from antiphon.engines.registry import ModelRegistry
from antiphon.errors import UnsupportedParameter
from antiphon.limits.base import Limiter
from antiphon.pipeline.attempt import Reserve, attempt, pass_unlimited, try_routes
from antiphon.pipeline.meter import OK, find_status, is_logged_by_edge, meter_stream, record_stream
from antiphon.pipeline.request_meter import RequestMeter, RequestOutcome
from antiphon.pipeline.reserve import Accounting
from antiphon.pipeline.resolve import resolve
from antiphon.pipeline.route_use import RoutePolicy, RouteUse
from antiphon.telemetry.logs import record
from antiphon.telemetry.metrics import Metrics


async def embed(
    models: ModelRegistry,
    request: EmbeddingRequest,
    context: Context,
    policy: RoutePolicy,
    accounting: Accounting | None = None,
) -> Embeddings:
    """Returns the vectors of a request. Retries until an engine has begun, if the error allows a retry.
    Cancelling ends the work.

    Raises ModelNotFound, PermissionDenied if the caller's key does not allow the model, UnsupportedParameter
    for a model that makes no vectors, and LedgerFull if the request cannot be written down.
    """
    requested_model = request.model
    model = resolve(models, requested_model, context.actor)
    request = replace(request, model=model.name)
    context.progress.model = model.name
    account, metrics = None, policy.metrics
    if accounting is not None:
        account = RequestMeter(accounting, model, requested_model, True, context, metrics)
    reserve = pass_unlimited if account is None else account.reserve
    began, answer, lost = context.clock.monotonic(), None, None
    status = OK
    try:
        if account is not None:
            await account.open()
        start = partial(_attempt, request=request, context=context, reserve=reserve)
        answer = await try_routes(model, start, context, policy)
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
        _report(ended, request, model.label, context, metrics, answered)
    try:
        if lost is not None:
            raise lost
    finally:
        del lost  # the error's own traceback would keep the whole request in memory
    return answer


async def _attempt(
    use: RouteUse, *, request: EmbeddingRequest, context: Context, reserve: Reserve
) -> Embeddings:
    """Makes the vectors on one route, after the request is reserved."""
    engine = use.route.engine
    if not isinstance(engine, TextEmbeddingEngine):
        raise UnsupportedParameter(
            f"{request.model} makes no vectors; name an embedding model", param="model"
        )
    prepared = await engine.prepare_embedding(request, context)
    await reserve(use.route, prepared.size)
    use.begin()
    answer = await prepared.embed(context)
    use.serve()
    use.close()
    return answer


def _report(
    ended: RequestOutcome,
    request: EmbeddingRequest,
    label: str,
    context: Context,
    metrics: Metrics,
    answered: bool,
) -> None:
    """Counts the embedding in the metrics, and writes or passes on the values of its log record."""
    tokens = ended.usage.prompt_tokens
    metrics.count_embedding(label, ended.status, tokens, ended.total)
    values = {
        "actor": context.actor.id,
        "inputs": len(request.inputs),
        "prompt_tokens": tokens,
        "total_ms": round(ended.total * 1000, 1),
    }
    if answered:
        context.progress.account = values
    else:
        log_fields = {"request_id": context.request_id, "model": request.model, "status": ended.status}
        record("embedding", logging.INFO, **log_fields, **values)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The stages and what they need, built once."""

    models: ModelRegistry
    metrics: Metrics
    restart_patience: float
    """Seconds that a request waits for a restarting engine."""
    accounting: Accounting | None = None
    """Limiter and ledger; None if keys are off."""
    route_limiter: Limiter | None = None
    """Counts the requests in flight of routes with a limit over all HTTP processes; None if there is only
    this process."""
    policy: RoutePolicy = field(init=False)
    """What all uses of routes share."""

    def __post_init__(self) -> None:
        policy = RoutePolicy(self.metrics, self.restart_patience, self.route_limiter)
        object.__setattr__(self, "policy", policy)

    @property
    def keeps_records(self) -> bool:
        """Whether the usage of each request is written down."""
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
            request = changed(request, model=model.name)
        account = None
        if self.accounting is not None:
            is_bounded = request.output.max_tokens is not None and not request.output.is_usual
            account = RequestMeter(self.accounting, model, requested_model, is_bounded, context, self.metrics)
        reserve = pass_unlimited if account is None else account.reserve
        begin = partial(attempt, model, request, context, self.policy, reserve)
        events = meter_stream(begin, model, context, self.metrics, account)
        recorder = None if self.accounting is None else self.accounting.recorder
        if account is not None and recorder is not None and recorder.wants(context.actor.project):
            events = record_stream(events, account, context, recorder)
        return aclosing(events)

    async def embed(self, request: EmbeddingRequest, context: Context) -> Embeddings:
        """Returns the vectors of texts. Cancelling ends the work. Raises ModelNotFound."""
        return await embed(self.models, request, context, self.policy, self.accounting)
