"""A chat template that comes with a request: rendered in the killable helper, never compiled in this process.

What may be told of it without running it (how it writes calls) is told from its text. `render` is the
helper's side.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

from antiphon.domain.context import Clock, SystemClock
from antiphon.domain.fair_queue import Bounds, FairSemaphore
from antiphon.domain.messages import Message, Role
from antiphon.domain.request import Conversation, Reasoning, ReasoningTerms
from antiphon.domain.tools import Tool, ToolCall, Tools
from antiphon.engines.base import TextPiece
from antiphon.errors import TemplateRefused
from antiphon.rendering.reasoning.notation import Notation
from antiphon.rendering.spoken import size_of
from antiphon.rendering.templates import ChatTemplate, Families, Special
from antiphon.rendering.toolcalls.layout import Layout
from antiphon.rendering.watching import note, watching
from antiphon.sandbox import JobStopped, Limits, Stop, run_job

RENDER = "antiphon.rendering.apart:render"
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

    async def rendered(
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
            stopped.require_worked()
            what = STOPPED[stopped.stop].format(seconds=limits.seconds, megabytes=limits.memory >> 20)
            raise TemplateRefused(_of_request(f"{ANY} {what}"), param=FIELD) from None
        pieces, read = await asyncio.to_thread(_rendered, said)
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
        return await self.helper.rendered(self, conversation, clock)


# --- across the border, as JSON -----------------------------------------------------------------------------


class SaidCall(TypedDict):
    """A ToolCall."""

    id: str
    name: str
    arguments: str


class SaidMessage(TypedDict):
    """A Message."""

    role: str
    text: str
    name: str | None
    tool_calls: list[SaidCall]
    tool_call_id: str | None
    reasoning: str | None


class SaidTool(TypedDict):
    """A Tool, as far as a template sees it."""

    name: str
    description: str | None
    parameters: Mapping[str, object] | None


class SaidTerms(TypedDict):
    """A ReasoningTerms."""

    effort: str
    budget: str
    off: str
    on: str
    least: int


class SaidReasoning(TypedDict):
    """A Reasoning."""

    effort: str | None
    budget: int | None
    shown: bool
    wanted: bool
    terms: SaidTerms


class Payload(TypedDict):
    """What a job is told: a template, what it is told of its model, and a Conversation."""

    template: str
    names: Sequence[str]
    bos: str
    eos: str
    calls: str | None
    thoughts: str | None
    wall: float
    messages: list[SaidMessage]
    tools: list[SaidTool] | None
    generation_prompt: bool
    continues: bool
    values: Mapping[str, object]
    documents: Sequence[Mapping[str, object]] | None
    reasoning: SaidReasoning


def payload_of(template: OwnTemplate, conversation: Conversation, wall: float) -> Payload:
    """The payload of `render`."""
    tools, asked = conversation.tools, conversation.reasoning
    return Payload(
        template=template.source,
        names=template.special.names,
        bos=template.special.bos,
        eos=template.special.eos,
        calls=template.families.calls,
        thoughts=template.families.reasoning,
        wall=wall,
        messages=list(map(_said, conversation.messages)),
        tools=None if tools is None else list(map(_shown, tools.tools)),
        generation_prompt=conversation.generation_prompt,
        continues=conversation.continues,
        values=conversation.template_values,
        documents=conversation.documents,
        reasoning=SaidReasoning(
            effort=asked.effort,
            budget=asked.budget,
            shown=asked.shown,
            wanted=asked.wanted,
            terms=_called(asked.terms),
        ),
    )


def _said(message: Message) -> SaidMessage:
    return SaidMessage(
        role=message.role,
        text=message.text,
        name=message.name,
        tool_calls=[
            SaidCall(id=call.id, name=call.name, arguments=call.arguments) for call in message.tool_calls
        ],
        tool_call_id=message.tool_call_id,
        reasoning=message.reasoning,
    )


def _called(terms: ReasoningTerms) -> SaidTerms:
    return SaidTerms(effort=terms.effort, budget=terms.budget, off=terms.off, on=terms.on, least=terms.least)


def _shown(tool: Tool) -> SaidTool:
    return SaidTool(name=tool.name, description=tool.description, parameters=tool.parameters)


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
    with watching() as watch:
        pieces = template.render(conversation, Moment(payload["wall"]))
    return Rendered(pieces=[(piece.text, piece.control) for piece in pieces], read=watch.read)


def conversation_of(payload: Payload) -> Conversation:
    """The conversation of a payload, tools' schemas apart that no template sees."""
    tools, documents = payload["tools"], payload["documents"]
    return Conversation(
        messages=tuple(map(_message, payload["messages"])),
        generation_prompt=payload["generation_prompt"],
        continues=payload["continues"],
        tools=None if tools is None else Tools(tuple(Tool(**tool) for tool in tools)),
        template_values=payload["values"],
        documents=None if documents is None else tuple(documents),
        reasoning=_reasoning(payload["reasoning"]),
    )


def _reasoning(said: SaidReasoning) -> Reasoning:
    terms = ReasoningTerms(**said["terms"])
    return Reasoning(said["effort"], said["budget"], said["shown"], said["wanted"], terms)


def _message(said: SaidMessage) -> Message:
    return Message(
        Role(said["role"]),
        said["text"],
        said["name"],
        tuple(ToolCall(**call) for call in said["tool_calls"]),
        said["tool_call_id"],
        said["reasoning"],
    )


def _of_request(message: str) -> str:
    """The sentence about a template with whose it is."""
    return f"the request's chat template{message.removeprefix(ANY)}" if message.startswith(ANY) else message


def _rendered(said: object) -> tuple[tuple[TextPiece, ...], Mapping[str, int]]:
    if not isinstance(said, dict):
        raise TypeError("the helper gave no object")
    return tuple(TextPiece(text, control) for text, control in said["pieces"]), said["read"]


class Moment(SystemClock):
    """A clock that stands still, so that the helper writes the date of the request."""

    def __init__(self, wall: float) -> None:
        self._wall = wall

    def wall(self) -> float:
        return self._wall
