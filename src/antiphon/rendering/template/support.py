"""Finds out which roles and tools a chat template shows, and rewrites conversations for it.

If the template would refuse or drop a part, the part becomes text. So no text of the caller is lost.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from antiphon.domain.messages import Message, Role, Tool, ToolCall, Tools
from antiphon.domain.request import Conversation
from antiphon.rendering.template.messages import read_arguments
from antiphon.rendering.tools.call_notation import CallNotation
from antiphon.rendering.tools.json_call import SPACE

INSTRUCTING = frozenset((Role.SYSTEM, Role.DEVELOPER))
"""Roles that instruct the model."""

FIRST, SECOND = "probe_first", "probe_second"
_USER, _ASSISTANT = Message(Role.USER, "probe"), Message(Role.ASSISTANT, "probe")
ALONE = Conversation((Message(Role.SYSTEM, FIRST), _USER))
SEVERAL = Conversation((Message(Role.SYSTEM, FIRST), Message(Role.SYSTEM, SECOND), _USER))
LATER = Conversation((Message(Role.SYSTEM, FIRST), _USER, _ASSISTANT, Message(Role.SYSTEM, SECOND), _USER))
FIRST_OF_ALL = Conversation((Message(Role.DEVELOPER, FIRST), _USER))
BESIDE = (
    Conversation((Message(Role.SYSTEM, FIRST), Message(Role.DEVELOPER, SECOND), _USER)),
    Conversation((Message(Role.SYSTEM, FIRST), _USER, _ASSISTANT, Message(Role.DEVELOPER, SECOND), _USER)),
)
"""Probes of developer messages beside system messages."""

Shows = Callable[[Conversation, str], bool]
"""Whether the prompt of a conversation contains a text."""


@dataclass(frozen=True, slots=True)
class RoleSupport:
    """How a template treats system messages."""

    developer: bool = True
    """Whether the template shows a developer message at the beginning. Otherwise it becomes a system
    message."""
    beside: bool = True
    """Whether the template shows a developer message after a system message."""
    system: bool = True
    """Whether the template shows a system message at all."""
    several: bool = True
    """Whether the template shows several system messages at the beginning."""
    later: bool = True
    """Whether the template shows a system message after other messages."""

    def adapt(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """Rewrites the messages for the template. System messages that the template would not show are
        appended to the first system message, in order, with an empty line between them."""
        if not any(message.role in INSTRUCTING for message in messages):
            return messages
        developer_count = 0 if not self.developer else len(messages) if self.beside else 1
        messages = (*messages[:developer_count], *map(_make_system, messages[developer_count:]))
        if not self.system or (self.several and self.later):
            return messages
        begin = next((at for at, each in enumerate(messages) if each.role not in INSTRUCTING), len(messages))
        leading, others = messages[:begin], messages[begin:]
        if not self.later:
            leading += tuple(message for message in others if message.role in INSTRUCTING)
            others = tuple(message for message in others if message.role not in INSTRUCTING)
        return (*(leading if self.several else _merge_leading(leading)), *others)

    def drops_system(self, messages: tuple[Message, ...]) -> bool:
        """Whether the template would silently drop a system message among these."""
        return not self.system and any(message.role in INSTRUCTING for message in messages)


def probe_roles(source: str, shows: Shows) -> RoleSupport:
    """Finds out which roles the template shows, by rendering test conversations."""
    return RoleSupport(
        developer="developer" in source and shows(FIRST_OF_ALL, FIRST),
        beside="developer" in source and all(shows(probe, SECOND) for probe in BESIDE),
        system=shows(ALONE, FIRST),
        several=shows(SEVERAL, FIRST) and shows(SEVERAL, SECOND),
        later=shows(LATER, FIRST) and shows(LATER, SECOND),
    )


def _make_system(message: Message) -> Message:
    """Returns a developer message as a system message, and any other message unchanged."""
    return replace(message, role=Role.SYSTEM) if message.role is Role.DEVELOPER else message


def _merge_leading(leading: tuple[Message, ...]) -> tuple[Message, ...]:
    """Merges messages into one message with the role of the first."""
    if len(leading) < 2:
        return leading
    return (Message(leading[0].role, "\n\n".join(message.text for message in leading)),)


PROBE = ToolCall("a0b1c2d3e", "probe_function", '{"probe_key": "probe_value"}')
RESULT = "probe_result"
_ASKED = Message(Role.USER, "probe")
PROBE_TOOLS = Conversation(
    (_ASKED,), tools=Tools((Tool(PROBE.name, "probe", {"type": "object", "properties": {}}),))
)
PROBE_CALL = Conversation(
    (
        _ASKED,
        Message(Role.ASSISTANT, "", tool_calls=(PROBE,)),
        Message(Role.TOOL, RESULT, PROBE.name, tool_call_id=PROBE.id),
    ),
    tools=PROBE_TOOLS.tools,
)
CUT = "probe_cut"
PROBE_CUT_CALL = Conversation(
    (_ASKED, Message(Role.ASSISTANT, "", tool_calls=(replace(PROBE, arguments=f'{{"probe_key": "{CUT}'),))),
    tools=PROBE_TOOLS.tools,
)
PROBE_REASONING = Conversation((_ASKED, Message(Role.ASSISTANT, "probe", reasoning=RESULT), _ASKED))
PROBE_TEXT = Conversation((Message(Role.USER, RESULT),))
PROBE_SYSTEM = Conversation((Message(Role.SYSTEM, RESULT), _ASKED))


EXPLAINED = (
    "You can call functions. Their signatures are:\n<tools>\n{tools}\n</tools>\n"
    "To call one, answer with its name and its arguments as JSON, in this form:\n{call}\n"
    "The result then comes between <tool_response> and </tool_response>."
)


@dataclass(frozen=True, slots=True)
class TemplateSupport:
    """Which parts of tools a template shows."""

    tools: bool = False
    calls: bool = False
    results: bool = False
    """Messages of the role tool."""
    objects: bool = True
    """Whether the template reads a call's arguments as an object instead of text."""
    texts: bool = True
    """Whether the template shows arguments that are no object."""
    system: bool = True
    """Whether the template accepts a system message."""


