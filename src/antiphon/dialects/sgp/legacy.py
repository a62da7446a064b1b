"""Scale's older API: its fields, wire types, decoding, encoding and endpoints.

It has chats and text completions with one choice. Their options are in `model_parameters`. Wire types are
those of the product's client. The last event of a stream contains the finish reason and the usage. Nothing
follows it, because the client parses every event as an answer.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field

from antiphon.dialects.base import Endpoint
from antiphon.dialects.calls import NO_ATTRIBUTION, Attribution, GenerationCall
from antiphon.dialects.common.body_decoder import BodyDecoder
from antiphon.dialects.common.decode import read_sampling, require_no_nul
from antiphon.dialects.common.encode import FINISH_NAMES
from antiphon.dialects.common.endpoints import declare_generation
from antiphon.dialects.common.field_table import FieldReport, FieldTable
from antiphon.dialects.common.media_parts import read_image, read_image_data
from antiphon.dialects.common.memory_strategy import read_memory
from antiphon.dialects.common.request_types import MAX_MESSAGES, BodyShape, ImageUrlShape, Memory
from antiphon.dialects.common.response_types import FinishName
from antiphon.dialects.http_types import StreamEncoder
from antiphon.dialects.services import ResponseMeta
from antiphon.dialects.sgp.encode import encode_stream_error
from antiphon.domain import fields
from antiphon.domain.collect import CollectedGeneration
from antiphon.domain.events import Event, Finished, FinishReason, TextDelta, Usage, UsageSource
from antiphon.domain.fields import LONGEST_TEXT, MAX_STOPS, Fraction, Name, Need, PositiveInt, StopText
from antiphon.domain.messages import Content, Message, Role, TextContent
from antiphon.domain.request import (
    Conversation,
    GenerationRequest,
    Output,
    Prompt,
    RawPrompt,
    Reasoning,
)
from antiphon.domain.values import replace
from antiphon.errors import AntiphonError, InvalidValue

MAX_PARTS = 1024
"""The most parts of one content, and the most images of one prompt. No model takes as many images."""

AccountId = Annotated[str, Meta(min_length=1, max_length=LONGEST_TEXT)]
Detail = Annotated[
    Literal["auto", "low", "high"] | None,
    Need.VISION,
    "How closely the model looks at the image: auto, low or high.",
]
ImageUrl = Annotated[str, "A data: URL with base64, or an https: address, as at /v1."]


DEFAULTS: Mapping[str, float] = {"temperature": 0.2}
"""The product's defaults of sampling options. They override a model's own defaults."""

ACCOUNT = "account_id"
"""The name of the field, and of the tag in the records of usage."""

HIDDEN_REASONING = Reasoning(shown=False)
"""Hides the reasoning, because the older API's answers have no field for it."""

KINDS = ("text", "image_url", "image_data")
"""The types of a content part. Each is also the name of the field with the part's value."""

_encode = msgspec.json.Encoder().encode


class LegacyImageUrl(BodyShape, frozen=True):
    """An image as a data: URL, or as an address that only a vendor opens."""

    url: ImageUrl
    detail: Detail = None


class LegacyImageData(BodyShape, frozen=True):
    """An image in base64."""

    data: Annotated[str, Need.VISION, "The image in base64."]
    media_type: Annotated[str, "image/png, image/jpeg, image/gif or image/webp."]
    detail: Detail = None
    type: Annotated[Literal["base64"] | None, "base64."] = None


class LegacyPart(BodyShape, frozen=True):
    """A part of a content. It has one of three values; `type` names it and can be missing."""

    type: Annotated[
        Literal["text", "image_url", "image_data"] | None,
        "text, image_url or image_data; you can leave it out.",
    ] = None
    text: Annotated[str | None, "The text of a text part."] = None
    image_url: Annotated[LegacyImageUrl | None, Need.VISION, "An image by its address."] = None
    image_data: Annotated[LegacyImageData | None, "An image in base64."] = None


