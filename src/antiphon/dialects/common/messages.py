"""Reads the conversation of a request: messages, tool calls and results, earlier reasoning, and rendering
options.

The model's template later decides which of these parts it uses.
"""

import json
import re
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, Protocol

from antiphon.bodies.strict_json import describe_value, sanitize_key
from antiphon.dialects.common.field_table import FieldReport
from antiphon.dialects.common.fields import UNKNOWN_MEDIA, FieldScope, filter_fields
from antiphon.dialects.common.media_parts import read_audio, read_image
from antiphon.dialects.common.request_types import (
    ChatMessage,
    ContentPart,
    ImageUrlPart,
    InputAudioPart,
    RefusalPart,
    TextPart,
)
from antiphon.dialects.common.tools import require_function, require_function_name, require_shallow
from antiphon.dialects.common.vendor_fields import is_only_signature, read_signature, read_thinking_blocks
from antiphon.domain.messages import CacheControl, Content, Message, Role, TextContent, ToolCall, Tools
from antiphon.domain.request import Conversation, Reasoning
from antiphon.errors import InvalidValue, MissingParameter, UnsupportedParameter

PLAIN_MESSAGE = frozenset({"role", "content", "name"})

MEDIA_PARTS = ("file", "video_url", "image", "audio", "video")
"""Known types of content parts that this server does not accept."""

MEDIA_SCOPES = {
    "image_url": (FieldScope.IMAGE, FieldScope.IMAGE_URL),
    "input_audio": (FieldScope.AUDIO, FieldScope.INPUT_AUDIO),
}
"""For each type of media part: the scope of the part, and the scope of the object in it with the same
name."""

ROLES = {role.value: role for role in Role}

VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
"""The name of a template's variable."""

LARGEST_VALUES = 100_000
"""The most characters of JSON in `chat_template_kwargs`: enough for some tools or a long text."""

TEMPLATE_VALUES_FIELD = "chat_template_kwargs"

DEFAULT_REASONING = Reasoning()
"""The reasoning options of a request without reasoning fields."""


class RenderingFields(Protocol):
    """The rendering options of a conversation."""

    @property
    def add_generation_prompt(self) -> bool | None: ...
    @property
    def continue_final_message(self) -> bool | None: ...
    @property
    def chat_template(self) -> str | None: ...
    @property
    def chat_template_kwargs(self) -> dict[str, Any] | None: ...
    @property
    def documents(self) -> list[dict[str, Any]] | None: ...


def build_conversation(
    wire: RenderingFields,
    messages: Sequence[Message],
    tools: Tools | None,
    add_special: bool | None = None,
    reasoning: Reasoning = DEFAULT_REASONING,
) -> Conversation:
    """Builds the conversation with the rendering options of the request. Raises a RequestError."""
    continues = wire.continue_final_message is True
    if continues:
        _require_continuable_message(wire, messages[-1])
    return Conversation(
        messages=tuple(messages),
        generation_prompt=not continues and wire.add_generation_prompt is not False,
        tools=tools,
        continues=continues,
        template=wire.chat_template,
        template_values=_read_template_values(wire.chat_template_kwargs) if wire.chat_template_kwargs else {},
        documents=_read_documents(wire.documents) if wire.documents else None,
        reasoning=reasoning,
        add_special=add_special,
    )


def _require_continuable_message(wire: RenderingFields, last_message: Message) -> None:
    """Raises a RequestError if the last message cannot be continued."""
    field = "continue_final_message"
    if wire.add_generation_prompt:
        raise InvalidValue(
            f"{field} and add_generation_prompt cannot both be true: {field} leaves the last message open, "
            "and add_generation_prompt begins a new message",
            param=field,
        )
    if last_message.role != "assistant":
        raise InvalidValue(
            f"{field} is taken only if the role of the last message is assistant; it is {last_message.role}",
            param=field,
        )
    if last_message.tool_calls:
        raise UnsupportedParameter(
            f"{field} is not supported for a message with tool_calls, because they follow its text; "
            "leave it out",
            param=field,
        )


