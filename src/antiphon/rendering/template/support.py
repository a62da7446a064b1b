"""Finds out which roles and tools a chat template shows, and rewrites conversations for it.

If the template would refuse or drop a part, the part becomes text. So no text of the caller is lost.
"""

import json
from collections.abc import Callable, Iterator

from antiphon.domain.messages import Content, Message, Role, TextContent, Tool, ToolCall, Tools
from antiphon.domain.request import Conversation
from antiphon.domain.values import Struct, replace
from antiphon.rendering.call_notation import CallNotation
from antiphon.rendering.call_readers import SPACE
from antiphon.rendering.template.messages import read_arguments

INSTRUCTING_ROLES = frozenset((Role.SYSTEM, Role.DEVELOPER))
"""Roles that instruct the model."""

FIRST_TEXT, SECOND_TEXT = "probe_first", "probe_second"

_USER, _ASSISTANT = Message(Role.USER, "probe"), Message(Role.ASSISTANT, "probe")

PROBE_ONE_SYSTEM = Conversation((Message(Role.SYSTEM, FIRST_TEXT), _USER))

PROBE_TWO_SYSTEMS = Conversation((Message(Role.SYSTEM, FIRST_TEXT), Message(Role.SYSTEM, SECOND_TEXT), _USER))

PROBE_LATER_SYSTEM = Conversation(
    (Message(Role.SYSTEM, FIRST_TEXT), _USER, _ASSISTANT, Message(Role.SYSTEM, SECOND_TEXT), _USER)
)

PROBE_DEVELOPER = Conversation((Message(Role.DEVELOPER, FIRST_TEXT), _USER))

PROBES_BOTH_ROLES = (
    Conversation((Message(Role.SYSTEM, FIRST_TEXT), Message(Role.DEVELOPER, SECOND_TEXT), _USER)),
    Conversation(
        (Message(Role.SYSTEM, FIRST_TEXT), _USER, _ASSISTANT, Message(Role.DEVELOPER, SECOND_TEXT), _USER)
    ),
)
"""Probes with system messages and developer messages."""

Shows = Callable[[Conversation, str], bool]
"""Whether the prompt of a conversation contains a text."""

PROBE_KEY, PROBE_VALUE = "probe_key", "probe_value"

PROBE = ToolCall("a0b1c2d3e", "probe_function", json.dumps({PROBE_KEY: PROBE_VALUE}))

RESULT = "probe_result"

PROBE_TOOLS = Conversation(
    (_USER,), tools=Tools((Tool(PROBE.name, "probe", {"type": "object", "properties": {}}),))
)

PROBE_CALL = Conversation(
    (
        _USER,
        Message(Role.ASSISTANT, "", tool_calls=(PROBE,)),
        Message(Role.TOOL, RESULT, PROBE.name, tool_call_id=PROBE.id),
    ),
    tools=PROBE_TOOLS.tools,
)

CUT = "probe_cut"

PROBE_CUT_CALL = Conversation(
    (_USER, Message(Role.ASSISTANT, "", tool_calls=(replace(PROBE, arguments=f'{{"probe_key": "{CUT}'),))),
    tools=PROBE_TOOLS.tools,
)

PROBE_REASONING = Conversation((_USER, Message(Role.ASSISTANT, "probe", reasoning=RESULT), _USER))

PROBE_TEXT = Conversation((Message(Role.USER, RESULT),))

PROBE_SYSTEM = Conversation((Message(Role.SYSTEM, RESULT), _USER))

TOOLS_EXPLANATION = (
    "You can call functions. Their signatures are:\n<tools>\n{tools}\n</tools>\n"
    "To call one, answer with its name and its arguments{form}, in this form:\n{call}\n"
    "The result then comes between <tool_response> and </tool_response>."
)


