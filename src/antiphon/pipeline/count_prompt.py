"""Counts the tokens of a conversation's prompt, for memory strategies."""

from antiphon.domain.context import Context
from antiphon.domain.memory import MEMORY_FIELD, BudgetedStrategy
from antiphon.domain.messages import Message
from antiphon.domain.request import Conversation, GenerationRequest, Output, Overflow, SamplingOptions
from antiphon.domain.values import Struct, replace
from antiphon.engines.base import Engine, RequestSize
from antiphon.engines.registry import Model
from antiphon.errors import ContextLengthExceeded, MissingParameter, UnsupportedParameter
from antiphon.memory.turns import PromptBudget, choose_budget
from antiphon.pipeline.documents import DocumentTexts
from antiphon.pipeline.open_route import OpenRoute, RoutePolicy
from antiphon.pipeline.prepare import prepare


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


async def measure_prompt(
    engine: Engine, request: GenerationRequest, context: Context, documents: DocumentTexts | None = None
) -> PromptSize:
    """Returns the size of the request's prompt on the engine. `count_tokens` explains the count."""
    size = await _prepare_probe(engine, request, context, documents)
    profile = await engine.profile()  # after the preparation, which loads a parked model
    if size is None:
        return PromptSize(None, profile.context_length)
    return PromptSize(size.prompt_tokens, profile.context_length, size.is_counted)


async def count_tokens(
    engine: Engine, request: GenerationRequest, context: Context, documents: DocumentTexts | None = None
) -> int | None:
    """Returns the tokens of the request's prompt on the engine, or an upper bound. Returns None if prompt and
    requested answer together do not fit the context."""
    size = await _prepare_probe(engine, request, context, documents)
    return None if size is None else size.prompt_tokens


async def _prepare_probe(
    engine: Engine, request: GenerationRequest, context: Context, documents: DocumentTexts | None = None
) -> RequestSize | None:
    """Returns the size of a request with the same prompt and token limit, and without options that do not
    change the prompt. Returns None if prompt and answer do not fit the context."""
    caller_output = request.output
    output = Output(
        max_tokens=caller_output.max_tokens or None,
        constraint=caller_output.constraint,
        overflow=caller_output.overflow,
        is_default_max_tokens=caller_output.is_default_max_tokens,
    )
    probe = replace(request, output=output, sampling=SamplingOptions())
    try:
        return (await prepare(engine, probe, context, documents)).size
    except ContextLengthExceeded:
        return None


async def measure_conversation(
    request: GenerationRequest, model: Model, context: Context, policy: RoutePolicy
) -> PromptSize:
    """Returns the size of the whole conversation on the first route that works."""

    async def measure(route: OpenRoute[PromptSize]) -> PromptSize:
        return await measure_prompt(route.engine, replace(request, memory=None), context)

    async with OpenRoute(model, measure, context, policy) as size:
        return size


async def count_messages(
    request: GenerationRequest,
    messages: tuple[Message, ...],
    model: Model,
    context: Context,
    policy: RoutePolicy,
) -> int | None:
    """Returns the tokens of the request's prompt with other messages; None if they do not fit the context."""
    changed_request = replace_messages(request, messages)

    async def count(route: OpenRoute[int | None]) -> int | None:
        return await count_tokens(route.engine, changed_request, context)

    async with OpenRoute(model, count, context, policy) as tokens:
        return tokens


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
