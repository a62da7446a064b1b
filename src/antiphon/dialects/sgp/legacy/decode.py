"""Decodes a body of the older API to a generation request, with SGP's defaults."""

from collections.abc import Mapping
from typing import Any

from antiphon.dialects.base import NO_ATTRIBUTION, Attribution, GenerationCall
from antiphon.dialects.common.field_table import FieldReport
from antiphon.dialects.common.media import read_image, read_image_data
from antiphon.dialects.common.memory import read_memory
from antiphon.dialects.common.request_types import ImageUrlShape
from antiphon.dialects.common.sampling import require_no_nul
from antiphon.dialects.common.strict_json import convert, read_object
from antiphon.dialects.sgp.legacy.fields import LegacyScope, filter_fields
from antiphon.dialects.sgp.legacy.wire_types import (
    LegacyChatRequest,
    LegacyMessage,
    LegacyModelParameters,
    LegacyPart,
    LegacyRequest,
    LegacyTextRequest,
)
from antiphon.domain.messages import Content, Message, Role, TextContent
from antiphon.domain.request import Conversation, GenerationRequest, Output, Prompt, RawPrompt, Reasoning
from antiphon.domain.sampling import SamplingOptions
from antiphon.domain.values import replace
from antiphon.errors import InvalidValue

TEMPERATURE = 0.2
"""The product's default of temperature. It overrides a model's own default."""

ACCOUNT = "account_id"
"""The name of the field, and of the tag in the records of usage."""

HIDDEN_REASONING = Reasoning(shown=False)
"""Hides the reasoning, because the older API's answers have no field for it."""

NO_PARAMETERS = LegacyModelParameters()

KINDS = ("text", "image_url", "image_data")
"""The types of a content part. Each is also the name of the field with the part's value."""

INNER_SCOPES: Mapping[LegacyScope, Mapping[str, LegacyScope]] = {
    LegacyScope.CHAT: {"model_parameters": LegacyScope.PARAMETERS, "messages": LegacyScope.MESSAGE},
    LegacyScope.TEXT: {"model_parameters": LegacyScope.PARAMETERS, "images": LegacyScope.PROMPT_IMAGE},
    LegacyScope.MESSAGE: {"content": LegacyScope.PART},
    LegacyScope.PART: {"image_url": LegacyScope.IMAGE_URL, "image_data": LegacyScope.IMAGE_DATA},
}
"""The scopes of nested objects, or lists of objects, by the field that contains them."""


def decode_legacy_chat(body: bytes, report_unknown: bool = False) -> GenerationCall:
    """Decodes a body of POST /sgp/v4/chat-completions. `report_unknown`: unknown fields are ignored and named
    instead of refused. Raises a RequestError."""
    field_report = FieldReport(report_unknown)
    fields = _filter_object(read_object(body), LegacyScope.CHAT, "", field_report)
    wire = convert(fields, LegacyChatRequest)
    messages = [_build_message(message, f"messages[{index}]") for index, message in enumerate(wire.messages)]
    if wire.instructions:
        messages.insert(0, Message(Role.SYSTEM, wire.instructions))
    prompt = Conversation(tuple(messages), template=wire.chat_template, reasoning=HIDDEN_REASONING)
    call = _build_call(wire, prompt, field_report)
    if wire.memory_strategy is None:
        return call
    return replace(call, request=replace(call.request, memory=read_memory(wire.memory_strategy)))


def decode_legacy_text(body: bytes, report_unknown: bool = False) -> GenerationCall:
    """Decodes a body of POST /sgp/v4/completions. `report_unknown`: see `decode_legacy_chat`. Raises a
    RequestError."""
    field_report = FieldReport(report_unknown)
    fields = _filter_object(read_object(body), LegacyScope.TEXT, "", field_report)
    wire = convert(fields, LegacyTextRequest)
    return _build_call(wire, _build_prompt(wire), field_report)


def _filter_object(
    fields: dict[str, Any], scope: LegacyScope, prefix: str, report: FieldReport
) -> dict[str, Any]:
    """Returns the object with its fields filtered, including nested objects. `prefix`: its path."""
    accepted_fields = filter_fields(fields, scope, prefix, report)
    for name, inner_scope in INNER_SCOPES.get(scope, {}).items():
        if name in accepted_fields:
            accepted_fields[name] = _filter_inner(
                accepted_fields[name], inner_scope, f"{prefix}{name}", report
            )
    return accepted_fields