class LegacyMessage(BodyShape, frozen=True, kw_only=True):
    """One turn of the conversation."""

    role: Annotated[
        Literal["user", "assistant", "system"] | None,
        "user, assistant or system; user by default.",
    ] = None
    content: Annotated[
        str | Annotated[list[LegacyPart], Meta(min_length=1, max_length=MAX_PARTS)],
        "The text, or a list of parts in a message of the user.",
    ]


class LegacyModelParameters(BodyShape, frozen=True, kw_only=True):
    """The options of a generation."""

    temperature: Annotated[
        Fraction | None,
        "0 to 1, 0.2 by default. 0 always takes the most likely token.",
    ] = None
    max_tokens: Annotated[
        PositiveInt | None,
        "Most tokens of the answer; the rest of the context by default.",
    ] = None
    stop_sequences: Annotated[
        Annotated[list[StopText], Meta(max_length=MAX_STOPS)] | None,
        "Texts that end the answer, at most four. They are not part of its text.",
    ] = None
    top_k: Annotated[PositiveInt | None, "Only the k most likely tokens."] = field(default=None, name="topK")
    top_p: Annotated[
        Fraction | None,
        "Only the most likely tokens whose probabilities add up to this; 0 to 1.",
    ] = field(default=None, name="topP")
    frequency_penalty: Annotated[
        fields.FrequencyPenalty,
        "Subtracted from a token's logit for each time that it is in the output; -2 to 2.",
    ] = None
    presence_penalty: Annotated[
        fields.PresencePenalty,
        "Subtracted from the logit of each token that is in the output; -2 to 2.",
    ] = None


class LegacyRequest(BodyShape, frozen=True, kw_only=True):
    """The fields that both endpoints share."""

    model: Annotated[Name, "Name of a model."]
    account_id: Annotated[
        AccountId | None,
        "The tag account_id in the records of usage. It does not choose the project; "
        "the key "
        "does. Ignored without keys.",
    ] = None
    model_parameters: Annotated[LegacyModelParameters | None, "The options of the generation."] = None
    stream: fields.Stream = None


class LegacyChatRequest(LegacyRequest, frozen=True, kw_only=True):
    """Body of POST /sgp/v4/chat-completions."""

    messages: Annotated[
        Annotated[list[LegacyMessage], Meta(min_length=1, max_length=MAX_MESSAGES)],
        Need.TEMPLATE,
        "The conversation so far.",
    ]
    chat_template: Annotated[
        fields.ChatTemplate,
        "A Jinja template instead of the model's, if the operator set `request_templates`.",
    ] = None
    instructions: Annotated[str | None, "A system message before the conversation."] = None
    memory_strategy: Memory = None


class LegacyPromptImage(BodyShape, frozen=True):
    """An image of a text completion, as a data: URL or an address that only a vendor opens."""

    image_url: Annotated[ImageUrl, Need.VISION]
    detail: Detail = None


class LegacyTextRequest(LegacyRequest, frozen=True, kw_only=True):
    """Body of POST /sgp/v4/completions."""

    prompt: Annotated[str, "The text to continue. With images, it is the text of a user's message."]
    images: Annotated[
        Annotated[list[LegacyPromptImage], Meta(max_length=MAX_PARTS)] | None,
        Need.VISION,
        "Images for a model that accepts them. They and the prompt become one message of the user.",
    ] = None


class LegacyUsage(Struct, frozen=True):
    """The number of tokens of the request."""

    prompt: int
    completion: int
    total: int


class LegacyAnswerMessage(Struct, frozen=True, kw_only=True):
    """The assistant's message; in a stream, more of its text."""

    role: Literal["assistant"] = "assistant"
    content: str


class LegacyChatChoice(Struct, frozen=True, kw_only=True):
    """The only choice of a chat."""

    message: LegacyAnswerMessage
    finish_reason: FinishName | None
    """In a stream, null until the last event."""


class LegacyChatAnswer(Struct, frozen=True, kw_only=True):
    """Answer of a chat, and one event of its stream."""

    chat_completion: LegacyChatChoice
    token_usage: LegacyUsage | None
    """In a stream, null until the last event. Null too if a vendor tells none."""


