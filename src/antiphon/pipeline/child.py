"""Child calls: calls of models that a request makes before its answer, for example to write a summary.

They are the request's children in the ledger. Their tokens and their cost count. They do not count as
requests, nor in limits of concurrent requests. A parent always gets an entry.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from copy import copy

from antiphon.domain.collect import CollectedGeneration, collect
from antiphon.domain.context import Context, RequestProgress, Span
from antiphon.domain.events import EventGroup
from antiphon.domain.request import EmbeddingRequest, Embeddings, GenerationRequest, Ranking, RerankRequest
from antiphon.domain.values import replace
from antiphon.errors import DeadlineExceeded, EngineError, ProviderError, RequestError
from antiphon.pipeline.account import RequestAccount

Embed = Callable[[EmbeddingRequest, Context], Awaitable[Embeddings]]
"""`Pipeline.embed`."""

Rerank = Callable[[RerankRequest, Context], Awaitable[Ranking]]
"""`Pipeline.rerank`."""

Run = Callable[[GenerationRequest, Context], AbstractAsyncContextManager[AsyncIterator[EventGroup]]]
"""`Pipeline.run`."""


@contextmanager
def name_model_in_errors(field: str, failure: str) -> Iterator[None]:
    """Adds the model to the messages of errors in the block. `field`: the field that names the model.
    `failure`: for example `w could not write a summary`."""
    try:
        yield
    except DeadlineExceeded:  # the deadline of the whole request has passed
        raise
    except (RequestError, EngineError, ProviderError) as error:
        error_with_field = copy(error)
        error_with_field.message = f"{field}: {failure}: {error.message}"
        error_with_field.args = (error_with_field.message,)
        error_with_field.param = None if error.param is None else field
        raise error_with_field from None


class ChildCalls:
    """Makes the child calls of one request, with its actor and its deadline."""

    def __init__(
        self, run: Run, embed: Embed, rerank: Rerank, context: Context, account: RequestAccount
    ) -> None:
        """`account`: the parent's."""
        self._run = run
        self._embed = embed
        self._rerank = rerank
        self._context = context
        self._account = account
        self.project = context.actor.project
        self.started_ms = account.started_ms
        """The start of the parent in Unix milliseconds."""

    @contextmanager
    def trace_stage(self, stage: AbstractContextManager[Span | None]) -> Iterator[Span | None]:
        """Makes the span of a stage the parent of the calls' spans, while the block runs. Yields that
        span."""
        outer_context = self._context
        with stage as span:
            self._context = replace(outer_context, span=span)
            try:
                yield span
            finally:
                self._context = outer_context

    async def generate(self, request: GenerationRequest) -> CollectedGeneration:
        """Returns the whole answer. Raises the errors of `Pipeline.run`, and the refusal of the parent's
        limits."""
        async with self._run(request, await self._build_child_context()) as events:
            return await collect(events)

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        """Returns the vectors. Raises the errors of `Pipeline.embed`, and the refusal of the parent's
        limits."""
        return await self._embed(request, await self._build_child_context())

    async def rerank(self, request: RerankRequest) -> Ranking:
        """Returns the scores. Raises the errors of `Pipeline.rerank`, and the refusal of the parent's
        limits."""
        return await self._rerank(request, await self._build_child_context())

    async def _build_child_context(self) -> Context:
        """Writes the parent's intent, and returns the context of a child call."""
        await self._account.admit()
        return replace(self._context, progress=RequestProgress(), parent=self._account.id or None)
