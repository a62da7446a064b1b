"""Decodes a body of Scale's endpoints to a generation request, with the rules of Scale's page.

`normalize_messages` converts messages to OpenAI's form: missing roles, a single part instead of a list, media
types of images, and function calls in the older form. It runs before the types are checked, so values of a
wrong type stay unchanged. The decoder of `/v1` reads the fields with the same meaning.
"""

from collections.abc import Collection, Mapping
from typing import Any

from antiphon.bodies.strict_json import convert, describe_value, sanitize_key
from antiphon.dialects.calls import GenerationCall
from antiphon.dialects.common import request_types as openai_types
from antiphon.dialects.common.body_decoder import BodyDecoder
from antiphon.dialects.common.constraint_fields import RelaxedConstraint, read_schema
from antiphon.dialects.common.decode import build_chat_call, build_text_call
from antiphon.dialects.common.field_table import FieldReport
from antiphon.dialects.common.fields import filter_stream_options
from antiphon.dialects.common.media_parts import IMAGE_TYPES, SCHEME
from antiphon.dialects.common.messages import filter_messages, has_ignored_parts
from antiphon.dialects.common.tools import filter_tools, require_function_name, require_shallow
from antiphon.dialects.common.vendor_fields import (
    merge_extra_params,
    read_extra_headers,
    read_inference_timeout,
)
from antiphon.dialects.sgp.fields import FIELD_TABLE, TABLES, SgpScope, filter_fields
from antiphon.dialects.sgp.wire_types import (
    KnownFormat,
    SgpChatCompletionRequest,
    SgpCommonRequest,
    SgpCompletionRequest,
)
from antiphon.domain.fields import MAX_STOPS
from antiphon.domain.messages import Role
from antiphon.domain.values import replace
from antiphon.domain.vendor_fields import EXTRA_PARAMS
from antiphon.errors import InvalidValue, MissingParameter, UnknownParameter

FUNCTION = "function"
"""The role of a function's result, and the type of a call."""

ROLES = (*Role, FUNCTION)
"""The roles of a message."""

CALL_FIELDS = ("name", "arguments")
"""The fields of a call in the older form."""

DATA = "data:"
BASE64_MARK = ";base64,"


CONVERTED_FIELDS = frozenset({"max_tokens", "max_completion_tokens", "response_format"})
"""The fields that have another meaning or form in `/v1`, besides those of its text completions."""

SAME_CHAT_FIELDS, SAME_TEXT_FIELDS = (
    tuple(
        name
        for name in shape.__struct_fields__
        if name in v1_shape.__struct_fields__ and name not in converted
    )
    for shape, v1_shape, converted in (
        (SgpChatCompletionRequest, openai_types.ChatCompletionRequest, CONVERTED_FIELDS),
        (
            SgpCompletionRequest,
            openai_types.CompletionRequest,
            CONVERTED_FIELDS | {"prompt", "suffix", "stop", "logprobs"},
        ),
    )
)
"""The fields that are the same in `/v1`."""

LIMIT_FIELDS = ("max_completion_tokens", "max_tokens", "max_new_tokens")
"""The names of the limit of a choice's tokens. A name overrides the names after it."""

GUIDED_FIELDS = ("guided_json", "guided_choice", "guided_regex", "guided_grammar")

FORMATS = ("text", "json_object", "json_schema")
"""The types of response formats. Any other object is itself a JSON Schema."""

SCHEMA_TYPES = frozenset({"null", "boolean", "object", "array", "number", "integer", "string"})
"""The types that a JSON Schema can have."""


def normalize_messages(fields: dict[str, Any], report: FieldReport) -> dict[str, Any]:
    """Returns the body with its messages in OpenAI's form. Raises a RequestError."""
    messages = fields.get("messages")
    if not isinstance(messages, list):
        return fields
    function_calls = FunctionCalls()
    return fields | {
        "messages": [
            _normalize_message(message, f"messages[{index}]", function_calls, report)
            for index, message in enumerate(messages)
        ]
    }