class LegacyTextChoice(Struct, frozen=True, kw_only=True):
    """The only choice of a text completion."""

    text: str
    """The text; in a stream, more of it."""
    finish_reason: FinishName | None
    """In a stream, null until the last event."""


class LegacyTextAnswer(Struct, frozen=True, kw_only=True):
    """Answer of a text completion, and one event of its stream."""

    completion: LegacyTextChoice
    token_usage: LegacyUsage | None
    """In a stream, null until the last event. Null too if a vendor tells none."""


class LegacyScope(StrEnum):
    """The object that contains a field."""

    CHAT = "/sgp/v4/chat-completions"
    TEXT = "/sgp/v4/completions"
    PARAMETERS = "model_parameters of the older API"
    MESSAGE = "message of the older API"
    PART = "content part of the older API"
    IMAGE_URL = "image_url of the older API"
    IMAGE_DATA = "image_data of the older API"
    PROMPT_IMAGE = "image of /sgp/v4/completions"


SHAPES: Mapping[str, type[Struct]] = {
    LegacyScope.CHAT: LegacyChatRequest,
    LegacyScope.TEXT: LegacyTextRequest,
    LegacyScope.PARAMETERS: LegacyModelParameters,
    LegacyScope.MESSAGE: LegacyMessage,
    LegacyScope.PART: LegacyPart,
    LegacyScope.IMAGE_URL: LegacyImageUrl,
    LegacyScope.IMAGE_DATA: LegacyImageData,
    LegacyScope.PROMPT_IMAGE: LegacyPromptImage,
}

FIELD_TABLE = FieldTable(SHAPES, (), endpoints=(LegacyScope.CHAT, LegacyScope.TEXT))
filter_fields = FIELD_TABLE.filter

NO_PARAMETERS = LegacyModelParameters()

INNER_SCOPES: Mapping[LegacyScope, Mapping[str, LegacyScope]] = {
    LegacyScope.CHAT: {"model_parameters": LegacyScope.PARAMETERS, "messages": LegacyScope.MESSAGE},
    LegacyScope.TEXT: {"model_parameters": LegacyScope.PARAMETERS, "images": LegacyScope.PROMPT_IMAGE},
    LegacyScope.MESSAGE: {"content": LegacyScope.PART},
    LegacyScope.PART: {"image_url": LegacyScope.IMAGE_URL, "image_data": LegacyScope.IMAGE_DATA},
}
"""The scopes of nested objects, or lists of objects, by the field that contains them."""


CHAT_BODY = BodyDecoder(
    LegacyChatRequest,
    FIELD_TABLE,
    LegacyScope.CHAT,
    lambda fields, report: _filter_object(fields, LegacyScope.CHAT, "", report),
)
TEXT_BODY = BodyDecoder(
    LegacyTextRequest,
    FIELD_TABLE,
    LegacyScope.TEXT,
    lambda fields, report: _filter_object(fields, LegacyScope.TEXT, "", report),
)