def _filter_inner(value: object, scope: LegacyScope, path: str, report: FieldReport) -> object:
    """Returns the object, or the list of objects, with all fields filtered. Other values stay unchanged."""
    if isinstance(value, dict):
        return _filter_object(value, scope, f"{path}.", report)
    if not isinstance(value, list):
        return value
    return [
        _filter_object(item, scope, f"{path}[{index}].", report) if isinstance(item, dict) else item
        for index, item in enumerate(value)
    ]


def _build_message(message: LegacyMessage, path: str) -> Message:
    """Converts one message. Raises a RequestError."""
    role = Role(message.role or Role.USER)
    if isinstance(message.content, str):
        return Message(role, message.content)
    if role is not Role.USER:
        raise InvalidValue(
            f"{path}.content must be a text in a message of the role {role}; only a user's message "
            "can have a list",
            param=f"{path}.content",
        )
    parts = tuple(_build_part(part, f"{path}.content[{index}]") for index, part in enumerate(message.content))
    return _build_user_message(parts)


def _build_user_message(parts: tuple[Content, ...]) -> Message:
    """Builds a user message. If all parts are text, they become one text."""
    text = "".join(part.text for part in parts if isinstance(part, TextContent))
    has_images = not all(isinstance(part, TextContent) for part in parts)
    return Message(Role.USER, text, content=parts if has_images else ())


def _build_part(part: LegacyPart, path: str) -> Content:
    """Converts one part of a content. Raises a RequestError."""
    kinds = [kind for kind in KINDS if getattr(part, kind) is not None]
    if len(kinds) != 1:
        raise InvalidValue(f"{path} must have exactly one of text, image_url and image_data", param=path)
    if part.type not in (None, *kinds):
        raise InvalidValue(
            f"{path}.type must be {kinds[0]}, as the part has {kinds[0]}", param=f"{path}.type"
        )
    if part.image_url is not None:
        shape = ImageUrlShape(part.image_url.url, part.image_url.detail)
        return read_image(shape, f"{path}.image_url")
    if part.image_data is not None:
        image = part.image_data
        return read_image_data(image.data, image.media_type, image.detail, f"{path}.image_data")
    return TextContent(part.text or "")


def _build_prompt(wire: LegacyTextRequest) -> Prompt:
    """Builds the prompt. With images it is a user message, because a raw prompt cannot contain images."""
    if not wire.images:
        return RawPrompt(wire.prompt)
    images = tuple(
        read_image(ImageUrlShape(image.image_url, image.detail), f"images[{index}]", "image_url")
        for index, image in enumerate(wire.images)
    )
    message = _build_user_message((*images, TextContent(wire.prompt)))
    return Conversation((message,), reasoning=HIDDEN_REASONING)


def _build_call(wire: LegacyRequest, prompt: Prompt, report: FieldReport) -> GenerationCall:
    """Builds the call, with SGP's defaults."""
    parameters = wire.model_parameters or NO_PARAMETERS
    sampling = SamplingOptions(
        temperature=TEMPERATURE if parameters.temperature is None else parameters.temperature,
        top_p=parameters.top_p,
        top_k=parameters.top_k,
        presence_penalty=parameters.presence_penalty,
        frequency_penalty=parameters.frequency_penalty,
    )
    output = Output(max_tokens=parameters.max_tokens, stop=tuple(parameters.stop_sequences or ()))
    return GenerationCall(
        GenerationRequest(wire.model, (prompt,), sampling, output),
        bool(wire.stream),
        include_usage=True,
        ignored=report.names,
        attribution=_read_account(wire.account_id),
    )


def _read_account(account: str | None) -> Attribution:
    """Reads the account, which becomes a tag in the records of usage. Raises InvalidValue."""
    if account is None:
        return NO_ATTRIBUTION
    require_no_nul(ACCOUNT, account)
    return Attribution(tags={ACCOUNT: account}, fields=(ACCOUNT,))
