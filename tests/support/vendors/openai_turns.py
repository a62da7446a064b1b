"""The conversations as requests of the openai client."""

import json
from typing import Any

from antiphon.domain.messages import Content, MediaContent, MediaKind, TextContent, Tool, ToolChoice, Tools
from antiphon.domain.request import ConstraintKind
from tests.support.vendors.conversations import UserTurn, VendorConversation


def build_options(conversation: VendorConversation) -> dict[str, Any]:
    """The options of each request, by the client's names."""
    output, reasoning = conversation.output, conversation.reasoning
    options: dict[str, Any] = {"max_tokens": output.max_tokens}
    if output.stop:
        options["stop"] = list(output.stop)
    if output.choices > 1:
        options["n"] = output.choices
    if output.logprobs is not None:
        options |= {"logprobs": True, "top_logprobs": output.logprobs}
    if output.constraint is not None:
        options["response_format"] = {"type": "json_object"}
    if output.constraint is not None and output.constraint.kind is ConstraintKind.JSON_SCHEMA:
        schema = {"name": "person", "schema": json.loads(output.constraint.source)}
        options["response_format"] = {"type": "json_schema", "json_schema": schema}
    if conversation.tools is not None:
        options |= build_tools(conversation.tools)
    if reasoning.effort is not None:
        options["reasoning_effort"] = reasoning.effort
    if not reasoning.shown:
        options["extra_body"] = {"include_reasoning": False}
    return options


def build_tools(tools: Tools) -> dict[str, Any]:
    """The tools and the choice among them."""
    options: dict[str, Any] = {"tools": [build_tool(tool) for tool in tools.tools]}
    if not tools.parallel:
        options["parallel_tool_calls"] = False
    names = [{"type": "function", "function": {"name": name}} for name in sorted(tools.allowed or ())]
    if len(names) == 1 and tools.choice is ToolChoice.REQUIRED:
        options["tool_choice"] = names[0]
    elif names:
        allowed = {"mode": str(tools.choice), "tools": names}
        options["tool_choice"] = {"type": "allowed_tools", "allowed_tools": allowed}
    elif tools.choice is not ToolChoice.AUTO:
        options["tool_choice"] = str(tools.choice)
    return options


def build_tool(tool: Tool) -> dict[str, Any]:
    """One tool."""
    function: dict[str, Any] = {"name": tool.name}
    function |= {} if tool.description is None else {"description": tool.description}
    function |= {} if tool.parameters is None else {"parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}


def build_messages(conversation: VendorConversation, turn: UserTurn, last_message: Any) -> list[Any]:
    """Builds the messages of a turn. `last_message`: the client's last received message, None in the first
    turn."""
    new_messages: list[Any] = []
    if last_message is None and conversation.system is not None:
        new_messages.append({"role": "system", "content": conversation.system})
    if last_message is not None:
        new_messages.append(last_message)
    for call, result in zip(
        last_message.tool_calls or () if last_message is not None else (), turn.results, strict=True
    ):
        new_messages.append({"role": "tool", "tool_call_id": call.id, "content": build_content(result)})
    if turn.parts:
        parts = (
            turn.parts if last_message is not None else (TextContent(f"[{conversation.name}] "), *turn.parts)
        )
        new_messages.append({"role": "user", "content": build_content(parts)})
    return new_messages


def build_content(parts: tuple[Content, ...]) -> Any:
    """Builds a text, or parts if any part is not text."""
    if all(isinstance(part, TextContent) for part in parts):
        return "".join(part.text for part in parts if isinstance(part, TextContent))
    return [build_part(part) for part in parts]


def build_part(part: Content) -> dict[str, Any]:
    """One part of a content."""
    if isinstance(part, TextContent):
        return {"type": "text", "text": part.text}
    return build_audio(part) if part.kind is MediaKind.AUDIO else build_image(part)


def build_image(part: MediaContent) -> dict[str, Any]:
    """An image, with its detail if it has one."""
    image = {"url": part.url or f"data:{part.media_type};base64,{part.data}"}
    return {"type": "image_url", "image_url": image | ({"detail": part.detail} if part.detail else {})}


def build_audio(part: MediaContent) -> dict[str, Any]:
    """A recording."""
    return {"type": "input_audio", "input_audio": {"data": part.data, "format": "wav"}}


def count_media(messages: list[Any]) -> tuple[int, int]:
    """The images and recordings, and the results of calls, in messages."""
    sent_messages = [message for message in messages if isinstance(message, dict)]
    parts = [
        part
        for message in sent_messages
        if isinstance(message["content"], list)
        for part in message["content"]
    ]
    return sum(part["type"] != "text" for part in parts), sum(
        message["role"] == "tool" for message in sent_messages
    )
