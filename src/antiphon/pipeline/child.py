"""The calls that a request makes on its way to its answer, such as the one that writes a summary.

They are its children in the ledger. Their tokens and their cost count, but they are no requests of the caller
and take no place of a limit of concurrent requests. A parent always gets an entry.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from copy import copy

from antiphon.domain.collect import CollectedGeneration, collect
from antiphon.domain.context import Context, RequestProgress
from antiphon.domain.events import Event
from antiphon.domain.request import EmbeddingRequest, Embeddings, GenerationRequest
from antiphon.domain.rerank import Ranking, RerankRequest
from antiphon.domain.tracing import Span
from antiphon.domain.values import changed
from antiphon.errors import DeadlineExceeded, EngineError, ProviderError, RequestError
from antiphon.pipeline.request_meter import MILLISECONDS, RequestMeter

Embed = Callable[[EmbeddingRequest, Context], Awaitable[Embeddings]]
"""`Pipeline.embed`."""

Rank = Callable[[RerankRequest, Context], Awaitable[Ranking]]
"""`Pipeline.rerank`."""

Run = Callable[[GenerationRequest, Context], AbstractAsyncContextManager[AsyncIterator[Event]]]
"""`Pipeline.run`."""


@contextmanager
def name_model(field: str, failure: str) -> Iterator[None]:
    """Names a call's model in the call's errors. `field`: where the caller named the model. `failure`: what
    the model could not do, as `w could not write a summary`."""
    try:
        yield
    except DeadlineExceeded:  # the time of the whole request is over
        raise
    except (RequestError, EngineError, ProviderError) as error:
        named = copy(error)
        named.message = f"{field}: {failure}: {error.message}"
        named.args = (named.message,)
        named.param = None if error.param is None else field
        raise named from None


class ChildCalls:
    """Makes the calls of one request, as its caller and within its time."""

    def __init__(
        self, run: Run, embed: Embed, rank: Rank, context: Context, account: RequestMeter | None
    ) -> None:
        """`account`: the parent's; None if keys are off."""
        self._run = run
        self._embed = embed
        self._rank = rank
        self._context = context
        self._account = account
        self.project = context.actor.project
        self.at = int(context.clock.wall() * MILLISECONDS) if account is None else account.at
        """Unix milliseconds of the parent's beginning."""

    @contextmanager
    def within(self, stage: AbstractContextManager[Span | None]) -> Iterator[Span | None]:
        """Puts the spans of calls below the span of a stage, while the block runs. Yields that span."""
        whole = self._context
        with stage as span:
            self._context = changed(whole, span=span)
            try:
                yield span
            finally:
                self._context = whole

    async def generate(self, request: GenerationRequest) -> CollectedGeneration:
        """Returns the whole answer. Raises what `Pipeline.run` raises, and the refusal of the parent's
        limits."""
        async with self._run(request, await self._enter()) as events:
            return await collect(events)

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        """Returns the vectors. Raises as `generate` does."""
        return await self._embed(request, await self._enter())

    async def rerank(self, request: RerankRequest) -> Ranking:
        """Returns the scores. Raises as `generate` does."""
        return await self._rank(request, await self._enter())

    async def _enter(self) -> Context:
        """Writes the parent's intent, and returns the circumstances of a call."""
        if self._account is None:
            return changed(self._context, progress=RequestProgress())
        await self._account.admit()
        return changed(self._context, progress=RequestProgress(), parent=self._account.id)
