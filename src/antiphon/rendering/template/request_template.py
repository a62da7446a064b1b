"""A chat template that comes with a request. The sandbox renders it; it is never compiled in this process.

Its notations are detected from its text, without running it. `render` is the sandbox's side.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

import msgspec

from antiphon.domain.context import Clock, SystemClock
from antiphon.domain.fair_queue import FairSemaphore, QueueLimits
from antiphon.domain.request import Conversation
from antiphon.engines.base import TextPiece
from antiphon.errors import TemplateRefused
from antiphon.processes.sandbox import JobStopped, Limits, Stop, run_job
from antiphon.rendering.reasoning.notation import ReasoningNotation
from antiphon.rendering.template.chat_template import ChatTemplate, NotationFamilies, SpecialTokens
from antiphon.rendering.template.field_usage import add_usage, watch_fields
from antiphon.rendering.template.messages import estimate_size
from antiphon.rendering.tools.call_notation import CallNotation

RENDER = "antiphon.rendering.template.request_template:render"
"""The sandbox's job."""

TEMPLATE_FIELD = "chat_template"
"""The caller's name of the field, for errors."""

ANY = "the chat template"
"""The first words of rendering errors. They are the same for a model's template and a request's template."""

HELPER_BOUNDS = QueueLimits(
    at_once=2, queue=256, queue_per_actor=16, seconds_per_item=Limits().seconds, item_name="chat templates"
)
"""Limits of the queue for templates. Each rendering occupies a processor."""

SHORTEST_ANSWER = 4 * 1024 * 1024
"""The most bytes of JSON for a prompt, plus the bytes for its conversation."""

PER_CHARACTER = 8
"""Bytes of JSON for each character of a conversation. A character outside ASCII takes six."""

STOPPED: Mapping[Stop, str] = {
    Stop.TIME: "takes more than {seconds:g} seconds",
    Stop.MEMORY: "takes more than {megabytes} MB of memory",
    Stop.OUTPUT: "writes too long a prompt",
    Stop.CRASH: "broke the process that ran it",
}

Run = Callable[[str, Mapping[str, object], Limits], Awaitable[object]]
"""Runs a job of the sandbox."""


class TemplateHelper:
    """Renders requests' templates in the sandbox, a few at a time, for all models."""

    def __init__(self, run: Run = run_job, bounds: QueueLimits = HELPER_BOUNDS) -> None:
        self._run = run
        self._places = FairSemaphore(bounds)

    async def render(
        self, template: "RequestTemplate", conversation: Conversation, clock: Clock
    ) -> tuple[TextPiece, ...]:
        """Renders the prompt in the sandbox. Raises TemplateRefused, whose message names the request's
        template. A cancelled call ends the sandbox's process."""
        limits = Limits(output=SHORTEST_ANSWER + PER_CHARACTER * estimate_size(conversation))
        try:
            async with self._places.hold(template.actor, clock):
                result = await self._run(RENDER, build_payload(template, conversation, clock.wall()), limits)
        except TemplateRefused as refused:
            raise TemplateRefused(_name_owner(refused.message), param=TEMPLATE_FIELD) from None
        except JobStopped as stopped:
            stopped.raise_if_waited()
            what = STOPPED[stopped.stop].format(seconds=limits.seconds, megabytes=limits.memory >> 20)
            raise TemplateRefused(_name_owner(f"{ANY} {what}"), param=TEMPLATE_FIELD) from None
        pieces, read = await asyncio.to_thread(_parse_result, result)
        add_usage(read)
        return pieces


@dataclass(frozen=True, slots=True)
class RequestTemplate:
    """A template from a request, and what is needed to render it."""

    source: str
    special: SpecialTokens
    families: NotationFamilies
    call_notation: CallNotation
    """How the model writes calls, as in ChatTemplate."""
    reasoning_notation: ReasoningNotation | None
    helper: TemplateHelper
    actor: str
    """The actor of the request."""

    async def render(self, conversation: Conversation, clock: Clock) -> tuple[TextPiece, ...]:
        """Renders the prompt. Raises TemplateRefused."""
        return await self.helper.render(self, conversation, clock)


# --- across the border, as JSON -----------------------------------------------------------------------------


class RenderPayload(TypedDict):
    """The job's payload: a template, properties of its model, and a conversation."""

    template: str
    names: Sequence[str]
    bos: str
    eos: str
    calls: str | None
    thoughts: str | None
    wall: float
    conversation: Mapping[str, object]


def build_payload(template: RequestTemplate, conversation: Conversation, wall: float) -> RenderPayload:
    """Builds the payload of `render`."""
    return RenderPayload(
        template=template.source,
        names=template.special.names,
        bos=template.special.bos,
        eos=template.special.eos,
        calls=template.families.calls,
        thoughts=template.families.reasoning,
        wall=wall,
        conversation=msgspec.to_builtins(replace(conversation, template=None)),
    )


class RenderedTemplate(TypedDict):
    """The job's result: the pieces of the prompt, each with a flag whether it is a control token; and for
    each part of a message, the number of messages in which the template read it."""

    pieces: list[tuple[str, bool]]
    read: Mapping[str, int]


def render(payload: RenderPayload) -> RenderedTemplate:
    """Returns the sandbox's job: compiles a template and renders one conversation with it. Raises
    TemplateRefused."""
    special = SpecialTokens(tuple(payload["names"]), payload["bos"], payload["eos"])
    families = NotationFamilies(payload["calls"], payload["thoughts"])
    conversation = decode_conversation(payload)
    template = ChatTemplate(payload["template"], special, families, conversation)
    with watch_fields() as watch:
        pieces = template.render(conversation, FixedClock(payload["wall"]))
    return RenderedTemplate(pieces=[(piece.text, piece.control) for piece in pieces], read=watch.read)


def decode_conversation(payload: RenderPayload) -> Conversation:
    """Returns the conversation of the payload."""
    return msgspec.convert(payload["conversation"], Conversation)


def _name_owner(message: str) -> str:
    """Changes an error message about a template so that it names the request's template."""
    return f"the request's chat template{message.removeprefix(ANY)}" if message.startswith(ANY) else message


def _parse_result(result: object) -> tuple[tuple[TextPiece, ...], Mapping[str, int]]:
    """Returns the pieces of the prompt, and the reads of the template."""
    if not isinstance(result, dict):
        raise TypeError("the helper gave no object")
    return tuple(TextPiece(text, control) for text, control in result["pieces"]), result["read"]


class FixedClock(SystemClock):
    """A clock that always shows the time of the request, so that the sandbox's process writes the same
    date."""

    def __init__(self, wall: float) -> None:
        self._wall = wall

    def wall(self) -> float:
        return self._wall