def _read_template_values(template_values: Mapping[str, Any]) -> Mapping[str, object]:
    """Returns the caller's values for the template. Raises InvalidValue for a wrong name or too large a
    value."""
    for name in template_values:
        if not VARIABLE_NAME.fullmatch(name):
            raise InvalidValue(
                f"{TEMPLATE_VALUES_FIELD}.{sanitize_key(name)} is not a name of a template's variable",
                param=TEMPLATE_VALUES_FIELD,
            )
    _require_small(template_values, TEMPLATE_VALUES_FIELD)
    return template_values


def _read_documents(documents: list[dict[str, Any]]) -> tuple[Mapping[str, object], ...]:
    """Returns the documents. Raises InvalidValue for a value that JSON does not support."""
    require_shallow(documents, "documents")
    _dump_finite(documents, "documents")
    return tuple(documents)


def _require_small(value: Mapping[str, Any], field: str) -> None:
    """Raises InvalidValue if the value is too large or nested too deeply."""
    require_shallow(value, field)
    size = len(_dump_finite(value, field))
    if size > LARGEST_VALUES:
        raise InvalidValue(
            f"{field} has {size:,} characters as JSON; the limit is {LARGEST_VALUES:,}", param=field
        )


def _dump_finite(value: object, field: str) -> str:
    """Returns the value as JSON. Raises InvalidValue for a number with too large an exponent or too many
    digits."""
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False)
    except ValueError:
        raise InvalidValue(f"{field} must hold finite numbers", param=field) from None


class ReasoningFields(Protocol):
    """The reasoning fields of a chat."""

    @property
    def reasoning_effort(self) -> str | None: ...
    @property
    def include_reasoning(self) -> bool | None: ...
    @property
    def thinking_token_budget(self) -> int | None: ...


class MessageReasoningFields(Protocol):
    """The reasoning fields of a message."""

    @property
    def role(self) -> str: ...
    @property
    def reasoning_content(self) -> str | None: ...
    @property
    def reasoning(self) -> str | None: ...


def read_reasoning(wire: ReasoningFields) -> Reasoning:
    """Reads the reasoning options of a request."""
    if (
        wire.reasoning_effort is None
        and wire.thinking_token_budget is None
        and wire.include_reasoning is None
    ):
        return DEFAULT_REASONING
    return Reasoning(
        wire.reasoning_effort, wire.thinking_token_budget, shown=wire.include_reasoning is not False
    )


def name_reasoning_field(message: MessageReasoningFields) -> str:
    """Returns the name of the field that contains the message's reasoning."""
    is_newer = message.reasoning_content is None and message.reasoning is not None
    return "reasoning" if is_newer else "reasoning_content"


def read_past_reasoning(message: MessageReasoningFields, path: str) -> str | None:
    """Returns the reasoning before a message's text; None if there is none. Raises InvalidValue."""
    values = (message.reasoning_content, message.reasoning)
    if values[0] is None and values[1] is None:
        return None
    field = f"{path}.{name_reasoning_field(message)}"
    if message.role != "assistant":
        raise InvalidValue(f"{field} is taken only in messages of the role assistant", param=field)
    if None not in values and values[0] != values[1]:
        raise InvalidValue(
            f"{path}.reasoning and {path}.reasoning_content are two names of the same field and differ; send "
            "one of them",
            param=f"{path}.reasoning",
        )
    return values[0] if values[1] is None else values[1]


def filter_messages(fields: dict[str, Any], report: FieldReport | None = None) -> dict[str, Any]:
    """Returns the body with the fields of each message and content part filtered."""
    messages = fields.get("messages")
    if not isinstance(messages, list):
        return fields
    return fields | {
        "messages": [_filter_message(message, f"messages[{i}]", report) for i, message in enumerate(messages)]
    }