class FunctionCalls:
    """The calls in the older form that have no result yet."""

    def __init__(self) -> None:
        self._call_count = 0
        """The number of calls so far."""
        self._pending_calls: list[tuple[str, str]] = []
        """The id and the function's name of each call without a result."""

    def add(self, message: Mapping[str, Any], field: str) -> list[object]:
        """Returns the call of an assistant's message as a list of tool calls. Raises a RequestError."""
        call, field = message["function_call"], f"{field}.function_call"
        if not isinstance(call, dict):
            raise InvalidValue(f"{field} must be an object; got {describe_value(call)}", param=field)
        if message["role"] != Role.ASSISTANT:
            raise InvalidValue(f"{field} is taken only in messages of the role assistant", param=field)
        if message.get("tool_calls"):
            raise InvalidValue(f"{field} and tool_calls exclude each other; send tool_calls", param=field)
        name, arguments = _read_call(call, field)
        call_id = f"function_call_{self._call_count}"  # vendors refuse ids with other characters
        self._call_count += 1
        self._pending_calls.append((call_id, name))
        return [{"id": call_id, "type": FUNCTION, FUNCTION: {"name": name, "arguments": arguments}}]

    def take_id(self, name: object, field: str) -> str:
        """Removes the earliest call that a function's result can belong to, and returns the call's id.
        `name`: the function's name in the result, if there is one. Raises InvalidValue if there is no such
        call."""
        for index, (call_id, function_name) in enumerate(self._pending_calls):
            if name is None or name == function_name:
                del self._pending_calls[index]
                return call_id
        if not isinstance(name, str | None):
            raise InvalidValue(
                f"{field}.name must be a text; got {describe_value(name)}", param=f"{field}.name"
            )
        suffix = "" if name is None else f" of {sanitize_key(name)}"
        raise InvalidValue(
            f"{field}.role function: no function_call{suffix} before it waits for a result; send role tool "
            "with tool_call_id for a tool's result",
            param=f"{field}.role",
        )


def _read_call(call: Mapping[str, Any], field: str) -> tuple[str, str | dict[str, Any]]:
    """Returns the function's name and the arguments of a call. Raises a RequestError."""
    for member in call:
        if member not in CALL_FIELDS:
            path = f"{field}.{sanitize_key(member)}"
            raise UnknownParameter(f"unknown field {path}", param=path)
    name, arguments = call.get("name"), call.get("arguments") or ""
    if name is None:
        raise MissingParameter(f"{field}.name is missing", param=f"{field}.name")
    if not isinstance(name, str):
        raise InvalidValue(f"{field}.name must be a text; got {describe_value(name)}", param=f"{field}.name")
    require_function_name(name, f"{field}.name")
    if not isinstance(arguments, str | dict):
        raise InvalidValue(
            f"{field}.arguments must be a text or an object; got {describe_value(arguments)}",
            param=f"{field}.arguments",
        )
    if isinstance(arguments, dict):
        require_shallow(arguments, f"{field}.arguments")
    return name, arguments


def _require_role(role: object, field: str) -> None:
    """Raises InvalidValue for a role that no message has."""
    if role not in ROLES:
        *names, last_name = sorted(ROLES)
        raise InvalidValue(
            f"{field}.role must be {', '.join(names)} or {last_name}; got {describe_value(role)}",
            param=f"{field}.role",
        )


def _normalize_message(
    message: object, field: str, function_calls: FunctionCalls, report: FieldReport
) -> object:
    """Returns one message in OpenAI's form."""
    if not isinstance(message, dict):
        return message
    message = {name: value for name, value in message.items() if value is not None}
    role = message.setdefault("role", _infer_role(message))
    _require_role(role, field)
    if "function_call" in message:
        message["tool_calls"] = function_calls.add(message, field)
        del message["function_call"]
    if role == FUNCTION:
        if "tool_call_id" in message:
            path = f"{field}.tool_call_id"
            raise InvalidValue(f"{path} is taken only in messages of the role tool", param=path)
        call_id = function_calls.take_id(message.pop("name", None), field)
        message |= {"role": "tool", "tool_call_id": call_id}
    content = message.get("content")
    if isinstance(content, dict):
        message["content"] = content = [content]
    if isinstance(content, list):
        message["content"] = [
            _normalize_part(part, f"{field}.content[{index}]", report) for index, part in enumerate(content)
        ]
    return message


def _infer_role(message: Mapping[str, Any]) -> str:
    if "tool_call_id" in message:
        return "tool"
    return "assistant" if message.get("tool_calls") or "function_call" in message else "user"


