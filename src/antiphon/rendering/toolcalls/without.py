"""Tools for a template that knows none: which parts of them a template shows, and the conversation with the
others written out as text, in Hermes' notation."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace

from antiphon.domain.messages import Message, Role
from antiphon.domain.request import Conversation
from antiphon.domain.tools import Tool

EXPLAINED = (
    "You can call functions. Their signatures are:\n<tools>\n{tools}\n</tools>\n"
    "To call one, answer with its name and its arguments as JSON, in this form:\n"
    '<tool_call>\n{{"name": "FUNCTION", "arguments": {{"NAME": VALUE}}}}\n</tool_call>\n'
    "The result then comes between <tool_response> and </tool_response>."
)


@dataclass(frozen=True, slots=True)
class Support:
    """What a template shows by itself."""

    tools: bool = False
    calls: bool = False
    results: bool = False
    """Messages of the role tool."""
    objects: bool = True
    """Whether it wants a call's arguments as an object, not as text."""
    system: bool = True
    """Whether it takes a system message."""


def written_out(conversation: Conversation, support: Support) -> Conversation:
    """The same conversation with what the template does not show as text."""
    tools = conversation.tools
    messages = conversation.messages
    if not (support.calls and support.results):
        messages = tuple(_joined(_as_text(message, support) for message in messages))
    if tools is None or support.tools:
        return replace(conversation, messages=messages)
    return replace(conversation, messages=_explained(messages, tools.tools, support), tools=None)


def _as_text(message: Message, support: Support) -> Message:
    if message.tool_calls and not support.calls:
        calls = (
            f'<tool_call>\n{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}\n</tool_call>'
            for call in message.tool_calls
        )
        text = "\n".join((*([message.text] if message.text else []), *calls))
        return Message(message.role, text, message.name)
    if message.role is Role.TOOL and not support.results:
        return Message(Role.USER, f"<tool_response>\n{message.text}\n</tool_response>")
    return message


def _joined(messages: Iterator[Message]) -> Iterator[Message]:
    """Results of several calls are one turn, as templates want turns to alternate."""
    last: Message | None = None
    for message in messages:
        both = last is not None and last.role is message.role is Role.USER
        if last is not None and both and last.text.endswith("</tool_response>"):
            last = replace(last, text=f"{last.text}\n{message.text}")
            continue
        if last is not None:
            yield last
        last = message
    if last is not None:
        yield last


def _explained(
    messages: tuple[Message, ...], tools: tuple[Tool, ...], support: Support
) -> tuple[Message, ...]:
    lines = (json.dumps(_signature(tool), ensure_ascii=False) for tool in tools)
    text = EXPLAINED.format(tools="\n".join(lines))
    first = messages[0]
    if support.system and first.role not in (Role.SYSTEM, Role.DEVELOPER):
        return (Message(Role.SYSTEM, text), *messages)
    before, after = (first.text, text) if support.system else (text, first.text)
    return (replace(first, text=f"{before}\n\n{after}" if first.text else text), *messages[1:])


def _signature(tool: Tool) -> dict[str, object]:
    named = {"name": tool.name}
    described = {} if tool.description is None else {"description": tool.description}
    return {**named, **described, "parameters": dict(tool.parameters or {"type": "object", "properties": {}})}