def _filter_message(message: object, field: str, report: FieldReport | None) -> object:
    """Returns the message with its fields filtered. A value that is not an object stays unchanged."""
    if not isinstance(message, dict):
        return message
    role, content = message.get("role"), message.get("content")
    if role == "function":
        raise UnsupportedParameter(
            f"{field}.role function is not supported: send role tool with tool_call_id",
            param=f"{field}.role",
        )
    if isinstance(content, str) and role != "tool" and message.keys() <= PLAIN_MESSAGE:
        return message
    filtered_message = filter_fields(message, FieldScope.MESSAGE, f"{field}.", report)
    _require_no_images(message, field)
    if filtered_message.get("refusal") and content and report is not None:
        report.paths.append(f"{field}.refusal")  # The content is the text.
    filter_calls(filtered_message, field, report)
    if isinstance(audio := filtered_message.get("audio"), dict):
        filtered_message["audio"] = filter_fields(audio, FieldScope.SPEECH, f"{field}.audio.", report)
    if isinstance(content, list):
        parts = enumerate(content)
        filtered_message["content"] = [
            _filter_part(part, f"{field}.content[{i}]", report) for i, part in parts
        ]
    return filtered_message


def _require_no_images(message: Mapping[str, Any], field: str) -> None:
    """Raises UnsupportedParameter for `images` in a message, because the model would not see them."""
    if message.get("images") and message.get("role") != "assistant":
        raise UnsupportedParameter(
            f"{field}.images is not supported: {UNKNOWN_MEDIA}", param=f"{field}.images"
        )


def _filter_part(part: object, field: str, report: FieldReport | None) -> object:
    """Returns the content part with its fields filtered. A value that is not an object stays unchanged."""
    if not isinstance(part, dict):
        return part
    kind = part.get("type")
    if isinstance(kind, str) and kind in MEDIA_SCOPES:
        return _filter_media(part, kind, field, report)
    scope = FieldScope.REFUSAL if "refusal" in part else FieldScope.PART
    filtered_part = filter_fields(part, scope, f"{field}.", report)
    if filtered_part.get("type") in MEDIA_PARTS:
        raise UnsupportedParameter(
            f"{field}.type {filtered_part['type']} is not supported: {UNKNOWN_MEDIA}", param=f"{field}.type"
        )
    if filtered_part.get("type", "text") not in ("text", "refusal"):
        shown_type = describe_value(filtered_part["type"])
        raise InvalidValue(
            f"{field}.type must be text, image_url, input_audio or refusal; got {shown_type}",
            param=f"{field}.type",
        )
    return filtered_part


def _filter_media(part: dict[str, Any], kind: str, field: str, report: FieldReport | None) -> dict[str, Any]:
    """Returns the image or recording with its fields filtered."""
    part_scope, object_scope = MEDIA_SCOPES[kind]
    filtered_part = filter_fields(part, part_scope, f"{field}.", report)
    if isinstance(media := filtered_part.get(kind), dict):
        filtered_part[kind] = filter_fields(media, object_scope, f"{field}.{kind}.", report)
    return filtered_part


class MessagesField(Protocol):
    """A body with messages, or without."""

    @property
    def messages(self) -> Sequence[object] | None: ...


def has_ignored_parts(wire: MessagesField) -> bool:
    """Whether a message has a part that its type accepts, and that `filter_messages` reports as ignored."""
    for message in wire.messages or ():
        if isinstance(message, ChatMessage):
            if message.refusal and message.content:
                return True
            for call in message.tool_calls or ():
                if call.extra_content is not None and not is_only_signature(call.extra_content):
                    return True
    return False


_get_special_fields = attrgetter(
    "refusal",
    "tool_calls",
    "tool_call_id",
    "reasoning_content",
    "reasoning",
    "thinking_blocks",
    "audio",
)
"""Returns the values of the fields that plain messages do not have."""