def decode_legacy_chat(body: bytes, report_unknown: bool = False) -> GenerationCall:
    """Decodes a body of POST /sgp/v4/chat-completions. `report_unknown`: unknown fields are ignored and named
    instead of refused. Raises a RequestError."""
    wire, field_report = CHAT_BODY.decode(body, report_unknown)
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
    wire, field_report = TEXT_BODY.decode(body, report_unknown)
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
    sampling = read_sampling(parameters, defaults=DEFAULTS)
    output = Output(max_tokens=parameters.max_tokens, stop=tuple(parameters.stop_sequences or ()))
    return GenerationCall(
        GenerationRequest(wire.model, (prompt,), sampling, output, is_buffered=not wire.stream),
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


LegacyAnswer = LegacyChatAnswer | LegacyTextAnswer
AnswerBuilder = Callable[[str, FinishName | None, LegacyUsage | None], LegacyAnswer]
"""Builds an answer, or one event of a stream, from its text, its finish reason and its usage."""


def build_chat_answer(
    text: str, finish_reason: FinishName | None, usage: LegacyUsage | None
) -> LegacyChatAnswer:
    choice = LegacyChatChoice(message=LegacyAnswerMessage(content=text), finish_reason=finish_reason)
    return LegacyChatAnswer(chat_completion=choice, token_usage=usage)


def build_text_answer(
    text: str, finish_reason: FinishName | None, usage: LegacyUsage | None
) -> LegacyTextAnswer:
    """Builds the answer of a text completion."""
    return LegacyTextAnswer(
        completion=LegacyTextChoice(text=text, finish_reason=finish_reason), token_usage=usage
    )


def encode_answer(build_answer: AnswerBuilder, generation: CollectedGeneration) -> bytes:
    """Encodes a buffered answer."""
    (choice,) = generation.choices
    text = choice.text + choice.refusal
    return _encode(build_answer(text, FINISH_NAMES[choice.reason], _build_usage(generation.usage)))


class LegacyStreamEncoder(StreamEncoder):
    """Encodes one stream."""

    def __init__(self, build_answer: AnswerBuilder) -> None:
        self._build_answer = build_answer
        self._finish_reason = FinishReason.STOP
        """The finish reason, from the choice's end until the usage."""

    def encode(self, event: Event) -> bytes:
        if isinstance(event, TextDelta):
            return self._encode_event(event.text)
        if isinstance(event, Finished):
            self._finish_reason = event.reason
        if isinstance(event, Usage):
            return self._encode_event("", FINISH_NAMES[self._finish_reason], _build_usage(event))
        return b""

    def end(self) -> bytes:
        return b""

    def encode_error(self, error: AntiphonError) -> bytes:
        return encode_stream_error(error)

    def _encode_event(
        self, text: str, finish_reason: FinishName | None = None, usage: LegacyUsage | None = None
    ) -> bytes:
        return b"data: %b\n\n" % _encode(self._build_answer(text, finish_reason, usage))


def _build_usage(usage: Usage) -> LegacyUsage | None:
    """Builds the usage. Returns None for an estimate."""
    if usage.source is UsageSource.ESTIMATED:
        return None
    return LegacyUsage(usage.prompt_tokens, usage.completion_tokens, usage.total_tokens)


class LegacyChatCompletions:
    """Decodes and encodes POST /sgp/v4/chat-completions."""

    shapes = (LegacyChatRequest, LegacyChatAnswer, LegacyChatAnswer)

    def __init__(self, report_unknown: bool) -> None:
        self._reports_unknown = report_unknown

    def decode(self, body: bytes) -> GenerationCall:
        return decode_legacy_chat(body, self._reports_unknown)

    def encode_answer(
        self, meta: ResponseMeta, call: GenerationCall, generation: CollectedGeneration
    ) -> bytes:
        return encode_answer(build_chat_answer, generation)

    def create_encoder(self, meta: ResponseMeta, call: GenerationCall) -> StreamEncoder:
        return LegacyStreamEncoder(build_chat_answer)


class LegacyCompletions:
    """Decodes and encodes POST /sgp/v4/completions."""

    shapes = (LegacyTextRequest, LegacyTextAnswer, LegacyTextAnswer)

    def __init__(self, report_unknown: bool) -> None:
        self._reports_unknown = report_unknown

    def decode(self, body: bytes) -> GenerationCall:
        return decode_legacy_text(body, self._reports_unknown)

    def encode_answer(
        self, meta: ResponseMeta, call: GenerationCall, generation: CollectedGeneration
    ) -> bytes:
        return encode_answer(build_text_answer, generation)

    def create_encoder(self, meta: ResponseMeta, call: GenerationCall) -> StreamEncoder:
        return LegacyStreamEncoder(build_text_answer)


def declare_legacy(dialect: str, report_unknown: bool) -> tuple[Endpoint, Endpoint]:
    """Declares both endpoints. `report_unknown`: unknown fields are ignored and named instead of refused."""
    chat, text = LegacyChatCompletions(report_unknown), LegacyCompletions(report_unknown)
    return (
        declare_generation(dialect, LegacyScope.CHAT, "Answer a conversation, in Scale's older form", chat),
        declare_generation(dialect, LegacyScope.TEXT, "Continue a text, in Scale's older form", text),
    )
