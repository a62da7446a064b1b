"""Translates messages for Anthropic's Messages API."""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from antiphon.domain.messages import (
    CacheControl,
    Content,
    MediaContent,
    MediaKind,
    Message,
    Role,
    TextContent,
    ToolCall,
)
from antiphon.domain.request import Conversation
from antiphon.domain.vendor_fields import THINKING_BLOCKS
from antiphon.engines.vendors.anthropic.wire_types import AFTER, BlockPlaceWire, PlacedBlockWire
from antiphon.errors import InvalidValue, UnsupportedParameter

Body = dict[str, object]

IMAGE_TYPES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})

SYSTEM_ROLES = frozenset({Role.SYSTEM, Role.DEVELOPER})

ROLES = {
    Role.SYSTEM: "system",
    Role.DEVELOPER: "system",
    Role.USER: "user",
    Role.ASSISTANT: "assistant",
    Role.TOOL: "user",
}
"""The role of the turn to which a message belongs. System messages before all other messages are no turn."""

read_json = msgspec.json.decode


def encode_messages(prompt: Conversation, ignored: list[str]) -> Body:
    """Translates the messages into `system` and `messages`. Adds the names of parts that this format cannot
    express to `ignored`. Raises a RequestError."""
    require_end(prompt)
    messages = prompt.messages
    instruction_count = next(
        (index for index, message in enumerate(messages) if message.role not in SYSTEM_ROLES), len(messages)
    )
    called_names = {call.id: call.name for message in messages for call in message.tool_calls}
    system: list[Body] = []
    turns: list[tuple[str, list[Body]]] = []
    for index, message in enumerate(messages):
        message_path = f"messages[{index}]"
        require_no_name(message, message_path, called_names)
        blocks = encode_message(message, message_path, ignored)
        if index < instruction_count:
            system += blocks
        elif turns and turns[-1][0] == ROLES[message.role]:
            turns[-1][1].extend(blocks)
        else:
            turns.append((ROLES[message.role], list(blocks)))
    body: Body = {"messages": [{"role": role, "content": content} for role, content in turns]}
    return {"system": system} | body if system else body


def require_end(prompt: Conversation) -> None:
    """Raises a RequestError if the last message has a role after which the vendor does not answer, or which
    it does not continue, as the caller wants."""
    last_role = prompt.messages[-1].role if prompt.messages else Role.SYSTEM
    if last_role is Role.ASSISTANT and not prompt.continues:
        raise UnsupportedParameter(
            "messages: this vendor continues a last message of the role assistant; set "
            "continue_final_message, or end with a message of another role",
            param="messages",
        )
    if last_role is not Role.ASSISTANT and prompt.continues:
        raise InvalidValue(
            "continue_final_message: the last message must have the role assistant",
            param="continue_final_message",
        )
    if all(message.role in SYSTEM_ROLES for message in prompt.messages):
        raise InvalidValue(
            "messages: this vendor needs a message of the role user or assistant", param="messages"
        )


def require_no_name(message: Message, message_path: str, called_names: Mapping[str, str]) -> None:
    """Raises UnsupportedParameter if a message has a name, unless it is the name of the called tool in the
    result of a call."""
    if message.name is None or message.name == called_names.get(message.tool_call_id or ""):
        return
    raise UnsupportedParameter(
        f"{message_path}.name is not supported: this vendor's messages have no names; leave it out",
        param=f"{message_path}.name",
    )


def encode_message(message: Message, message_path: str, ignored: list[str]) -> Iterable[Body]:
    """Returns the blocks of one message."""
    match message.role:
        case Role.ASSISTANT:
            return encode_assistant(message, message_path, ignored)
        case Role.TOOL:
            return (encode_result(message),)
        case Role.USER:
            return encode_content(message)
        case _:
            require_text(message)
            return encode_content(message)


def encode_assistant(message: Message, message_path: str, ignored: list[str]) -> list[Body]:
    """Returns the blocks of an assistant's message: reasoning, text, calls. A block of reasoning keeps its
    position among text and calls, because the vendor requires the original order."""
    require_text(message)
    thoughts = list(read_thoughts(message.thinking_blocks))
    if len(thoughts) < len(message.thinking_blocks):
        ignored.append(THINKING_BLOCKS)
    if message.reasoning and not thoughts:
        ignored.append(f"messages[].{message.reasoning_field}")
    calls = [
        encode_call(call, f"{message_path}.tool_calls[{index}]")
        for index, call in enumerate(message.tool_calls)
    ]
    blocks: list[Body] = []
    text_at = calls_at = 0
    for position, thought in thoughts:
        blocks += [
            *encode_text(message.text[text_at : position.text]),
            *calls[calls_at : position.calls],
            thought,
        ]
        text_at, calls_at = max(text_at, position.text), max(calls_at, position.calls)
    blocks += encode_text(message.text[text_at:])
    mark_text(blocks, message)
    return [*blocks, *calls[calls_at:]]


