"""A chat template that comes with a request: rendered in the killable helper, never compiled in this process.

What may be told of it without running it (how it writes calls) is told from its text. `render` is the
helper's side.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

import msgspec

from antiphon.domain.context import Clock, SystemClock
from antiphon.domain.fair_queue import Bounds, FairSemaphore
from antiphon.domain.request import Conversation
from antiphon.engines.base import TextPiece
from antiphon.errors import TemplateRefused
from antiphon.processes.sandbox import JobStopped, Limits, Stop, run_job
from antiphon.rendering.field_usage import note, watch_fields
from antiphon.rendering.reasoning.notation import Notation
from antiphon.rendering.template_messages import size_of
from antiphon.rendering.templates import ChatTemplate, Families, Special
from antiphon.rendering.toolcalls.layout import Layout

RENDER = "antiphon.rendering.sandboxed_template:render"
"""The sandbox's job."""

FIELD = "chat_template"
"""What the callers call it; errors name it."""

ANY = "the chat template"
"""How errors of rendering begin, whose template it may be."""

BOUNDS = Bounds(at_once=2, queue=256, queue_per_actor=16, usual=Limits().seconds, waiting="chat templates")
"""Helpers that run at the same time: each takes a processor while it does."""

SHORTEST_ANSWER = 4 * 1024 * 1024
"""Bytes of JSON that a prompt may take besides those that the conversation grants."""

PER_CHARACTER = 8
"""Bytes of JSON for each character of a conversation; one outside ASCII takes six."""

STOPPED: Mapping[Stop, str] = {
    Stop.TIME: "takes more than {seconds:g} seconds",
    Stop.MEMORY: "takes more than {megabytes} MB of memory",
    Stop.ANSWER: "writes too long a prompt",
    Stop.CRASH: "broke the process that ran it",
}

Run = Callable[[str, Mapping[str, object], Limits], Awaitable[object]]
"""Runs a job of the sandbox."""


class Helper:
    """Renders requests' templates, a few at a time, whichever model they are for."""

    def __init__(self, run: Run = run_job, bounds: Bounds = BOUNDS) -> None:
        self._run = run
        self._places = FairSemaphore(bounds)

    async def render(
        self, template: "OwnTemplate", conversation: Conversation, clock: Clock
    ) -> tuple[TextPiece, ...]:
        """The prompt. Raises TemplateRefused, which names the template; cancelling ends the process."""
        limits = Limits(answer=SHORTEST_ANSWER + PER_CHARACTER * size_of(conversation))
        try:
            async with self._places.taken(template.actor, clock):
                said = await self._run(RENDER, payload_of(template, conversation, clock.wall()), limits)
        except TemplateRefused as refused:
            raise TemplateRefused(_of_request(refused.message), param=FIELD) from None
        except JobStopped as stopped:
            stopped.raise_if_waited()
            what = STOPPED[stopped.stop].format(seconds=limits.seconds, megabytes=limits.memory >> 20)
            raise TemplateRefused(_of_request(f"{ANY} {what}"), param=FIELD) from None
        pieces, read = await asyncio.to_thread(_parse_result, said)
        note(read)
        return pieces


@dataclass(frozen=True, slots=True)
class OwnTemplate:
    """A request's template, as it came."""

    source: str
    special: Special
    families: Families
    layout: Layout
    """As of a ChatTemplate, and so is the notation."""
    notation: Notation | None
    helper: Helper
    actor: str
    """Whose request it came with."""

    async def render(self, conversation: Conversation, clock: Clock) -> tuple[TextPiece, ...]:
        """The prompt. Raises TemplateRefused."""
        return await self.helper.render(self, conversation, clock)


# --- across the border, as JSON -----------------------------------------------------------------------------


class Payload(TypedDict):
    """What a job is told: a template, what it is told of its model, and a Conversation."""

    template: str
    names: Sequence[str]
    bos: str
    eos: str
    calls: str | None
    thoughts: str | None
    wall: float
    conversation: Mapping[str, object]


def payload_of(template: OwnTemplate, conversation: Conversation, wall: float) -> Payload:
    """The payload of `render`."""
    return Payload(
        template=template.source,
        names=template.special.names,
        bos=template.special.bos,
        eos=template.special.eos,
        calls=template.families.calls,
        thoughts=template.families.reasoning,
        wall=wall,
        conversation=msgspec.to_builtins(replace(conversation, template=None)),
    )


class Rendered(TypedDict):
    """What a template writes: texts, and whether each is a control token's name. And which parts it read, of
    how many messages."""

    pieces: list[tuple[str, bool]]
    read: Mapping[str, int]


def render(payload: Payload) -> Rendered:
    """A job for the sandbox: compiles a template and renders one conversation with it. Raises
    TemplateRefused."""
    special = Special(tuple(payload["names"]), payload["bos"], payload["eos"])
    families = Families(payload["calls"], payload["thoughts"])
    conversation = conversation_of(payload)
    template = ChatTemplate(payload["template"], special, families, conversation)
    with watch_fields() as watch:
        pieces = template.render(conversation, Moment(payload["wall"]))
    return Rendered(pieces=[(piece.text, piece.control) for piece in pieces], read=watch.read)


def conversation_of(payload: Payload) -> Conversation:
    """The conversation of a payload."""
    return msgspec.convert(payload["conversation"], Conversation)


def _of_request(message: str) -> str:
    """The sentence about a template with whose it is."""
    return f"the request's chat template{message.removeprefix(ANY)}" if message.startswith(ANY) else message


def _parse_result(said: object) -> tuple[tuple[TextPiece, ...], Mapping[str, int]]:
    if not isinstance(said, dict):
        raise TypeError("the helper gave no object")
    return tuple(TextPiece(text, control) for text, control in said["pieces"]), said["read"]


class Moment(SystemClock):
    """A clock that stands still, so that the helper writes the date of the request."""

    def __init__(self, wall: float) -> None:
        self._wall = wall

    def wall(self) -> float:
        return self._wall
