"""Translates the messages of a conversation to Gemini's contents."""

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import msgspec

from antiphon.domain.messages import (
    Content,
    MediaContent,
    Message,
    Role,
    TextContent,
    ToolCall,
)
from antiphon.domain.vendor_fields import THINKING_BLOCKS
from antiphon.engines.vendors.gemini.signatures import encode_part, read_blocks, split_text
from antiphon.errors import InvalidValue, UnsupportedParameter

Body = dict[str, Any]

INSTRUCTIONS = frozenset((Role.SYSTEM, Role.DEVELOPER))

RESOLUTIONS = {
    "low": "MEDIA_RESOLUTION_LOW",
    "medium": "MEDIA_RESOLUTION_MEDIUM",
    "high": "MEDIA_RESOLUTION_HIGH",
}
"""Gemini's resolutions of an image, by OpenAI's values of `detail`."""

MEDIA_TYPES = {
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".png": "image/png",
    ".webp": "image/webp",
    ".gif": "image/gif",
    ".heic": "image/heic",
    ".heif": "image/heif",
}
"""The media type of an address, by the suffix of its path. Gemini detects other types itself."""

read_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
"""Checks that a text is a JSON object."""


def encode_messages(messages: Sequence[Message], ignored: list[str]) -> Body:
    """Returns `systemInstruction` and `contents`. Adds the names of ignored parts to `ignored`. Raises a
    RequestError that names the part of a message that Gemini cannot express."""
    instruction_count = next(
        (index for index, message in enumerate(messages) if message.role not in INSTRUCTIONS), len(messages)
    )
    if instruction_count == len(messages):
        raise InvalidValue(
            "messages must contain one that is not an instruction: Gemini requires it", param="messages"
        )
    encoder = _ContentsEncoder(ignored)
    for index, message in enumerate(messages[instruction_count:], instruction_count):
        encoder.add(message, f"messages[{index}]")
    body: Body = {"contents": encoder.contents}
    if instruction_count:
        parts = [
            part
            for index, message in enumerate(messages[:instruction_count])
            for part in _encode_instruction(message, f"messages[{index}]")
        ]
        body["systemInstruction"] = {"parts": parts}
    return body


def _encode_instruction(message: Message, message_path: str) -> list[Body]:
    """Translates one system or developer message. Raises UnsupportedParameter if it has more than text."""
    _require_no_name(message, message_path)
    for part in message.mixed_content:
        if isinstance(part, MediaContent):
            raise UnsupportedParameter(
                f"{part.field}: Gemini takes only text in instructions; send it as the user", param=part.field
            )
    return [{"text": message.text}]


def _require_no_name(message: Message, message_path: str) -> None:
    """Raises UnsupportedParameter for the name of an author, which Gemini does not support."""
    if message.name is not None:
        param = f"{message_path}.name"
        raise UnsupportedParameter(f"{param} is not supported by Gemini; leave it out", param=param)