def mark_text(blocks: Iterable[Body], message: Message) -> None:
    """Adds a cache mark to the last text block of a message: the mark of the message's last marked part."""
    marks = [part.cache_control for part in message.content if isinstance(part, TextContent)]
    mark = next((candidate for candidate in reversed(marks) if candidate is not None), None)
    texts = [block for block in blocks if block["type"] == "text"]
    if texts:
        texts[-1].update(encode_cache_mark(mark))


def encode_cache_mark(mark: CacheControl | None) -> Body:
    """Translates the cache mark of a block or a tool. Returns an empty object if there is none."""
    if mark is None:
        return {}
    return {"cache_control": {"type": "ephemeral"} | ({"ttl": mark.lifetime} if mark.lifetime else {})}


def read_thoughts(blocks: Iterable[Mapping[str, object]]) -> Iterator[tuple[BlockPlaceWire, Body]]:
    """Yields each block of reasoning that comes from this vendor, with its position."""
    for block in blocks:
        try:
            position = msgspec.convert(block, PlacedBlockWire).after
        except msgspec.ValidationError:
            continue
        yield position, {name: value for name, value in block.items() if name != AFTER}


def encode_text(text: str) -> Iterator[Body]:
    """Yields the block of a text. Skips an empty text, which this vendor refuses."""
    if text:
        yield {"type": "text", "text": text}


def encode_call(call: ToolCall, message_path: str) -> Body:
    """Translates a call. Raises InvalidValue if its arguments are not a JSON object."""
    field = f"{message_path}.function.arguments"
    arguments = read_object(call.arguments)
    if arguments is None:
        raise InvalidValue(
            f"{field} must be a JSON object, since this vendor takes no other arguments", param=field
        )
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments}


def read_object(text: str) -> msgspec.Raw | None:
    """Returns the text as raw JSON if it is a JSON object, otherwise None. Numbers keep all their digits."""
    try:
        return msgspec.Raw(text.encode()) if isinstance(read_json(text), dict) else None
    except msgspec.DecodeError:
        return None


def encode_result(message: Message) -> Body:
    """Translates the result of a call."""
    block: Body = {"type": "tool_result", "tool_use_id": message.tool_call_id}
    content = list(encode_content(message))
    return block | {"content": content} if content else block


def encode_content(message: Message) -> Iterator[Body]:
    """Yields the blocks of a message's content."""
    parts: tuple[Content, ...] = message.content or (TextContent(message.text),)
    for part in parts:
        if isinstance(part, MediaContent):
            yield encode_image(part)
        else:
            yield from (block | encode_cache_mark(part.cache_control) for block in encode_text(part.text))


def encode_image(part: MediaContent) -> Body:
    """Translates an image. Raises UnsupportedParameter for a recording, a type or a detail that the vendor
    lacks."""
    if part.kind is not MediaKind.IMAGE:
        raise UnsupportedParameter(f"{part.field}: this vendor takes no recordings", param=part.field)
    if part.detail not in (None, "auto"):
        raise UnsupportedParameter(
            f"{part.field}.detail is not supported by this vendor; leave it out", param=f"{part.field}.detail"
        )
    if part.url:
        return {"type": "image", "source": {"type": "url", "url": part.url}}
    if part.media_type not in IMAGE_TYPES:
        raise UnsupportedParameter(
            f"{part.field}: this vendor takes images of the types {', '.join(sorted(IMAGE_TYPES))}",
            param=part.field,
        )
    source = {"type": "base64", "media_type": part.media_type, "data": part.data}
    return {"type": "image", "source": source}


def require_text(message: Message) -> None:
    """Raises UnsupportedParameter for an image or a recording in a message that can contain only text."""
    for part in message.content:
        if isinstance(part, MediaContent):
            raise UnsupportedParameter(
                f"{part.field}: this vendor takes images only from users and tools", param=part.field
            )
