"""What tools make of a request: the constraint that its choices follow, and who listens for calls."""

from collections.abc import AsyncGenerator, Callable
from dataclasses import replace

from antiphon.domain.context import Clock
from antiphon.domain.events import Event
from antiphon.domain.request import Conversation, GenerationRequest
from antiphon.domain.tools import ToolChoice, Tools
from antiphon.errors import UnsupportedParameter
from antiphon.rendering.facts import Facts
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
    if tools is None or tools.choice is ToolChoice.NONE or facts.template is None:
        return events
    return Hearing(choice, facts.template.layout.reader(), _ids(clock)).told(events)


def _tools(request: GenerationRequest) -> Tools | None:
    """Only a conversation has tools, and a request with one has nothing else."""
    prompt = request.prompts[0]
    return prompt.tools if isinstance(prompt, Conversation) else None


def _ids(clock: Clock) -> Callable[[], str]:
    return lambda: ID_PREFIX + clock.unique()
