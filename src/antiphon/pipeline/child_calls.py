"""What a request asks of models before its answer: child calls, and counts of a prompt's tokens.

A child call writes a summary, for example. It is the request's child in the ledger. Its tokens and its cost
count. It does not count as a request, nor in limits of concurrent requests. A parent always gets an entry.
Memory strategies count the tokens of a conversation's prompt on the route that would serve it.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from copy import copy

from antiphon.domain.context import Context, RequestProgress, Span
from antiphon.domain.events import CollectedGeneration, Event, collect
from antiphon.domain.memory import MEMORY_FIELD, BudgetedStrategy
from antiphon.domain.messages import Message
from antiphon.domain.request import (
    Conversation,
    EmbeddingRequest,
    Embeddings,
    GenerationRequest,
    Output,
    Overflow,
    Ranking,
    RerankRequest,
    SamplingOptions,
)
from antiphon.domain.values import Struct, replace
from antiphon.engines.base import Engine, RequestSize
from antiphon.engines.registry import Model
from antiphon.errors import (
    ContextLengthExceeded,
    DeadlineExceeded,
    EngineError,
    MissingParameter,
    ProviderError,
    RequestError,
    UnsupportedParameter,
)
from antiphon.memory import PromptBudget, choose_budget
from antiphon.pipeline.attempt import try_routes
from antiphon.pipeline.request_meter import MILLISECONDS, RequestMeter
from antiphon.pipeline.routing import RoutePolicy, RouteUse

Embed = Callable[[EmbeddingRequest, Context], Awaitable[Embeddings]]
"""`Pipeline.embed`."""

Rerank = Callable[[RerankRequest, Context], Awaitable[Ranking]]
"""`Pipeline.rerank`."""

Run = Callable[[GenerationRequest, Context], AbstractAsyncContextManager[AsyncIterator[Event]]]
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
        self, run: Run, embed: Embed, rerank: Rerank, context: Context, meter: RequestMeter | None
    ) -> None:
        """`meter`: the parent's; None if keys are off."""
        self._run = run
        self._embed = embed
        self._rerank = rerank
        self._context = context
        self._meter = meter
        self.project = context.actor.project
        self.started_ms = int(context.clock.wall() * MILLISECONDS) if meter is None else meter.started_ms
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
        if self._meter is None:
            return replace(self._context, progress=RequestProgress())
        await self._meter.admit()
        return replace(self._context, progress=RequestProgress(), parent=self._meter.id)


def require_conversation(request: GenerationRequest, field: str = MEMORY_FIELD) -> Conversation:
    """Returns the request's only conversation. Raises UnsupportedParameter for another prompt."""
    if len(request.prompts) == 1 and isinstance(request.prompts[0], Conversation):
        return request.prompts[0]
    raise UnsupportedParameter(
        f"{field} is for one conversation; a raw prompt has no messages",
        param=field,
    )


def replace_messages(request: GenerationRequest, messages: tuple[Message, ...]) -> GenerationRequest:
    """Returns the request with other messages, and without its memory strategy."""
    conversation = replace(require_conversation(request), messages=messages)
    return replace(request, prompts=(conversation,), memory=None)


class PromptSize(Struct, frozen=True):
    """The tokens of a prompt, and the model's context length."""

    tokens: int | None
    """The tokens of the prompt; None if prompt and answer together do not fit the context."""
    context_length: int | None
    """The model's context; None if it is unknown."""
    is_counted: bool = True
    """Whether the model's own tokenizer counted. If not, `tokens` is an upper bound."""


async def measure_prompt(engine: Engine, request: GenerationRequest, context: Context) -> PromptSize:
    """Returns the size of the request's prompt on the engine. `count_tokens` explains the count."""
    size = await _prepare_probe(engine, request, context)
    profile = await engine.profile()  # after the preparation, which loads a parked model
    if size is None:
        return PromptSize(None, profile.context_length)
    return PromptSize(size.prompt_tokens, profile.context_length, size.is_counted)


async def count_tokens(engine: Engine, request: GenerationRequest, context: Context) -> int | None:
    """Returns the tokens of the request's prompt on the engine, or an upper bound. Returns None if prompt and
    requested answer together do not fit the context."""
    size = await _prepare_probe(engine, request, context)
    return None if size is None else size.prompt_tokens


async def _prepare_probe(engine: Engine, request: GenerationRequest, context: Context) -> RequestSize | None:
    """Returns the size of a request with the same prompt and token limit, and without options that do not
    change the prompt. Returns None if prompt and answer do not fit the context."""
    caller_output = request.output
    output = Output(
        max_tokens=caller_output.max_tokens or None,
        constraint=caller_output.constraint,
        overflow=caller_output.overflow,
        is_usual=caller_output.is_usual,
    )
    probe = replace(request, output=output, sampling=SamplingOptions())
    try:
        return (await engine.prepare(probe, context)).size
    except ContextLengthExceeded:
        return None


async def measure_conversation(
    request: GenerationRequest, model: Model, context: Context, policy: RoutePolicy
) -> PromptSize:
    """Returns the size of the whole conversation on the first route that works."""

    async def measure(use: RouteUse) -> PromptSize:
        size = await measure_prompt(use.route.engine, replace(request, memory=None), context)
        use.close()
        return size

    return await try_routes(model, measure, context, policy)


async def count_messages(
    request: GenerationRequest,
    messages: tuple[Message, ...],
    model: Model,
    context: Context,
    policy: RoutePolicy,
) -> int | None:
    """Returns the tokens of the request's prompt with other messages; None if they do not fit the context."""
    changed_request = replace_messages(request, messages)

    async def count(use: RouteUse) -> int | None:
        tokens = await count_tokens(use.route.engine, changed_request, context)
        use.close()
        return tokens

    return await try_routes(model, count, context, policy)


def choose_prompt_budget(
    strategy: BudgetedStrategy, size: PromptSize, request: GenerationRequest, model: Model
) -> PromptBudget:
    """Returns the token budget of the prompt. Raises MissingParameter if the caller set none and the model's
    context is unknown."""
    output = request.output
    answer_tokens = 0 if output.overflow is Overflow.SHORTEN else output.max_tokens or 0
    context_length = size.context_length if size.is_counted or strategy.tokens is None else None
    budget = choose_budget(strategy.tokens, context_length, answer_tokens)
    if budget is None:
        raise MissingParameter(
            f"{strategy.tokens_field} is missing: the context of {model.name} is not known here, so the "
            "strategy needs a budget",
            param=strategy.tokens_field,
        )
    return budget
