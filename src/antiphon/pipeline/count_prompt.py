"""Counts the tokens of a conversation's prompt, for memory strategies."""

from dataclasses import replace

from antiphon.domain.context import Context
from antiphon.domain.memory import MEMORY_FIELD
from antiphon.domain.messages import Message
from antiphon.domain.request import Conversation, GenerationRequest, Output
from antiphon.domain.sampling import SamplingOptions
from antiphon.domain.values import changed
from antiphon.engines.base import Engine
from antiphon.errors import ContextLengthExceeded, UnsupportedParameter


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
