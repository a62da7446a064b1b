"""A chat template that comes with a request. The sandbox renders it; it is never compiled in this process.

Its notations are detected from its text, without running it. `render` runs in the sandbox.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypedDict

import msgspec
from msgspec import Struct

from antiphon.domain.context import Clock, SystemClock
from antiphon.domain.fair_queue import FairSemaphore, QueueLimits
from antiphon.domain.request import Conversation
from antiphon.domain.values import replace
from antiphon.engines.base import TextPiece
from antiphon.errors import TemplateRefused
from antiphon.processes.sandbox import JobStopped, Limits, Stop, run_job
from antiphon.rendering.call_notation import CallNotation
from antiphon.rendering.reasoning import ReasoningNotation
from antiphon.rendering.template.chat_template import ChatTemplate, NotationFamilies, SpecialTokens
from antiphon.rendering.template.environment import add_usage, watch_fields
from antiphon.rendering.template.messages import estimate_size

RENDER = "antiphon.rendering.template.request_template:render"
"""The name of the sandbox's job that renders a template."""

TEMPLATE_FIELD = "chat_template"
"""The caller's name of the field, for errors."""

ERROR_PREFIX = "the chat template"
"""The first words of every error about a template."""

HELPER_LIMITS = QueueLimits(
    at_once=2, queue=256, queue_per_actor=16, seconds_per_item=Limits().seconds, item_name="chat templates"
)
"""Limits of the queue for templates. Each rendering occupies a processor."""

BASE_RESULT_BYTES = 4 * 1024 * 1024
"""The most bytes of JSON of a rendered prompt, not counting BYTES_PER_CHARACTER for each character of its
conversation."""

BYTES_PER_CHARACTER = 8
"""Bytes of JSON for each character of a conversation. A character outside ASCII takes six."""

STOP_REASONS: Mapping[Stop, str] = {
    Stop.TIME: "takes more than {seconds:g} seconds",
    Stop.MEMORY: "takes more than {megabytes} MB of memory",
    Stop.OUTPUT: "writes too long a prompt",
    Stop.CRASH: "broke the process that ran it",
}

Run = Callable[[str, Mapping[str, object], Limits], Awaitable[object]]
"""Runs a job of the sandbox."""


class TemplateHelper:
    """Renders requests' templates in the sandbox, a few at a time, for all models."""

    def __init__(self, run: Run = run_job, limits: QueueLimits = HELPER_LIMITS) -> None:
        self._run = run
        self._queue = FairSemaphore(limits)

    async def render(
        self, template: "RequestTemplate", conversation: Conversation, clock: Clock
    ) -> tuple[TextPiece, ...]:
        """Renders the prompt in the sandbox. Raises TemplateRefused, whose message names the request's
        template. A cancelled call ends the sandbox's process."""
        limits = Limits(output=BASE_RESULT_BYTES + BYTES_PER_CHARACTER * estimate_size(conversation))
        try:
            async with self._queue.hold(template.actor, clock):
                result = await self._run(RENDER, build_payload(template, conversation, clock.wall()), limits)
        except TemplateRefused as refused:
            raise TemplateRefused(_name_owner(refused.message), param=TEMPLATE_FIELD) from None
        except JobStopped as stopped:
            stopped.raise_if_machine_was_busy()
            reason = STOP_REASONS[stopped.stop].format(seconds=limits.seconds, megabytes=limits.memory >> 20)
            raise TemplateRefused(_name_owner(f"{ERROR_PREFIX} {reason}"), param=TEMPLATE_FIELD) from None
        pieces, read_counts = await asyncio.to_thread(_parse_result, result)
        add_usage(read_counts)
        return pieces


class RequestTemplate(Struct, frozen=True):
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


# --- between the processes, as JSON -------------------------------------------------------------------------


class RenderPayload(TypedDict):
    """The job's payload: a template, properties of its model, and a conversation."""

    template: str
    names: Sequence[str]
    bos: str
    eos: str
    calls: str | None
    reasoning: str | None
    wall: float
    conversation: Mapping[str, object]


def build_payload(template: RequestTemplate, conversation: Conversation, wall: float) -> RenderPayload:
    """Builds the payload of `render`. `wall`: the time that the template sees, in Unix seconds."""
    return RenderPayload(
        template=template.source,
        names=template.special.names,
        bos=template.special.bos,
        eos=template.special.eos,
        calls=template.families.calls,
        reasoning=template.families.reasoning,
        wall=wall,
        # A shared schema becomes null: the tool has its parameters, too.
        conversation=msgspec.to_builtins(replace(conversation, template=None), enc_hook=lambda _: None),
    )


class RenderedTemplate(TypedDict):
    """The job's result: the pieces of the prompt, each with a flag whether it is a control token; and for
    each part of a message, the number of messages in which the template read it."""

    pieces: list[tuple[str, bool]]
    read: Mapping[str, int]


def render(payload: RenderPayload) -> RenderedTemplate:
    """Compiles a template and renders one conversation with it, as a job of the sandbox. Raises
    TemplateRefused."""
    special = SpecialTokens(tuple(payload["names"]), payload["bos"], payload["eos"])
    families = NotationFamilies(payload["calls"], payload["reasoning"])
    conversation = decode_conversation(payload)
    template = ChatTemplate(payload["template"], special, families, conversation)
    with watch_fields() as field_usage:
        pieces = template.render(conversation, FixedClock(payload["wall"]))
    return RenderedTemplate(
        pieces=[(piece.text, piece.control) for piece in pieces], read=field_usage.read_counts
    )


def decode_conversation(payload: RenderPayload) -> Conversation:
    """Returns the conversation of the payload."""
    return msgspec.convert(payload["conversation"], Conversation)


def _name_owner(message: str) -> str:
    """Returns the error message with "the request's chat template" as its subject."""
    return (
        f"the request's chat template{message.removeprefix(ERROR_PREFIX)}"
        if message.startswith(ERROR_PREFIX)
        else message
    )


def _parse_result(result: object) -> tuple[tuple[TextPiece, ...], Mapping[str, int]]:
    """Returns the pieces of the prompt, and the reads of the template."""
    if not isinstance(result, dict):
        raise TypeError("the sandbox returned no object")
    return tuple(TextPiece(text, control) for text, control in result["pieces"]), result["read"]


class FixedClock(SystemClock):
    """A clock that always shows the time at which the HTTP process sent the job, so that a template writes
    that date."""

    def __init__(self, wall: float) -> None:
        self._wall = wall

    def wall(self) -> float:
        return self._wall