def _normalize_part(part: object, field: str, report: FieldReport) -> object:
    """Returns one part of a content. The media type of an image is moved into its URL."""
    image = part.get("image_url") if isinstance(part, dict) else None
    if not isinstance(part, dict) or not isinstance(image, dict) or "media_type" not in image:
        return part
    image_fields = {name: value for name, value in image.items() if name != "media_type"}
    url, media_type = image.get("url"), image["media_type"]
    if isinstance(url, str) and media_type is not None:
        image_fields["url"] = _complete_url(url, media_type, f"{field}.image_url.media_type", report)
    return part | {"image_url": image_fields}


def _complete_url(url: str, media_type: object, field: str, report: FieldReport) -> str:
    """Returns the URL of an image with its media type. Raises InvalidValue for an unknown media type, and for
    one that contradicts the URL."""
    if not isinstance(media_type, str) or IMAGE_TYPES.get(media_type) != media_type:
        raise InvalidValue(
            f"{field} must be image/png, image/jpeg, image/gif or image/webp; got "
            f"{describe_value(media_type)}",
            param=field,
        )
    scheme = SCHEME.match(url)
    if scheme is None:
        return f"{DATA}{media_type}{BASE64_MARK}{url}"
    if scheme[1].lower() != "data":
        report.paths.append(field)
        return url
    url_type = url[len(DATA) : max(url.find(","), len(DATA))].partition(";")[0].lower()
    if not url_type:
        return f"{DATA}{media_type}{url[len(DATA) :]}"
    if IMAGE_TYPES.get(url_type, url_type) != media_type:
        raise InvalidValue(
            f"{field} is {media_type}, but the data: URL has {sanitize_key(url_type)}; send one of them",
            param=field,
        )
    return url


def filter_chat(fields: dict[str, Any], report: FieldReport) -> dict[str, Any]:
    """Filters the body of a chat, with the caller's additions to it."""
    merged_body = merge_extra_params(fields, TABLES[SgpScope.CHAT], openai_types.ChatCompletionRequest)
    accepted_fields = filter_fields(merged_body.fields, SgpScope.CHAT, report=report)
    filter_stream_options(accepted_fields, report)
    return filter_tools(filter_messages(normalize_messages(accepted_fields, report), report), report)


def filter_text(fields: dict[str, Any], report: FieldReport) -> dict[str, Any]:
    """Filters the body of a text completion, with the caller's additions to it."""
    merged_body = merge_extra_params(fields, TABLES[SgpScope.TEXT], openai_types.CompletionRequest)
    accepted_fields = filter_fields(merged_body.fields, SgpScope.TEXT, report=report)
    filter_stream_options(accepted_fields, report)
    return accepted_fields


CHAT_BODY = BodyDecoder(
    SgpChatCompletionRequest,
    FIELD_TABLE,
    SgpScope.CHAT,
    filter_chat,
    lambda wire: wire.inference_extra_params is not None or has_ignored_parts(wire),
)
TEXT_BODY = BodyDecoder(
    SgpCompletionRequest,
    FIELD_TABLE,
    SgpScope.TEXT,
    filter_text,
    lambda wire: wire.inference_extra_params is not None,
)


def decode_chat(body: bytes, report_unknown: bool = False, strict: bool = False) -> GenerationCall:
    """Decodes a body of POST chat/completions. `report_unknown`: unknown fields are ignored and named instead
    of refused. `strict`: a schema with a keyword that is not enforced is refused. Raises a RequestError."""
    wire, report = CHAT_BODY.decode(body, report_unknown)
    v1_values, unknown_fields = _read_extra_params(
        wire, TABLES[SgpScope.CHAT], openai_types.ChatCompletionRequest
    )
    max_tokens = _read_max_tokens(wire, report)
    known_format, dialect_constraints = _read_formats(wire, strict)
    fields = _get_fields(wire, SAME_CHAT_FIELDS) | v1_values
    openai_request = openai_types.ChatCompletionRequest(
        max_tokens=max_tokens, response_format=known_format, **fields
    )
    call = build_chat_call(openai_request, report.names, strict, dialect_constraints)
    return _add_inference_fields(call, wire, unknown_fields)


