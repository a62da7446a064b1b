"""One request, told once: resolve → authorize → reserve → attempt → meter. The only thing that the edge
calls.

Holds no stage's logic. What a stage adds is in the module of its name.
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
from antiphon.engines.registry import Models
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
    """The stages with what they need, made once."""

    models: Models
    metrics: Metrics
    restart_patience: float
    """Seconds that a request waits for an engine that is starting again."""
    accounting: Accounting | None = None
    """Who keeps limits and ledger; None, where keys are off."""

    @property
    def keeps_records(self) -> bool:
        """Whether each request's usage is written down."""
        return self.accounting is not None

    def run(
        self, request: GenerationRequest, context: Context
    ) -> AbstractAsyncContextManager[AsyncIterator[Event]]:
        """Entering is cheap; the work runs as the iterator is read; leaving ends it, wherever it stands.

        Raises ModelNotFound, and PermissionDenied for a model that the caller's key is not for, or that has
        no price where a limit of cost holds.
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
        """Vectors of texts; cancelling ends the work. Raises ModelNotFound."""
        return await embed(
            self.models, request, context, self.metrics, self.restart_patience, self.accounting
        )