class _ContentsEncoder:
    """Translates messages in their order. Successive messages of one role become one content."""

    def __init__(self, ignored: list[str]) -> None:
        self.contents: list[Body] = []
        self._ignored = ignored
        self._function_names: dict[str, str] = {}
        """The function of each call so far, by the call's id."""
        self._last_role: Role | None = None

    def add(self, message: Message, message_path: str) -> None:
        """Adds one message."""
        match message.role:
            case Role.USER:
                _require_no_name(message, message_path)
                self._append(message.role, "user", _encode_content(message))
            case Role.ASSISTANT:
                _require_no_name(message, message_path)
                self._append(message.role, "model", self._encode_answer(message, message_path))
            case Role.TOOL:
                self._append(message.role, "user", [self._encode_result(message, message_path)])
            case _:
                raise UnsupportedParameter(
                    f"{message_path}.role: Gemini takes instructions only before all other messages; "
                    "move it to the beginning",
                    param=f"{message_path}.role",
                )

    def _append(self, role: Role, name: str, parts: list[Body]) -> None:
        """Adds parts to the last content if the last message had the same role. If not, adds a new content.
        `name`: Gemini's name of the role."""
        if role is self._last_role:
            self.contents[-1]["parts"] += parts
        else:
            self.contents.append({"role": name, "parts": parts})
        self._last_role = role

    def _encode_answer(self, message: Message, message_path: str) -> list[Body]:
        """Translates the assistant's message: signed thoughts, the text, and the calls."""
        blocks = list(read_blocks(message.thinking_blocks))
        parts = [encode_part(block.part) for block in blocks if block is not None and block.part.thought]
        signed = [block for block in blocks if block is not None and not block.part.thought]
        text = split_text(message.text, signed) if not message.mixed_content else None
        if None in blocks or (text is None and signed):
            self._ignored.append(THINKING_BLOCKS)
        if message.reasoning and not parts:
            self._ignored.append(f"messages[].{message.reasoning_field}")
        if text is None:
            text = _encode_content(message)
        parts += text
        for index, call in enumerate(message.tool_calls):
            self._function_names[call.id] = call.name
            parts.append(_encode_call(call, f"{message_path}.tool_calls[{index}]"))
        return parts or [{"text": ""}]

    def _encode_result(self, message: Message, message_path: str) -> Body:
        """Translates the result of a call. Raises InvalidValue if there is no such call before it."""
        name = self._function_names.get(message.tool_call_id or "")
        if name is None:
            raise InvalidValue(
                f"{message_path}.tool_call_id: no call before this message has this id",
                param=f"{message_path}.tool_call_id",
            )
        if message.name != name:
            _require_no_name(message, message_path)
        result: Body = {"id": message.tool_call_id, "name": name}
        media = [part for part in message.mixed_content if isinstance(part, MediaContent)]
        result["response"] = {} if media and not message.text else _encode_output(message.text)
        if media:
            result["parts"] = [_encode_result_media(part) for part in media]
        return {"functionResponse": result}


def _encode_content(message: Message) -> list[Body]:
    """Translates the text and the media of a message."""
    return [_encode_part(part) for part in message.mixed_content or (TextContent(message.text),)]


def _encode_part(part: Content) -> Body:
    """Translates one part of a message."""
    if isinstance(part, TextContent):
        return {"text": part.text}
    encoded = _encode_media(part)
    if part.detail not in (None, "auto"):
        resolution = RESOLUTIONS.get(part.detail)
        if resolution is None:
            raise _build_detail_refusal(part, f"send {', '.join(RESOLUTIONS)} or auto")
        encoded["mediaResolution"] = {"level": resolution}
    return encoded


def _encode_media(part: MediaContent) -> Body:
    """Translates an image or a recording: its bytes, or its address."""
    if not part.url:
        return {"inlineData": {"mimeType": part.media_type, "data": part.data}}
    media_type = MEDIA_TYPES.get(PurePosixPath(urlsplit(part.url).path).suffix.lower())
    return {"fileData": {"fileUri": part.url} | ({"mimeType": media_type} if media_type else {})}


def _encode_result_media(part: MediaContent) -> Body:
    """Translates an image or a recording in the result of a call, which has no resolution of its own."""
    if part.detail not in (None, "auto"):
        raise _build_detail_refusal(part, "Gemini has none in results of tools; leave it out")
    return _encode_media(part)


def _build_detail_refusal(part: MediaContent, remedy: str) -> UnsupportedParameter:
    """Builds the error for a resolution that Gemini lacks."""
    param = f"{part.field}.detail"
    return UnsupportedParameter(f"{param} {part.detail} is not supported: {remedy}", param=param)


def _encode_call(call: ToolCall, message_path: str) -> Body:
    """Translates one call. Raises InvalidValue if its arguments are not a JSON object."""
    arguments = call.arguments.strip() or "{}"
    try:
        read_object(arguments)
    except (msgspec.MsgspecError, UnicodeError):
        param = f"{message_path}.function.arguments"
        raise InvalidValue(
            f"{param} must be a JSON object: Gemini takes no other text", param=param
        ) from None
    part: Body = {"functionCall": {"id": call.id, "name": call.name, "args": msgspec.Raw(arguments.encode())}}
    return part | ({"thoughtSignature": call.signature} if call.signature is not None else {})


def _encode_output(text: str) -> object:
    """Returns the result of a call as the JSON object that Gemini requires. A text that is not an object
    becomes the field `output`."""
    try:
        read_object(text)
    except (msgspec.MsgspecError, UnicodeError):
        return {"output": text}
    return msgspec.Raw(text.encode())