def decode_text(body: bytes, report_unknown: bool = False, strict: bool = False) -> GenerationCall:
    """Decodes a body of POST completions. The parameters are those of `decode_chat`."""
    wire, report = TEXT_BODY.decode(body, report_unknown)
    v1_values, unknown_fields = _read_extra_params(
        wire, TABLES[SgpScope.TEXT], openai_types.CompletionRequest
    )
    max_tokens = _read_max_tokens(wire, report)
    known_format, dialect_constraints = _read_formats(wire, strict)
    fields = _get_fields(wire, SAME_TEXT_FIELDS) | v1_values
    openai_request = openai_types.CompletionRequest(
        prompt=wire.prompt,
        suffix=wire.suffix,
        stop=_join_stops(wire),
        max_tokens=max_tokens,
        logprobs=_read_logprobs(wire),
        response_format=known_format,
        **fields,
    )
    call = build_text_call(openai_request, report.names, strict, dialect_constraints)
    return _add_inference_fields(call, wire, unknown_fields)


def _read_extra_params(
    wire: SgpCommonRequest, dialect_fields: Collection[str], shape: type[openai_types.CommonRequest]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the added fields that only `/v1` has, and those that this server does not know. The dialect's
    own fields are already in the body."""
    if wire.inference_extra_params is None:
        return {}, {}
    merged_body = merge_extra_params({EXTRA_PARAMS: wire.inference_extra_params}, dialect_fields, shape)
    return merged_body.v1_values, merged_body.unknown_fields


def _get_fields(wire: SgpCommonRequest, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(wire, name) for name in names}


def _read_max_tokens(wire: SgpCommonRequest, report: FieldReport) -> int | None:
    """Returns the most tokens of a choice; None if the caller sent no limit. Reports the other limits as
    ignored."""
    limits = {name: value for name in LIMIT_FIELDS if (value := getattr(wire, name, None)) is not None}
    report.paths += list(limits)[1:]
    return next(iter(limits.values()), None)


def _read_logprobs(wire: SgpCompletionRequest) -> int | None:
    """Returns the requested number of likeliest tokens; None without log-probabilities."""
    if wire.logprobs or wire.return_token_log_probs:
        return wire.top_logprobs or 0
    if wire.top_logprobs:
        raise InvalidValue("top_logprobs is taken only together with logprobs: true", param="top_logprobs")
    return None


def _join_stops(wire: SgpCompletionRequest) -> list[str]:
    """Returns the stop strings of `stop` and `stop_sequences`. Raises InvalidValue for too many."""
    stops = [wire.stop] if isinstance(wire.stop, str) else list(wire.stop or ())
    stops = list(dict.fromkeys((*stops, *(wire.stop_sequences or ()))))
    if len(stops) > MAX_STOPS:
        raise InvalidValue(
            f"stop_sequences and stop must hold at most {MAX_STOPS} texts together", param="stop_sequences"
        )
    return stops


def _read_formats(
    wire: SgpCommonRequest, strict: bool
) -> tuple[openai_types.ResponseFormat | None, list[RelaxedConstraint]]:
    """Returns the response format in the form of `/v1`, or the constraint of a format that is itself a
    schema. Raises a RequestError, also for two guided fields."""
    sent_fields = [name for name in GUIDED_FIELDS if getattr(wire, name) is not None]
    if len(sent_fields) > 1:
        raise InvalidValue(f"Only one of {', '.join(GUIDED_FIELDS)} can be enabled.", param=sent_fields[1])
    response_format = wire.response_format
    if response_format is None:
        return None, []
    type_ = response_format.get("type")
    if isinstance(type_, str) and type_ not in FORMATS and type_ not in SCHEMA_TYPES:
        raise InvalidValue(
            f"response_format.type must be {', '.join(FORMATS)}, or the type of a JSON Schema; got "
            f"{sanitize_key(type_)}",
            param="response_format.type",
        )
    if type_ not in FORMATS:
        return None, [read_schema(response_format, "response_format", strict)]
    return convert({"response_format": response_format}, KnownFormat).response_format, []


def _add_inference_fields(
    call: GenerationCall, wire: SgpCommonRequest, extra_params: dict[str, Any]
) -> GenerationCall:
    """Returns the call with the caller's timeout and additions to a vendor's request. Raises a
    RequestError."""
    seconds = wire.inference_timeout
    vendor_options = replace(
        call.request.vendor_options,
        extra_params=extra_params,
        extra_headers=read_extra_headers(wire.inference_extra_headers or {}),
    )
    timeout = None if seconds is None else read_inference_timeout(seconds)
    return replace(call, request=replace(call.request, vendor_options=vendor_options, timeout=timeout))
