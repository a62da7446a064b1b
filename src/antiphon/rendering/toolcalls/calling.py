"""What tools make of a request: the constraint that its choices follow, and who listens for calls."""

from collections.abc import AsyncGenerator, Callable
from dataclasses import replace

from antiphon.domain.constraint import ConstraintKind
from antiphon.domain.context import Clock
from antiphon.domain.events import Event
from antiphon.domain.request import Conversation, GenerationRequest
from antiphon.domain.tools import ToolChoice, Tools
from antiphon.errors import UnsupportedParameter
from antiphon.rendering.facts import Facts
from antiphon.rendering.spoken import short_id
from antiphon.rendering.toolcalls.hearing import Hearing

ID_PREFIX = "call_"


def calling(request: GenerationRequest, facts: Facts) -> GenerationRequest:
    """The same request, with its choices constrained as its tools want it. Raises UnsupportedParameter."""
    tools, constraint = _tools(request), request.output.constraint
    if tools is None or facts.template is None:
        return request
    if constraint is not None:
        if tools.choice is ToolChoice.NONE:
            return request
        raise UnsupportedParameter(
            f"{constraint.field} is not supported together with tools that may be called: leave one of them "
            'out, or send tool_choice "none"',
            param=constraint.field,
        )
    constraint = facts.template.layout.constraint(tools, facts.controls)
    return replace(request, output=replace(request.output, constraint=constraint))


def heard(
    request: GenerationRequest,
    facts: Facts,
    choice: int,
    events: AsyncGenerator[Event, None],
    clock: Clock,
) -> AsyncGenerator[Event, None]:
    """The events of one choice, with calls told apart from text where the model may call."""
    tools = _tools(request)
    if tools is None or facts.template is None or not _is_read(request, facts):
        return events
    layout, required = facts.template.layout, tools.choice is ToolChoice.REQUIRED
    return Hearing(choice, layout.reader(), _ids(clock, layout.short_ids), required).told(events)


def listening(request: GenerationRequest, facts: Facts) -> Facts:
    """The model as its text is read where calls are told apart: the control tokens around them are seen."""
    return replace(facts, pieces=facts.heard) if _is_read(request, facts) else facts


def _is_read(request: GenerationRequest, facts: Facts) -> bool:
    """Whether the text is read for calls; of a model with channels also where none may be made."""
    tools, constraint = _tools(request), request.output.constraint
    if tools is None or facts.template is None:
        return False
    if constraint is None or constraint.kind is not ConstraintKind.CALLS:
        return False
    return tools.choice is not ToolChoice.NONE or bool(facts.template.layout.frames)


def _tools(request: GenerationRequest) -> Tools | None:
    """Only a conversation has tools, and a request with one has nothing else."""
    prompt = request.prompts[0]
    return prompt.tools if isinstance(prompt, Conversation) else None


def _ids(clock: Clock, short: bool) -> Callable[[], str]:
    return lambda: short_id(clock.unique()) if short else ID_PREFIX + clock.unique()
