"""The JSON types of Scale's requests, answers and errors, and the encoding of errors and ends of streams.

Parts with the same meaning in OpenAI's format use OpenAI's types, and answers have OpenAI's form. A stream
has no `[DONE]`, because Scale's client parses every event without a name as a chunk.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from antiphon.dialects.common.chunks import OpenAIStreamEncoder, Part
from antiphon.dialects.common.request_types import (
    MAX_MESSAGES,
    MAX_STOPS,
    MAX_TOOLS,
    BestOf,
    Bias,
    ChatMessage,
    Choices,
    Effort,
    EndUser,
    ExtraHeaders,
    ExtraParams,
    Fraction,
    MemoryShape,
    Modalities,
    Name,
    Penalty,
    PositiveInt,
    PredictionShape,
    RagParams,
    Seconds,
    Seed,
    SpeechShape,
    Stop,
    StopText,
    StreamOptions,
    Tags,
    Temperature,
    TemplateSource,
    TemplateValues,
    ToolChoiceShape,
    ToolShape,
    TopK,
)
from antiphon.dialects.common.request_types import ResponseFormat as OpenAIFormat
from antiphon.dialects.common.response_types import ChatLogprobs, Completion, TextChoice
from antiphon.errors import AntiphonError, MalformedBody, RequestError
from antiphon.validation_messages import STEP

MOST_ALTERNATIVES = 20
"""The most alternatives at each position, as on the page."""

Alternatives = Annotated[int, Meta(ge=0, le=MOST_ALTERNATIVES)]


class SgpCommonRequest(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The fields that chat and text completions share."""

    model: Name
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    include_stop_str_in_output: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: Stop | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: Bias | None = None
    logprobs: bool | None = None
    top_logprobs: Alternatives | None = None
    max_tokens: PositiveInt | None = None
    max_completion_tokens: PositiveInt | None = None
    n: Choices | None = None
    best_of: BestOf | None = None
    seed: Seed | None = None
    temperature: Temperature | None = None
    top_p: Fraction | None = None
    top_k: TopK | None = None
    response_format: dict[str, Any] | None = None
    user: EndUser | None = None
    metadata: Tags | None = None
    inference_timeout: Seconds | None = None
    inference_extra_params: ExtraParams | None = None
    inference_extra_headers: ExtraHeaders | None = None


class SgpChatCompletionRequest(SgpCommonRequest, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Body of POST /sgp/v4/beta/chat/completions."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
    chat_template: TemplateSource | None = None
    chat_template_kwargs: TemplateValues | None = None
    guided_decoding_backend: Literal["outlines", "lm-format-enforcer"] | None = None
    guided_whitespace_pattern: str | None = None
    tools: Annotated[list[ToolShape], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoiceShape | None = None
    parallel_tool_calls: bool | None = None
    memory_strategy: MemoryShape | None = None
    rag_params: RagParams | None = None
    modalities: Modalities | None = None
    audio: SpeechShape | None = None
    prediction: PredictionShape | None = None
    reasoning_effort: Effort | None = None


class SgpCompletionRequest(SgpCommonRequest, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Body of POST /sgp/v4/beta/completions."""

    prompt: str
    """An empty prompt means the model's start token."""
    suffix: str | None = None
    max_new_tokens: PositiveInt | None = None
    return_token_log_probs: bool | None = None
    stop_sequences: Annotated[list[StopText], Meta(max_length=MAX_STOPS)] | None = None


class KnownFormat(Struct, frozen=True):
    """A response format that is not itself a schema, in its field."""

    response_format: OpenAIFormat


class SgpTextChoice(TextChoice, frozen=True, kw_only=True):
    """One choice of a text completion, whole or in part."""

    logprobs: ChatLogprobs | None = None  # type: ignore[assignment]
    """The tokens as a list of entries, as in a chat."""


class SgpCompletion(Completion, frozen=True, kw_only=True):
    """Buffered answer of a text completion; also one event of a streamed one."""

    choices: list[SgpTextChoice]  # type: ignore[assignment]


class SgpProblem(Struct, frozen=True):
    """One wrong value of a request."""

    loc: list[str | int]
    """The path: `body` or `header`, then the path of the field."""
    msg: str
    type: str


class SgpError(Struct, frozen=True):
    """Body of every error response: a list of problems for status 422, a text for any other status."""

    detail: list[SgpProblem] | str


class SgpStreamError(Struct, frozen=True):
    """Data of the event `error`, which ends a broken stream."""

    detail: list[SgpProblem] | str
    status_code: int
    """The status that the error would have as a response."""


_encode = msgspec.json.Encoder().encode

QUERY = "query"
"""The start of a query parameter's path, such as `query.page`."""

BAD_REQUEST, UNPROCESSABLE = 400, 422

ERROR_TYPES: Mapping[str, str] = MappingProxyType(
    {
        "invalid_json": "json_invalid",
        "invalid_value": "value_error",
        "missing_required_parameter": "missing",
        "unknown_parameter": "extra_forbidden",
    }
)
"""FastAPI's type of a problem, by the error's code. Other errors keep their code."""

PROJECT, ACCOUNT = "x-project-id", "x-selected-account-id"
"""The header that selects a project, and Scale's name of it."""

HEADER_NAMES: Mapping[str, str] = MappingProxyType(
    {"authorization": "x-api-key", PROJECT: ACCOUNT, "x-user-id": "x-user-id"}
)
"""Scale's name of each header in an error."""


class SgpStreamEncoder(OpenAIStreamEncoder[Part]):
    """Encodes one stream. It ends without a mark, or with an event `error`."""

    def end(self) -> bytes:
        return b""

    def encode_error(self, error: AntiphonError) -> bytes:
        return encode_stream_error(error)


def encode_stream_error(error: AntiphonError) -> bytes:
    """Encodes the event `error`, which ends a broken stream."""
    data = _encode(SgpStreamError(_build_detail(error), map_status(error)))
    return b"event: error\ndata: %b\n\n" % data


def map_status(error: AntiphonError) -> int:
    """Returns the error's status: 422 for a wrong body or field, otherwise the error's own."""
    is_wrong_field = (
        isinstance(error, RequestError) and error.status == BAD_REQUEST and error.param is not None
    )
    return UNPROCESSABLE if is_wrong_field or isinstance(error, MalformedBody) else error.status


def encode_sgp_error(error: AntiphonError) -> bytes:
    """Encodes an error in FastAPI's form."""
    return _encode(SgpError(_build_detail(error)))


def _build_detail(error: AntiphonError) -> list[SgpProblem] | str:
    """Builds the list of problems for status 422, otherwise a text."""
    header, message = HEADER_NAMES.get(error.param or ""), error.message
    if header == ACCOUNT:
        message = re.sub(PROJECT, ACCOUNT, message, flags=re.IGNORECASE)
    if map_status(error) != UNPROCESSABLE:
        return message if header is None else f"{header}: {message}"
    path: list[str | int] = ["header", header] if header else _split_path(error.param or "")
    full_path = path if header or path[:1] == [QUERY] else ["body", *path]
    return [SgpProblem(full_path, message, ERROR_TYPES.get(error.code, error.code))]


def _split_path(path: str) -> list[str | int]:
    """Splits the path of a field: `messages[0].role` becomes `messages`, 0 and `role`."""
    return [int(index) if index else name for name, index in STEP.findall(path)]
