"""Prepares a request on one route, without the optional parameters that the route's engine lacks."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from antiphon.domain.context import Context
from antiphon.domain.request import Conversation, GenerationRequest, Prompt, Reasoning
from antiphon.domain.sampling import SamplingOptions
from antiphon.domain.values import changed
from antiphon.engines.base import Engine, PreparedRequest
from antiphon.errors import UnsupportedParameter


async def prepare(engine: Engine, request: GenerationRequest, context: Context) -> PreparedRequest:
    """Prepares the request. Raises a RequestError, also for a parameter that the engine lacks and the request
    needs."""
    left_out: tuple[str, ...] = ()
    while True:
        try:
            prepared = await engine.prepare(request, context)
        except UnsupportedParameter as error:
            name = error.param or ""
            if name not in request.optional:
                raise
        else:
            context.progress.unread += left_out
            return prepared
        request, left_out = leave_out(request, name), (*left_out, name)


def leave_out(request: GenerationRequest, name: str) -> GenerationRequest:
    """Returns the request without one of its optional parameters."""
    request = changed(request, optional=request.optional - {name})
    if name in SamplingOptions.__struct_fields__:
        return changed(request, sampling=changed(request.sampling, **{name: None}))
    if name == "stop":
        return changed(request, output=changed(request.output, stop=()))
    forget = partial(_forget_reasoning, name)
    return changed(request, prompts=tuple(_change_reasoning(prompt, forget) for prompt in request.prompts))


def _change_reasoning(prompt: Prompt, change: Callable[[Reasoning], Reasoning]) -> Prompt:
    """Returns the prompt with its reasoning changed. A raw prompt has none."""
    return replace(prompt, reasoning=change(prompt.reasoning)) if isinstance(prompt, Conversation) else prompt


def _forget_reasoning(name: str, reasoning: Reasoning) -> Reasoning:
    """Returns the options of reasoning without the effort or the budget, by the dialect's name."""
    if name == reasoning.terms.effort:
        return replace(reasoning, effort=None, wanted=False)
    return replace(reasoning, budget=None) if name == reasoning.terms.budget else reasoning
