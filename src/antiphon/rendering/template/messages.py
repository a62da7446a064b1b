"""Converts a conversation to the plain dictionaries that templates read. A `Hide` function is applied to
every text of the caller, so that it cannot form a control token. Names of functions and properties are texts
of the caller too."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from hashlib import blake2b
from itertools import chain

from antiphon.domain.messages import Message, Role, Tool, ToolCall
from antiphon.domain.request import Conversation
from antiphon.rendering.call_readers import SPACE
from antiphon.rendering.template.shield import Cover

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
    tools = conversation.tools.shown if conversation.tools is not None else ()
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
    for tool in conversation.tools.shown if conversation.tools is not None else ():
        texts += (tool.name, tool.description or "")
        tool_texts, tool_values = tool.remember(_gather_texts, partial(_list_texts, tool.parameters))
        texts += tool_texts
        values += tool_values
    for value in (conversation.template_values, *(conversation.documents or ())):
        values += _add_texts(value, texts)
    return texts, values


def build_tools(tools: tuple[Tool, ...], cover: Cover) -> list[dict[str, object]]:
    """Builds tools in OpenAI's form, which templates read."""
    return [{"type": "function", "function": _build_function(tool, cover)} for tool in tools]


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


def _build_function(tool: Tool, cover: Cover) -> dict[str, object]:
    """Returns a tool in the form that templates read. Templates cannot change it."""
    function: dict[str, object] = {"name": cover.hide(tool.name)}
    if tool.description is not None:
        function["description"] = cover.hide(tool.description)
    empty = {"type": "object", "properties": {}}
    parameters = empty if tool.parameters is None else tool.parameters
    build = partial(hide_texts, parameters, cover.hide)
    function["parameters"] = tool.remember(cover.shield, build) if cover.is_usual else build()
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


def _list_texts(value: object) -> tuple[list[str], int]:
    """Returns the texts in a JSON value, and the number of values in it that are no texts."""
    texts: list[str] = []
    return texts, _add_texts(value, texts)


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
