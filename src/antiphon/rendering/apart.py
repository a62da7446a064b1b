"""A chat template that comes with a request: rendered in the killable helper, never compiled in this process.

What may be told of it without running it (how it writes calls) is told from its text. `render` is the
helper's side.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from antiphon.domain.context import Clock, SystemClock
from antiphon.domain.messages import Message, Role
from antiphon.domain.request import Conversation, Reasoning
from antiphon.domain.tools import Tool, ToolCall, Tools
from antiphon.engines.base import TextPiece
from antiphon.errors import Overloaded, TemplateRefused
from antiphon.rendering.reasoning.notation import Notation
from antiphon.rendering.spoken import size_of
from antiphon.rendering.templates import ChatTemplate, Families, Special
from antiphon.rendering.toolcalls.layout import Layout
from antiphon.sandbox import JobStopped, Limits, Stop, run_job

RENDER = "antiphon.rendering.apart:render"
"""The sandbox's job."""

FIELD = "chat_template"
"""What the callers call it; errors name it."""

AT_ONCE = 2
"""Helpers that run at the same time: each takes a processor while it does."""

MOST_WAITING = 16
"""Requests that wait for one: with two seconds each some sixteen seconds of waiting at worst."""

RETRY_AFTER = 4.0
"""Seconds in which two of those that wait are through at the latest."""

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
    """Renders requests' templates, a few at a time."""

    def __init__(self, run: Run = run_job) -> None:
        self._run = run
        self._places = asyncio.Semaphore(AT_ONCE)
        self._here = 0

    async def rendered(
        self, template: "OwnTemplate", conversation: Conversation, clock: Clock
    ) -> tuple[TextPiece, ...]:
        """The prompt. Raises TemplateRefused, which names the template; cancelling ends the process."""
        if self._here >= AT_ONCE + MOST_WAITING:
            raise Overloaded(
                f"{MOST_WAITING} requests with a chat template of their own wait already; try again, or "
                "use the model's",
                retry_after=RETRY_AFTER,
            )
        limits = Limits(answer=SHORTEST_ANSWER + PER_CHARACTER * size_of(conversation))
        self._here += 1
        try:
            async with self._places:
                said = await self._run(RENDER, _payload(template, conversation, clock), limits)
        except TemplateRefused as refused:
            raise TemplateRefused(refused.message, param=FIELD) from None
        except JobStopped as stopped:
            what = STOPPED[stopped.stop].format(seconds=limits.seconds, megabytes=limits.memory >> 20)
            raise TemplateRefused(f"the chat template {what}", param=FIELD) from None
        finally:
            self._here -= 1
        return await asyncio.to_thread(_pieces, said)


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

    async def render(self, conversation: Conversation, clock: Clock) -> tuple[TextPiece, ...]:
        """The prompt. Raises TemplateRefused."""
        return await self.helper.rendered(self, conversation, clock)


# --- across the border, as JSON -----------------------------------------------------------------------------


def _payload(template: OwnTemplate, conversation: Conversation, clock: Clock) -> dict[str, object]:
    tools = conversation.tools.tools if conversation.tools is not None else None
    return {
        "template": template.source,
        "special": asdict(template.special),
        "families": asdict(template.families),
        "wall": clock.wall(),
        "messages": [asdict(message) for message in conversation.messages],
        "generation_prompt": conversation.generation_prompt,
        "continues": conversation.continues,
        "values": conversation.template_values,
        "documents": conversation.documents,
        "reasoning": asdict(conversation.reasoning),
        "tools": tools
        and [
            {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
            for tool in tools
        ],
    }


def render(payload: Mapping[str, Any]) -> list[tuple[str, bool]]:
    """A job for the sandbox: compiles a template and renders one conversation with it, to texts and whether
    each is a control token's name. Raises TemplateRefused."""
    names = tuple(payload["special"]["names"])
    special = Special(names, payload["special"]["bos"], payload["special"]["eos"])
    conversation = _conversation(payload)
    template = ChatTemplate(payload["template"], special, Families(**payload["families"]), conversation)
    pieces = template.render(conversation, Moment(payload["wall"]))
    return [(piece.text, piece.control) for piece in pieces]


def _conversation(payload: Mapping[str, Any]) -> Conversation:
    tools, documents = payload["tools"], payload["documents"]
    return Conversation(
        messages=tuple(map(_message, payload["messages"])),
        generation_prompt=payload["generation_prompt"],
        continues=payload["continues"],
        tools=Tools(tuple(Tool(**tool) for tool in tools)) if tools else None,
        template_values=payload["values"],
        documents=None if documents is None else tuple(documents),
        reasoning=Reasoning(**payload["reasoning"]),
    )


def _message(said: Mapping[str, Any]) -> Message:
    calls = tuple(ToolCall(**call) for call in said["tool_calls"])
    return Message(**{**said, "role": Role(said["role"]), "tool_calls": calls})


def _pieces(said: object) -> tuple[TextPiece, ...]:
    if not isinstance(said, list):
        raise TypeError("the helper gave no list")
    return tuple(TextPiece(text, control) for text, control in said)


class Moment(SystemClock):
    """A clock that stands still, so that the helper writes the date of the request."""

    def __init__(self, wall: float) -> None:
        self._wall = wall

    def wall(self) -> float:
        return self._wall
