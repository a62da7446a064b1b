"""Tools for a template that knows none: which parts of them a template shows, and the conversation with the
others written out as text, in the notation that the model is then held to."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace

from antiphon.domain.messages import Message, Role
from antiphon.domain.request import Conversation
from antiphon.domain.tools import Tool, ToolCall
from antiphon.rendering.arguments import read_arguments
from antiphon.rendering.toolcalls.layout import CallNotation
from antiphon.rendering.toolcalls.objects import SPACE

EXPLAINED = (
    "You can call functions. Their signatures are:\n<tools>\n{tools}\n</tools>\n"
    "To call one, answer with its name and its arguments as JSON, in this form:\n{call}\n"
    "The result then comes between <tool_response> and </tool_response>."
)


@dataclass(frozen=True, slots=True)
class TemplateSupport:
    """What a template shows by itself."""

    tools: bool = False
    calls: bool = False
    results: bool = False
    """Messages of the role tool."""
    objects: bool = True
    """Whether it wants a call's arguments as an object, not as text."""
    texts: bool = True
    """Whether it shows arguments that are no object."""
    system: bool = True
    """Whether it takes a system message."""


def write_out_tools(conversation: Conversation, support: TemplateSupport, layout: CallNotation) -> Conversation:
    """The same conversation with what the template does not show as text."""
    tools = conversation.tools
    messages = conversation.messages
    if not (support.calls and support.results and support.texts):
        messages = tuple(_join_results(_as_text(message, support, layout) for message in messages))
    if tools is None or support.tools:
        return replace(conversation, messages=messages)
    return replace(
        conversation,
        messages=_insert_text(messages, _explain_tools(tools.tools, layout), support),
        tools=None,
    )


def _as_text(message: Message, support: TemplateSupport, layout: CallNotation) -> Message:
    if not all(_is_shown(call, support) for call in message.tool_calls):
        calls = (
            layout.write_call(call.name, call.arguments.strip(SPACE) or "{}") for call in message.tool_calls
        )
        text = "\n".join((*([message.text] if message.text else []), *calls))
        return Message(message.role, text, message.name)
    if message.role is Role.TOOL and not support.results:
        return Message(Role.USER, f"<tool_response>\n{message.text}\n</tool_response>")
    return message


def _is_shown(call: ToolCall, support: TemplateSupport) -> bool:
    """Whether the template shows a call by itself."""
    return support.calls and (support.texts or read_arguments(call.arguments) is not None)


def _join_results(messages: Iterator[Message]) -> Iterator[Message]:
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


def _explain_tools(tools: tuple[Tool, ...], layout: CallNotation) -> str:
    lines = (json.dumps(_signature(tool), ensure_ascii=False) for tool in tools)
    return EXPLAINED.format(tools="\n".join(lines), call=layout.write_call("FUNCTION", '{"NAME": VALUE}'))


def _insert_text(messages: tuple[Message, ...], text: str, support: TemplateSupport) -> tuple[Message, ...]:
    """With the text in the system message, or where there can be none before what is said first."""
    first = messages[0]
    if support.system and first.role not in (Role.SYSTEM, Role.DEVELOPER):
        return (Message(Role.SYSTEM, text), *messages)
    before, after = (first.text, text) if support.system else (text, first.text)
    return (replace(first, text=f"{before}\n\n{after}" if first.text else text), *messages[1:])


def _signature(tool: Tool) -> dict[str, object]:
    named = {"name": tool.name}
    described = {} if tool.description is None else {"description": tool.description}
    return {**named, **described, "parameters": dict(tool.parameters or {"type": "object", "properties": {}})}