NO_SPECIAL_FIELDS = (None,) * 7


def build_messages(messages: list[ChatMessage]) -> tuple[Message, ...]:
    """Converts wire messages. Raises a RequestError."""
    built: list[Message] = []
    are_consistent = False
    for index, message in enumerate(messages):
        content = message.content
        if (
            isinstance(content, str)
            and message.role != "tool"
            and _get_special_fields(message) == NO_SPECIAL_FIELDS
        ):
            built.append(Message(ROLES[message.role], content, message.name))
            continue
        if not are_consistent:
            require_consistent_messages(messages)
            are_consistent = True
        built.append(_build_message(message, f"messages[{index}]"))
    return tuple(built)


def build_bare_conversation(messages: list[ChatMessage]) -> Conversation:
    """Converts wire messages to a conversation without rendering options. Raises a RequestError."""
    return Conversation(build_messages(messages))


def _build_message(message: ChatMessage, path: str) -> Message:
    """Converts one wire message. Raises a RequestError."""
    text = join_text(message.content or message.refusal or "")
    calls = build_calls(message, path) if message.tool_calls else ()
    reasoning, field = read_past_reasoning(message, path), name_reasoning_field(message)
    parts = read_parts(message.content, f"{path}.content") if isinstance(message.content, list) else ()
    blocks = read_thinking_blocks(message, path) if message.thinking_blocks else ()
    return Message(
        ROLES[message.role],
        text,
        message.name,
        calls,
        message.tool_call_id,
        reasoning,
        field,
        parts,
        blocks,
        speech_id=None if message.audio is None else message.audio.id,
    )


def join_text(content: str | Sequence[ContentPart]) -> str:
    if isinstance(content, str):
        return content
    return "".join(filter(None, map(_get_text, content)))


def _get_text(part: ContentPart) -> str | None:
    """Returns the text of a part; None for media."""
    if isinstance(part, TextPart):
        return part.text
    return part.refusal if isinstance(part, RefusalPart) else None


def read_parts(parts: Sequence[ContentPart], field: str) -> tuple[Content, ...]:
    """Returns the parts of a content; empty if all are plain text. Raises a RequestError for an invalid image
    or recording."""
    if not any(map(_is_media_or_cached, parts)):
        return ()
    return tuple(_read_part(part, f"{field}[{index}]") for index, part in enumerate(parts))


def _is_media_or_cached(part: ContentPart) -> bool:
    """Whether the part is media or has a cache mark."""
    return isinstance(part, ImageUrlPart | InputAudioPart) or (
        isinstance(part, TextPart) and part.cache_control is not None
    )


def _read_part(part: ContentPart, field: str) -> Content:
    if isinstance(part, ImageUrlPart):
        return read_image(part.image_url, f"{field}.image_url")
    if isinstance(part, InputAudioPart):
        return read_audio(part.input_audio, f"{field}.input_audio")
    cache_control = part.cache_control if isinstance(part, TextPart) else None
    return TextContent(
        _get_text(part) or "", None if cache_control is None else CacheControl(cache_control.ttl)
    )


def filter_calls(message: dict[str, Any], field: str, report: FieldReport | None) -> None:
    """Filters the fields of a message's tool calls in place."""
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        message["tool_calls"] = [
            _filter_call(call, f"{field}.tool_calls[{index}]", report) for index, call in enumerate(calls)
        ]


def _filter_call(call: object, field: str, report: FieldReport | None) -> object:
    """Returns the tool call with its fields filtered. A value that is not an object stays unchanged."""
    if not isinstance(call, dict):
        return call
    require_function(call, field)
    filtered_call = filter_fields(call, FieldScope.CALL, f"{field}.", report)
    if isinstance(function := filtered_call.get("function"), dict):
        filtered_call["function"] = filter_fields(function, FieldScope.CALLED, f"{field}.function.", report)
    extra_content = filtered_call.get("extra_content")
    if extra_content is not None and not is_only_signature(extra_content) and report is not None:
        report.paths.append(f"{field}.extra_content")
    return filtered_call


