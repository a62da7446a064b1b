"""One request from start to end: resolve → authorize → reserve → attempt → meter. The edge calls only this
module.

Each stage is in the module of its name; this module holds no logic of its own.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass
from functools import partial

from antiphon.domain.context import Context
from antiphon.domain.embedding import EmbeddingRequest, Embeddings
from antiphon.domain.events import Event
from antiphon.domain.request import GenerationRequest
from antiphon.domain.values import changed
from antiphon.engines.registry import ModelRegistry
from antiphon.pipeline.attempt import attempt, pass_unlimited
from antiphon.pipeline.embedding import embed
from antiphon.pipeline.meter import meter_stream
from antiphon.pipeline.recording import record_stream
from antiphon.pipeline.request_meter import RequestMeter
from antiphon.pipeline.reserve import Accounting
from antiphon.pipeline.resolve import resolve
from antiphon.telemetry.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The stages and what they need, built once."""

    models: ModelRegistry
    metrics: Metrics
    restart_patience: float
    """Seconds that a request waits for a restarting engine."""
    accounting: Accounting | None = None
    """Limiter and ledger; None if keys are off."""

    @property
    def keeps_records(self) -> bool:
        """Whether the usage of each request is written down."""
        return self.accounting is not None

    def run(
        self, request: GenerationRequest, context: Context
    ) -> AbstractAsyncContextManager[AsyncIterator[Event]]:
        """The events of a generation. The work starts when the iterator is read. Leaving the context ends it
        at any point.

        Raises ModelNotFound. Raises PermissionDenied if the caller's key does not allow the model, or if a
        cost limit applies and the model has no price.
        """
        asked = request.model
        model = resolve(self.models, asked, context.actor)
        context.progress.model = model.name
        if asked != model.name:
            request = changed(request, model=model.name)
        account = None
        if self.accounting is not None:
            is_bounded = request.output.max_tokens is not None and not request.output.is_usual
            account = RequestMeter(self.accounting, model, asked, is_bounded, context, self.metrics)
        reserve = pass_unlimited if account is None else account.reserve
        begin = partial(attempt, model.routes, request, context, self.restart_patience, reserve)
        events = meter_stream(begin, request, context, self.metrics, account)
        recorder = None if self.accounting is None else self.accounting.recorder
        if account is not None and recorder is not None and recorder.wants(context.actor.project):
            events = record_stream(events, account, context, recorder)
        return aclosing(events)

    async def embed(self, request: EmbeddingRequest, context: Context) -> Embeddings:
        """Vectors of texts. Cancelling ends the work. Raises ModelNotFound."""
        return await embed(
            self.models, request, context, self.metrics, self.restart_patience, self.accounting
        )