class RoleSupport(Struct, frozen=True):
    """How a template treats system messages."""

    shows_developer: bool = True
    """Whether the template shows a developer message at the beginning. If not, such a message becomes a
    system message."""
    shows_both_roles: bool = True
    """Whether the template shows a developer message after a system message."""
    shows_system: bool = True
    """Whether the template shows a system message at all."""
    shows_several: bool = True
    """Whether the template shows several system messages at the beginning."""
    shows_later: bool = True
    """Whether the template shows a system message after other messages."""

    def adapt(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """Rewrites the messages for the template, where it needs that: makes developer messages system
        messages, joins several at the beginning into one, with an empty line between them, and makes later
        ones a part of the user's turn there. They stay where they are, so that the prompt of the next request
        begins with this one. If the template shows no system message at all, only the roles change."""
        if not any(message.role in INSTRUCTING_ROLES for message in messages):
            return messages
        unchanged_count = 0  # the messages before this index keep their role
        if self.shows_developer:
            unchanged_count = len(messages) if self.shows_both_roles else 1
        messages = (*messages[:unchanged_count], *map(_make_system, messages[unchanged_count:]))
        if not self.shows_system or (self.shows_several and self.shows_later):
            return messages
        leading_count = next(
            (index for index, each in enumerate(messages) if each.role not in INSTRUCTING_ROLES),
            len(messages),
        )
        leading_messages, other_messages = messages[:leading_count], messages[leading_count:]
        return (
            *(leading_messages if self.shows_several else _merge_leading(leading_messages)),
            *(other_messages if self.shows_later else _fold_later(other_messages)),
        )

    def drops_system(self, messages: tuple[Message, ...]) -> bool:
        """Whether the template would silently drop a system message among these."""
        return not self.shows_system and any(message.role in INSTRUCTING_ROLES for message in messages)


def probe_roles(source: str, shows: Shows) -> RoleSupport:
    """Finds out which roles the template shows, by rendering test conversations."""
    return RoleSupport(
        shows_developer="developer" in source and shows(PROBE_DEVELOPER, FIRST_TEXT),
        shows_both_roles="developer" in source
        and all(shows(probe, SECOND_TEXT) for probe in PROBES_BOTH_ROLES),
        shows_system=shows(PROBE_ONE_SYSTEM, FIRST_TEXT),
        shows_several=shows(PROBE_TWO_SYSTEMS, FIRST_TEXT) and shows(PROBE_TWO_SYSTEMS, SECOND_TEXT),
        shows_later=shows(PROBE_LATER_SYSTEM, FIRST_TEXT) and shows(PROBE_LATER_SYSTEM, SECOND_TEXT),
    )


def _make_system(message: Message) -> Message:
    """Returns a developer message as a system message, and any other message unchanged."""
    return replace(message, role=Role.SYSTEM) if message.role is Role.DEVELOPER else message


def _merge_leading(leading: tuple[Message, ...]) -> tuple[Message, ...]:
    """Merges the leading messages into one message, with the role of the first of them."""
    if len(leading) < 2:
        return leading
    return (Message(leading[0].role, "\n\n".join(message.text for message in leading)),)


def _fold_later(messages: tuple[Message, ...]) -> list[Message]:
    """Makes system messages user messages, and joins each with the user messages beside it, because most of
    these templates also refuse two user messages in a row."""
    folded: list[Message] = []
    is_after_system = False
    for message in messages:
        is_system = message.role in INSTRUCTING_ROLES
        user = replace(message, role=Role.USER) if is_system else message
        is_beside = bool(folded) and folded[-1].role is user.role is Role.USER
        if is_beside and (is_system or is_after_system):
            folded[-1] = _join_users(folded[-1], user)
        else:
            folded.append(user)
        is_after_system = is_system
    return folded


def _join_users(first: Message, second: Message) -> Message:
    """Joins two user messages, with an empty line between them."""
    content: tuple[Content, ...] = ()
    if first.content or second.content:
        content = (
            *(first.content or (TextContent(first.text),)),
            TextContent("\n\n"),
            *(second.content or (TextContent(second.text),)),
        )
    name = first.name or second.name
    return replace(first, text=f"{first.text}\n\n{second.text}", name=name, content=content)


class TemplateSupport(Struct, frozen=True):
    """Which of tools, calls and results a template shows."""

    shows_tools: bool = False
    shows_calls: bool = False
    shows_results: bool = False
    """Whether the template shows messages of the role tool."""
    reads_objects: bool = True
    """Whether the template reads a call's arguments as an object instead of text."""
    shows_invalid_arguments: bool = True
    """Whether the template shows arguments that are no JSON object."""
    accepts_system: bool = True
    """Whether the template accepts a system message."""


def write_out_tools(
    conversation: Conversation, support: TemplateSupport, call_notation: CallNotation
) -> Conversation:
    """Rewrites tools, calls and results as text in the model's notation, if the template does not show
    them."""
    tools = conversation.tools
    messages = conversation.messages
    if not (support.shows_calls and support.shows_results and support.shows_invalid_arguments):
        messages = tuple(
            _join_results(_write_as_text(message, support, call_notation) for message in messages)
        )
    if tools is None or support.shows_tools or not tools.shown:
        return replace(conversation, messages=messages)
    return replace(
        conversation,
        messages=_insert_text(messages, _explain_tools(tools.shown, call_notation), support),
        tools=None,
    )


def number_calls(conversation: Conversation) -> Conversation:
    """Gives each call the id `functions.NAME:NUMBER`, in which the template reads the function's name."""
    ids: dict[str, str] = {}
    messages: list[Message] = []
    for message in conversation.messages:
        calls: list[ToolCall] = []
        for call in message.tool_calls:
            ids[call.id] = f"functions.{call.name}:{len(ids)}"
            calls.append(replace(call, id=ids[call.id]))
        result_id = message.tool_call_id
        messages.append(
            replace(
                message,
                tool_calls=tuple(calls),
                tool_call_id=None if result_id is None else ids.get(result_id, result_id),
            )
        )
    return replace(conversation, messages=tuple(messages))


def _write_as_text(message: Message, support: TemplateSupport, call_notation: CallNotation) -> Message:
    """Returns the message with its calls as text or its result as text, if the template does not show calls
    or results."""
    if not all(_is_shown(call, support) for call in message.tool_calls):
        calls = (
            call_notation.write_call(call.name, call.arguments.strip(SPACE) or "{}")
            for call in message.tool_calls
        )
        text = "\n".join((*([message.text] if message.text else []), *calls))
        return Message(message.role, text, message.name)
    if message.role is Role.TOOL and not support.shows_results:
        return Message(Role.USER, f"<tool_response>\n{message.text}\n</tool_response>")
    return message


def _is_shown(call: ToolCall, support: TemplateSupport) -> bool:
    """Whether the template shows the call, so that it needs no rewriting."""
    return support.shows_calls and (
        support.shows_invalid_arguments or read_arguments(call.arguments) is not None
    )


def _join_results(messages: Iterator[Message]) -> Iterator[Message]:
    """Joins the results of several calls into one message, because many templates require that roles
    alternate."""
    previous: Message | None = None
    for message in messages:
        are_user_messages = previous is not None and previous.role is message.role is Role.USER
        if previous is not None and are_user_messages and previous.text.endswith("</tool_response>"):
            previous = replace(previous, text=f"{previous.text}\n{message.text}")
            continue
        if previous is not None:
            yield previous
        previous = message
    if previous is not None:
        yield previous


def _explain_tools(tools: tuple[Tool, ...], call_notation: CallNotation) -> str:
    """Returns the text that explains the tools and the notation of a call to the model."""
    lines = (json.dumps(_build_signature(tool), ensure_ascii=False) for tool in tools)
    form, arguments = (
        (" as JSON", '{"NAME": VALUE}') if call_notation.tags is None else ("", '{"NAME": "VALUE"}')
    )
    return TOOLS_EXPLANATION.format(
        tools="\n".join(lines), form=form, call=call_notation.write_call("FUNCTION", arguments)
    )


def _insert_text(messages: tuple[Message, ...], text: str, support: TemplateSupport) -> tuple[Message, ...]:
    """Puts the text into the system message, or into the first message if the template accepts no system
    message."""
    first_message = messages[0]
    if support.accepts_system and first_message.role not in (Role.SYSTEM, Role.DEVELOPER):
        return (Message(Role.SYSTEM, text), *messages)
    first_text, second_text = (
        (first_message.text, text) if support.accepts_system else (text, first_message.text)
    )
    return (
        replace(first_message, text=f"{first_text}\n\n{second_text}" if first_message.text else text),
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