def write_out_tools(
    conversation: Conversation, support: TemplateSupport, layout: CallNotation
) -> Conversation:
    """Rewrites the parts of tools that the template does not show as text, in the model's notation."""
    tools = conversation.tools
    messages = conversation.messages
    if not (support.calls and support.results and support.texts):
        messages = tuple(_join_results(_write_as_text(message, support, layout) for message in messages))
    if tools is None or support.tools:
        return replace(conversation, messages=messages)
    return replace(
        conversation,
        messages=_insert_text(messages, _explain_tools(tools.tools, layout), support),
        tools=None,
    )


def _write_as_text(message: Message, support: TemplateSupport, layout: CallNotation) -> Message:
    """Returns the message with its calls or its result as text, if the template does not show them."""
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
    """Whether the template shows the call, so that it needs no rewriting."""
    return support.calls and (support.texts or read_arguments(call.arguments) is not None)


def _join_results(messages: Iterator[Message]) -> Iterator[Message]:
    """Joins the results of several calls into one message, because many templates require that roles
    alternate."""
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
    """Returns the text that explains the tools and the notation of a call to the model."""
    lines = (json.dumps(_build_signature(tool), ensure_ascii=False) for tool in tools)
    return EXPLAINED.format(tools="\n".join(lines), call=layout.write_call("FUNCTION", '{"NAME": VALUE}'))


def _insert_text(messages: tuple[Message, ...], text: str, support: TemplateSupport) -> tuple[Message, ...]:
    """Puts the text into the system message, or into the first message if the template accepts no system
    message."""
    first_message = messages[0]
    if support.system and first_message.role not in (Role.SYSTEM, Role.DEVELOPER):
        return (Message(Role.SYSTEM, text), *messages)
    before, after = (first_message.text, text) if support.system else (text, first_message.text)
    return (
        replace(first_message, text=f"{before}\n\n{after}" if first_message.text else text),
        *messages[1:],
    )


def _build_signature(tool: Tool) -> dict[str, object]:
    """Returns a tool's name, description and parameters."""
    signature = {"name": tool.name}
    described = {} if tool.description is None else {"description": tool.description}
    return {
        **signature,
        **described,
        "parameters": dict(tool.parameters or {"type": "object", "properties": {}}),
    }
