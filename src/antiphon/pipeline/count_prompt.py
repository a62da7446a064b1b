"""Counts the tokens of a conversation's prompt, for memory strategies."""

from dataclasses import dataclass, replace

from antiphon.domain.context import Context
from antiphon.domain.memory import MEMORY_FIELD
from antiphon.domain.messages import Message
from antiphon.domain.request import Conversation, GenerationRequest, Output
from antiphon.domain.sampling import SamplingOptions
from antiphon.domain.values import changed
from antiphon.engines.base import Engine, RequestSize
from antiphon.errors import ContextLengthExceeded, UnsupportedParameter


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
    return changed(request, prompts=(conversation,), memory=None)


@dataclass(frozen=True, slots=True)
class PromptSize:
    """The tokens of a prompt, and what it must fit into."""

    tokens: int | None
    """The most tokens of the prompt; None if it does not fit the context beside the answer."""
    context_length: int | None
    """The model's context; None if it is unknown."""
    is_counted: bool = True
    """Whether the model's own tokenizer counts. Otherwise `tokens` is an upper bound."""


async def measure_prompt(engine: Engine, request: GenerationRequest, context: Context) -> PromptSize:
    """Returns the size of the request's prompt on the engine, counted as by `count_tokens`."""
    size = await _prepare_probe(engine, request, context)
    length = (await engine.profile()).context_length  # after the preparation, which loads a parked model
    return (
        PromptSize(None, length) if size is None else PromptSize(size.prompt_tokens, length, size.is_counted)
    )


async def count_tokens(engine: Engine, request: GenerationRequest, context: Context) -> int | None:
    """Returns the most tokens that the request's prompt takes on the engine; None if it does not fit the
    context beside the requested answer. Only what shapes the prompt is looked at."""
    size = await _prepare_probe(engine, request, context)
    return None if size is None else size.prompt_tokens


async def _prepare_probe(engine: Engine, request: GenerationRequest, context: Context) -> RequestSize | None:
    """Returns the size of a request with the same prompt and the same limit of tokens; None if these are more
    than the context."""
    given = request.output
    output = Output(max_tokens=given.max_tokens or None, overflow=given.overflow, constraint=given.constraint)
    probe = changed(request, output=output, sampling=SamplingOptions())
    try:
        return (await engine.prepare(probe, context)).size
    except ContextLengthExceeded:
        return None
