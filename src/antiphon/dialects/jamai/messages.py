"""Brings messages and tools of JamAI's clients into OpenAI's form.

The first two functions read the JSON before its types are checked, so values of a wrong type stay as they
are. The last one adds the turns that JamAI adds.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from antiphon.domain.messages import MediaContent, Message, Role

NAME_GAP = re.compile(r"[^a-zA-Z0-9_-]")
"""A character that a name does not keep."""

DOT = "."
"""The text of a turn that JamAI adds, and of an empty system message."""

EMPTY: tuple[object, ...] = ("", [])
"""Values that the product's client writes for a keyword that its user left out."""

KEYWORDS = ("type", "description", "enum")


def normalize_messages(fields: dict[str, Any]) -> dict[str, Any]:
    """Returns the body with messages in OpenAI's form."""
    messages = fields.get("messages")
    if not isinstance(messages, list):
        return fields
    return fields | {"messages": [_normalize_message(message) for message in messages]}


def _normalize_message(message: object) -> object:
    """Returns one message with a plain name, and with a content that is no null."""
    if not isinstance(message, dict):
        return message
    normal: dict[str, Any] = dict(message)
    name = normal.get("name")
    if isinstance(name, str):
        normal["name"] = NAME_GAP.sub("_", name) or None
    if "content" in normal and not normal["content"] and not normal.get("tool_calls"):
        normal["content"] = "" if normal["content"] in (None, []) else normal["content"]
    if isinstance(normal.get("content"), list):
        normal["content"] = [_normalize_part(part) for part in normal["content"]]
    return normal


def _normalize_part(part: object) -> object:
    """Returns one part of a content. A text that is null is empty."""
    if isinstance(part, dict) and part.get("type") == "text" and part.get("text", "") is None:
        return part | {"text": ""}
    return part


def normalize_tools(fields: dict[str, Any]) -> dict[str, Any]:
    """Returns the body with tools in OpenAI's form."""
    tools = fields.get("tools")
    if not isinstance(tools, list):
        return fields
    return fields | {"tools": [_normalize_tool(tool) for tool in tools]}


def _normalize_tool(tool: object) -> object:
    """Returns one tool with its type, and without the empty keywords of its properties."""
    if not isinstance(tool, dict):
        return tool
    function = tool.get("function")
    parameters = function.get("parameters") if isinstance(function, dict) else None
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    if isinstance(function, dict) and isinstance(parameters, dict) and isinstance(properties, dict):
        filled = {name: _drop_empty(schema) for name, schema in properties.items()}
        tool = tool | {"function": function | {"parameters": parameters | {"properties": filled}}}
    return {"type": "function"} | tool


def _drop_empty(schema: object) -> object:
    """Returns the schema of a property without empty keywords."""
    if not isinstance(schema, dict):
        return schema
    return {name: value for name, value in schema.items() if name not in KEYWORDS or value not in EMPTY}


def complete_turns(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Returns the messages with the turns that JamAI adds, so that the user speaks before the assistant."""
    filled = tuple(map(_fill_system, messages))
    roles = [message.role for message in filled[:2]]
    user = Message(Role.USER, DOT)
    if roles[:1] == [Role.ASSISTANT]:
        return (Message(Role.SYSTEM, DOT), user, *filled)
    if roles in ([Role.SYSTEM], [Role.SYSTEM, Role.ASSISTANT]):
        return (filled[0], user, *filled[1:])
    return filled


def _fill_system(message: Message) -> Message:
    """Returns the message. An empty system message becomes a dot."""
    is_empty = message.role is Role.SYSTEM and not message.text and not message.content
    return replace(message, text=DOT) if is_empty else message


def list_modalities(messages: Iterable[Message]) -> frozenset[str]:
    """Returns the kinds of parts in messages besides text: `image`, `audio`."""
    parts = (part for message in messages for part in message.content)
    return frozenset(str(part.kind) for part in parts if isinstance(part, MediaContent))
