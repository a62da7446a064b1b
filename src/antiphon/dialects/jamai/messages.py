"""Converts messages and tools of JamAI's clients to OpenAI's form.

`normalize_messages` and `normalize_tools` run before the types are checked, so they leave values of a wrong
type unchanged. `complete_turns` adds the messages that JamAI adds.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from antiphon.domain.messages import MediaContent, Message, Role
from antiphon.domain.values import replace

NAME_GAP = re.compile(r"[^a-zA-Z0-9_-]")
"""A character that names must not contain."""

DOT = "."
"""The text of a message that JamAI adds, and of an empty system message."""

EMPTY: tuple[object, ...] = ("", [])
"""Values that the product's client sends for a missing keyword."""

KEYWORDS = ("type", "description", "enum")


def normalize_messages(fields: dict[str, Any]) -> dict[str, Any]:
    """Returns the body with messages in OpenAI's form."""
    messages = fields.get("messages")
    if not isinstance(messages, list):
        return fields
    return fields | {"messages": [_normalize_message(message) for message in messages]}


def _normalize_message(message: object) -> object:
    """Returns one message with a valid name, and without a content of null."""
    if not isinstance(message, dict):
        return message
    normalized_message: dict[str, Any] = dict(message)
    name = normalized_message.get("name")
    if isinstance(name, str):
        normalized_message["name"] = NAME_GAP.sub("_", name) or None
    if (
        "content" in normalized_message
        and not normalized_message["content"]
        and not normalized_message.get("tool_calls")
    ):
        normalized_message["content"] = (
            "" if normalized_message["content"] in (None, []) else normalized_message["content"]
        )
    if isinstance(normalized_message.get("content"), list):
        normalized_message["content"] = [_normalize_part(part) for part in normalized_message["content"]]
    return normalized_message


def _normalize_part(part: object) -> object:
    """Returns one part of a content. A text of null becomes empty."""
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
    """Returns one tool with its type, and without empty keywords in the schemas of its properties."""
    if not isinstance(tool, dict):
        return tool
    function = tool.get("function")
    parameters = function.get("parameters") if isinstance(function, dict) else None
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    if isinstance(function, dict) and isinstance(parameters, dict) and isinstance(properties, dict):
        normalized_properties = {name: _drop_empty(schema) for name, schema in properties.items()}
        tool = tool | {
            "function": function | {"parameters": parameters | {"properties": normalized_properties}}
        }
    return {"type": "function"} | tool


def _drop_empty(schema: object) -> object:
    """Returns the schema of a property without empty keywords."""
    if not isinstance(schema, dict):
        return schema
    return {name: value for name, value in schema.items() if name not in KEYWORDS or value not in EMPTY}


def complete_turns(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Adds the messages that JamAI adds, so that a user message precedes the assistant's."""
    completed_messages = tuple(map(_fill_system, messages))
    roles = [message.role for message in completed_messages[:2]]
    user = Message(Role.USER, DOT)
    if roles[:1] == [Role.ASSISTANT]:
        return (Message(Role.SYSTEM, DOT), user, *completed_messages)
    if roles in ([Role.SYSTEM], [Role.SYSTEM, Role.ASSISTANT]):
        return (completed_messages[0], user, *completed_messages[1:])
    return completed_messages


def _fill_system(message: Message) -> Message:
    """Replaces an empty system message by a dot."""
    is_empty = message.role is Role.SYSTEM and not message.text and not message.content
    return replace(message, text=DOT) if is_empty else message


def list_modalities(messages: Iterable[Message]) -> frozenset[str]:
    """Returns the kinds of media in messages: `image`, `audio`."""
    parts = (part for message in messages for part in message.content)
    return frozenset(str(part.kind) for part in parts if isinstance(part, MediaContent))
