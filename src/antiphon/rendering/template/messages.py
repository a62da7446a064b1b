"""Converts a conversation to the plain dictionaries that a template reads, and rewrites it for the template.

A `Hide` function is applied to every text of the caller, so that it cannot form a control token. Names of
functions and properties are texts of the caller too. `TemplateSupport` finds out which roles and tools a
template shows. If the template would refuse or drop a part, the part becomes text. So no text of the caller
is lost.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import blake2b
from itertools import chain

from antiphon.domain.messages import Message, Role, Tool, ToolCall, Tools
from antiphon.domain.request import Conversation
from antiphon.domain.values import Struct, replace
from antiphon.rendering.call_notation import CallNotation
from antiphon.rendering.call_readers import SPACE

Hide = Callable[[str], str]
"""Replaces characters of a caller's text so that it cannot form a control token (`shield`)."""

ITEM_SIZE = 200
"""The characters that each message, tool or call adds to the estimate, besides its texts. A template runs
about a dozen steps for each of them."""


VALUE_SIZE = 8
"""The characters that each value of a tool's schema or document adds to the estimate, besides its texts."""

SHORT_ID = re.compile("[A-Za-z0-9]{9}")


def make_short_id(call_id: str) -> str:
    """Makes an id of nine letters and digits from a given id. Returns the given id if it already has that
    form."""
    if SHORT_ID.fullmatch(call_id):
        return call_id
    return blake2b(call_id.encode(), digest_size=5).hexdigest()[:9]


def collect_texts(conversation: Conversation) -> list[str]:
    """Returns all texts of the caller."""
    return _gather_texts(conversation)[0]


def estimate_size(conversation: Conversation) -> int:
    """Estimates the characters that a template processes."""
    return measure(conversation)[1]


def measure(conversation: Conversation) -> tuple[list[str], int]:
    """Returns all texts of the caller, and an estimate of the characters that a template processes."""
    tools = conversation.tools.tools if conversation.tools is not None else ()
    items = len(tools) + sum(1 + len(message.tool_calls) for message in conversation.messages)
    texts, values = _gather_texts(conversation)
    return texts, sum(map(len, texts)) + ITEM_SIZE * items + VALUE_SIZE * values


def _gather_texts(conversation: Conversation) -> tuple[list[str], int]:
    """Returns all texts of the caller, and the number of JSON values that are no texts."""
    texts: list[str] = []
    for message in conversation.messages:
        texts += (message.text, message.name or "", message.tool_call_id or "", message.reasoning or "")
        for call in message.tool_calls:
            texts += (call.id, call.name, call.arguments)
    values = 0
    for tool in conversation.tools.tools if conversation.tools is not None else ():
        texts += (tool.name, tool.description or "")
        values += _add_texts(tool.parameters, texts)
    for value in (conversation.template_values, *(conversation.documents or ())):
        values += _add_texts(value, texts)
    return texts, values


def build_tools(tools: tuple[Tool, ...], hide: Hide) -> list[dict[str, object]]:
    """Builds tools in OpenAI's form, which templates read."""
    return [{"type": "function", "function": _build_function(tool, hide)} for tool in tools]


def add_tools_to_system(
    messages: list[dict[str, object]], tools: list[dict[str, object]]
) -> list[dict[str, object]]:
    """Adds the tools as JSON to the system message, because some templates read tools there."""
    text = json.dumps([tool["function"] for tool in tools], ensure_ascii=False)
    if messages and messages[0]["role"] == Role.SYSTEM:
        return [messages[0] | {"tools": text}, *messages[1:]]
    return [{"role": str(Role.SYSTEM), "content": "", "tools": text}, *messages]


def with_parts(message: dict[str, object]) -> dict[str, object]:
    """Returns the message with its text in a list of parts. Templates of vision models read it there."""
    text = message["content"]
    return message | {"content": [{"type": "text", "text": text}] if text else []}


def with_reasoning_part(message: dict[str, object]) -> dict[str, object]:
    """Returns the message with its reasoning as a part of the content. Mistral's templates read it there."""
    text = message["content"]
    text_parts = [{"type": "text", "text": text}] if text else []
    return message | {"content": [{"type": "thinking", "thinking": message["reasoning"]}, *text_parts]}


def _build_function(tool: Tool, hide: Hide) -> dict[str, object]:
    """Returns a tool in the form that templates read."""
    function: dict[str, object] = {"name": hide(tool.name)}
    if tool.description is not None:
        function["description"] = hide(tool.description)
    empty = {"type": "object", "properties": {}}
    function["parameters"] = hide_texts(empty if tool.parameters is None else tool.parameters, hide)
    return function


