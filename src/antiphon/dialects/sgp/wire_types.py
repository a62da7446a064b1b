"""The JSON types of Scale's requests, answers and errors. Parts with the same meaning in OpenAI's format use
OpenAI's types."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from antiphon.dialects.common.request_types import (
    MAX_MESSAGES,
    MAX_STOPS,
    MAX_TOOLS,
    BestOf,
    Bias,
    BodyShape,
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

MOST_ALTERNATIVES = 20
"""The most alternatives at each position, as on the page."""

Alternatives = Annotated[int, Meta(ge=0, le=MOST_ALTERNATIVES)]


class SgpCommonRequest(BodyShape, frozen=True, kw_only=True):
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


class SgpChatCompletionRequest(SgpCommonRequest, frozen=True, kw_only=True):
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


class SgpCompletionRequest(SgpCommonRequest, frozen=True, kw_only=True):
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