def require_consistent_messages(messages: list[ChatMessage]) -> None:
    """Raises a RequestError if content, calls and results of the messages contradict each other."""
    call_ids: set[str] = set()
    for index, message in enumerate(messages):
        field = f"messages[{index}]"
        if message.tool_calls:
            _require_role(message, "assistant", f"{field}.tool_calls")
            _require_calls(message, field, call_ids)
        _require_assistant_fields(message, field)
        if isinstance(message.content, list):
            _require_roles_of_parts(message, message.content, f"{field}.content")
        if message.content is None and message.role != "assistant":
            raise MissingParameter(f"{field}.content is missing", param=f"{field}.content")
        if message.role != "tool":
            if message.tool_call_id is not None:
                _require_role(message, "tool", f"{field}.tool_call_id")
        elif message.tool_call_id is None:
            raise MissingParameter(f"{field}.tool_call_id is missing", param=f"{field}.tool_call_id")
        elif message.tool_call_id not in call_ids:
            raise InvalidValue(
                f"{field}.tool_call_id: no call before it has the id {sanitize_key(message.tool_call_id)}",
                param=f"{field}.tool_call_id",
            )


def _require_roles_of_parts(message: ChatMessage, parts: Sequence[ContentPart], field: str) -> None:
    """Raises InvalidValue for a part that does not belong into messages of this role."""
    for index, part in enumerate(parts):
        if isinstance(part, RefusalPart):
            _require_role(message, "assistant", f"{field}[{index}].refusal")
        elif isinstance(part, InputAudioPart):
            _require_role(message, "user", f"{field}[{index}].input_audio")
        elif isinstance(part, ImageUrlPart) and message.role != "tool":
            _require_role(message, "user", f"{field}[{index}].image_url", " or tool")


def _require_assistant_fields(message: ChatMessage, field: str) -> None:
    """Raises InvalidValue if another message than an assistant's has `refusal` or `audio`."""
    for name in ("refusal", "audio"):
        if getattr(message, name) is not None:
            _require_role(message, "assistant", f"{field}.{name}")


def _require_role(message: ChatMessage, role: str, field: str, other_roles: str = "") -> None:
    """Raises InvalidValue if the message has another role. `other_roles`: further roles for the error."""
    if message.role != role:
        raise InvalidValue(f"{field} is taken only in messages of the role {role}{other_roles}", param=field)


def _require_calls(message: ChatMessage, field: str, call_ids: set[str]) -> None:
    """Adds the ids of a message's calls to `call_ids`. Raises InvalidValue for a wrong name or index."""
    for index, call in enumerate(message.tool_calls or ()):
        path = f"{field}.tool_calls[{index}]"
        require_function_name(call.function.name, f"{path}.function.name")
        if call.index not in (None, index):
            raise InvalidValue(f"{path}.index must be {index}, its place in the list", param=f"{path}.index")
        call_ids.add(call.id)


def build_calls(message: ChatMessage, field: str) -> tuple[ToolCall, ...]:
    """Builds the calls of an assistant's message. Raises InvalidValue."""
    return tuple(
        ToolCall(
            call.id,
            call.function.name,
            _dump_arguments(call.function.arguments, f"{field}.tool_calls[{index}].function.arguments"),
            read_signature(call.extra_content, f"{field}.tool_calls[{index}].extra_content"),
        )
        for index, call in enumerate(message.tool_calls or ())
    )


def _dump_arguments(arguments: str | Mapping[str, Any], field: str) -> str:
    """Returns the arguments as text. A text stays exactly as the model wrote it."""
    if isinstance(arguments, str):
        return arguments
    require_shallow(arguments, field)
    try:
        return json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    except ValueError:
        raise InvalidValue(f"{field} must hold finite numbers", param=field) from None