def build_message(
    message: Message, role: Role, hide: Hide, reads_objects: bool, short_ids: bool = False
) -> dict[str, object]:
    """Returns a message as templates read it. `reads_objects`: whether the template reads a call's arguments
    as an object instead of JSON text. Arguments that are no JSON object stay text. `short_ids`: whether the
    template accepts only ids of nine letters and digits."""
    adapt_id = (lambda call_id: hide(make_short_id(call_id))) if short_ids else hide
    template_message: dict[str, object] = {"role": str(role), "content": hide(message.text)}
    if message.name is not None:
        template_message["name"] = hide(message.name)
    if message.tool_call_id is not None:
        template_message["tool_call_id"] = adapt_id(message.tool_call_id)
    if message.tool_calls:
        template_message["tool_calls"] = [
            _build_call(call, hide, reads_objects) | {"id": adapt_id(call.id)} for call in message.tool_calls
        ]
        template_message["content"] = template_message["content"] or None
    if message.reasoning is not None:
        template_message |= _build_reasoning(message, hide(message.reasoning))
    return template_message


def _build_reasoning(message: Message, text: str) -> dict[str, object]:
    """Returns the reasoning under each name that templates read. No template reads two of these names.
    gpt-oss's template accepts `thinking` in a message with calls only if the message has no text."""
    fields: dict[str, object] = {"reasoning_content": text, "reasoning": text}
    return fields if message.tool_calls and message.text else fields | {"thinking": text}


def _build_call(call: ToolCall, hide: Hide, reads_objects: bool) -> dict[str, object]:
    """Returns a call in the form that templates read. `reads_objects`: whether the template reads the
    arguments as an object."""
    parsed_arguments = read_arguments(call.arguments) if reads_objects else None
    arguments = hide(call.arguments) if parsed_arguments is None else hide_texts(parsed_arguments, hide)
    function = {"name": hide(call.name), "arguments": arguments}
    return {"type": "function", "function": function}


def hide_texts(value: object, hide: Hide) -> object:
    """Returns the JSON value with `hide` applied to every text in it."""
    if isinstance(value, str):
        return hide(value)
    if isinstance(value, list):
        return [hide_texts(each, hide) for each in value]
    if isinstance(value, Mapping):
        return {hide(str(name)): hide_texts(each, hide) for name, each in value.items()}
    return value


def _add_texts(value: object, texts: list[str]) -> int:
    """Adds the texts in a JSON value to `texts`, in any order. Returns the number of values in it that are no
    texts. It uses no recursion, because a schema can contain a hundred thousand values."""
    other_values, pending = 0, [value]
    while pending:
        current = pending.pop()
        if isinstance(current, str):
            texts.append(current)
            continue
        other_values += 1
        if isinstance(current, list):
            pending += current
        elif isinstance(current, dict):
            texts += map(str, current)
            pending += current.values()
    return other_values


MOST_LEVELS = 48
"""The most levels of nested lists and objects that templates print."""


def read_arguments(text: str) -> dict[str, object] | None:
    """Returns a call's arguments as an object. An empty text gives an empty object.

    A model wrote the text, so it can be cut, or not be JSON. Returns None for a text that is no JSON object.
    Also returns None for an object that cannot be printed unchanged: with a repeated key, an infinite number,
    a lone surrogate, or too many levels.
    """
    if not text.strip(SPACE):
        return {}
    try:
        value = json.loads(text, object_pairs_hook=_read_object)
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and _is_shallow(value) else None


def _read_object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Builds an object from its members. Raises ValueError for a repeated key."""
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("an object has a key twice")
    return members


def _list_members(value: object) -> Iterable[object]:
    """Returns the direct members of a list or object."""
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _is_shallow(value: object) -> bool:
    """Whether the value has at most `MOST_LEVELS` levels."""
    level = [value]
    for _ in range(MOST_LEVELS):
        members = chain.from_iterable(map(_list_members, level))
        level = [member for member in members if isinstance(member, dict | list)]
        if not level:
            return True
    return False


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
        messages, moves later system messages to the beginning, and joins several into one, with an empty
        line between them. If the template shows no system message at all, only the roles change."""
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
        if not self.shows_later:
            leading_messages += tuple(
                message for message in other_messages if message.role in INSTRUCTING_ROLES
            )
            other_messages = tuple(
                message for message in other_messages if message.role not in INSTRUCTING_ROLES
            )
        return (
            *(leading_messages if self.shows_several else _merge_leading(leading_messages)),
            *other_messages,
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


PROBE = ToolCall("a0b1c2d3e", "probe_function", '{"probe_key": "probe_value"}')
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
    "To call one, answer with its name and its arguments as JSON, in this form:\n{call}\n"
    "The result then comes between <tool_response> and </tool_response>."
)


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
    if tools is None or support.shows_tools:
        return replace(conversation, messages=messages)
    return replace(
        conversation,
        messages=_insert_text(messages, _explain_tools(tools.tools, call_notation), support),
        tools=None,
    )


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
    return TOOLS_EXPLANATION.format(
        tools="\n".join(lines), call=call_notation.write_call("FUNCTION", '{"NAME": VALUE}')
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
