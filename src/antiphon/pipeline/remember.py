"""Chooses the part of the conversation that the model sees, by the request's memory strategy.

`antiphon.memory` decides. This module counts tokens, by the engine that would serve the request: the most
that it says its prompt can take.
"""

from dataclasses import replace

from antiphon.domain.context import Context, RequestProgress
from antiphon.domain.memory import MEMORY_FIELD, LastMessages, LastTokens, MemoryReport
from antiphon.domain.messages import Message
from antiphon.domain.request import Conversation, GenerationRequest, Output
from antiphon.domain.sampling import SamplingOptions
from antiphon.domain.values import changed
from antiphon.engines.base import Engine
from antiphon.engines.registry import Model
from antiphon.errors import ContextLengthExceeded, InvalidValue, UnsupportedParameter
from antiphon.memory.last_k import keep_last_messages
from antiphon.memory.last_tokens import TurnSearch
from antiphon.pipeline.attempt import try_routes
from antiphon.pipeline.route_use import RoutePolicy, RouteUse


async def remember(
    request: GenerationRequest, model: Model, context: Context, policy: RoutePolicy
) -> GenerationRequest:
    """Returns the request with the messages that the model sees, and reports them in the progress. Makes no
    token of the model. Raises a RequestError."""
    strategy, messages = request.memory, require_conversation(request).messages
    if strategy is None:
        return request
    if isinstance(strategy, LastMessages):
        kept = keep_last_messages(messages, strategy.k)
    elif isinstance(strategy, LastTokens):
        kept = await _keep_last_tokens(request, strategy.tokens, model, context, policy)
    else:
        raise UnsupportedParameter(
            f"{MEMORY_FIELD}: summaries are not written here; send last_k or last_tokens",
            param=f"{MEMORY_FIELD}.name",
        )
    context.progress.memory = MemoryReport(len(kept), len(messages) - len(kept))
    return replace_messages(request, kept)


def require_conversation(request: GenerationRequest) -> Conversation:
    """Returns the request's only conversation. Raises UnsupportedParameter for another prompt."""
    if len(request.prompts) == 1 and isinstance(request.prompts[0], Conversation):
        return request.prompts[0]
    raise UnsupportedParameter(
        f"{MEMORY_FIELD} is for one conversation; a raw prompt has no messages to choose from",
        param=MEMORY_FIELD,
    )


def replace_messages(request: GenerationRequest, messages: tuple[Message, ...]) -> GenerationRequest:
    """Returns the request with other messages, and without its memory strategy."""
    conversation = replace(require_conversation(request), messages=messages)
    return changed(request, prompts=(conversation,), memory=None)


async def _keep_last_tokens(
    request: GenerationRequest, budget: int, model: Model, context: Context, policy: RoutePolicy
) -> tuple[Message, ...]:
    """Returns the leading messages and as many of the last turns as fit the budget. Raises InvalidValue if
    the last turn does not fit."""
    scratch = changed(context, progress=RequestProgress())

    async def search(use: RouteUse) -> tuple[Message, ...]:
        turns = TurnSearch(require_conversation(request).messages, budget)
        while (messages := turns.choose()) is not None:
            turns.add(await count_tokens(use.route.engine, replace_messages(request, messages), scratch))
        use.close()
        if turns.found is not None:
            return turns.found
        needed = (
            "more tokens than the model's context has" if turns.least is None else f"{turns.least} tokens"
        )
        raise InvalidValue(
            f"{MEMORY_FIELD}.tokens is {budget}, and the system messages with the last turn take {needed}; "
            "raise it, or shorten them",
            param=f"{MEMORY_FIELD}.tokens",
        )

    return await try_routes(model, search, scratch, policy)


async def count_tokens(engine: Engine, request: GenerationRequest, context: Context) -> int | None:
    """Returns the most tokens that the request's prompt takes on the engine; None if they are more than its
    context. Only what shapes the prompt is looked at."""
    output = Output(constraint=request.output.constraint)
    probe = changed(request, output=output, sampling=SamplingOptions())
    try:
        prepared = await engine.prepare(probe, context)
    except ContextLengthExceeded:
        return None
    return prepared.size.prompt_tokens
