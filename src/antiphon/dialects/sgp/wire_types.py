"""The JSON types of Scale's requests, answers and errors. Parts with the same meaning in OpenAI's format use
OpenAI's types."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from antiphon.dialects.common.request_types import (
    BodyShape,
    ExtraHeaders,
    ExtraParams,
    Memory,
    Messages,
    Prediction,
    Rag,
    Seconds,
    Speech,
    StreamOptions,
    ToolChoiceShape,
    Tools,
)
from antiphon.dialects.common.request_types import ResponseFormat as OpenAIFormat
from antiphon.dialects.common.response_types import ChatLogprobs, Completion, TextChoice
from antiphon.domain import fields
from antiphon.domain.fields import MAX_STOPS, Name, Need, PositiveInt, StopText

MOST_ALTERNATIVES = 20
"""The most alternatives at each position, as on the page."""

LIMITS = "max_completion_tokens comes before max_tokens, and this before max_new_tokens."

Alternatives = Annotated[int, Meta(ge=0, le=MOST_ALTERNATIVES)]


class SgpCommonRequest(BodyShape, frozen=True, kw_only=True):
    """The fields that chat and text completions share."""

    model: Annotated[
        Name,
        "Name of a model of this server, such as VENDOR/MODEL or VENDOR/MODEL/DEPLOYMENT, or an alias.",
    ]
    guided_json: Annotated[
        fields.GuidedJson,
        "A JSON Schema, as an object or a text, for each choice. At most one of the four "
        "guided_ fields is accepted.",
    ] = None
    guided_regex: fields.GuidedRegex = None
    guided_choice: fields.GuidedChoice = None
    guided_grammar: fields.GuidedGrammar = None
    include_stop_str_in_output: Annotated[
        fields.IncludeStop, "Whether the stop text stays at the end of the choice."
    ] = None
    stream: Annotated[
        fields.Stream,
        "Whether the answer comes as server-sent events; false by default. There is no [DONE].",
    ] = None
    stream_options: Annotated[
        StreamOptions | None,
        "`include_usage`: whether a last chunk without choices has the usage. Only together with stream.",
    ] = None
    stop: fields.Stop = None
    frequency_penalty: Annotated[
        fields.FrequencyPenalty,
        "Subtracted from a token's logit for each time that it is in the output; -2 to 2.",
    ] = None
    logit_bias: fields.LogitBias = None
    logprobs: Annotated[
        bool | None,
        Need.TOKENS,
        "Whether you get each token's log-probability, before bias, penalties, temperature and cuts.",
    ] = None
    top_logprobs: Annotated[
        Alternatives | None,
        Need.TOKENS,
        "How many of the most likely tokens you get at each place, 0 to 20. Only together with logprobs.",
    ] = None
    max_tokens: Annotated[
        PositiveInt | None,
        "Most tokens of one choice. By default a chat can use the rest of the "
        "context, and a "
        f"text makes 16. {LIMITS}",
    ] = None
    max_completion_tokens: Annotated[PositiveInt | None, f"The newer name of max_tokens. {LIMITS}"] = None
    n: Annotated[fields.Choices, "Choices, 1 to 128; 1 by default."] = None
    best_of: fields.BestOf = None
    presence_penalty: Annotated[
        fields.PresencePenalty,
        "Subtracted from the logit of each token that is in the output; -2 to 2.",
    ] = None
    seed: fields.Seed = None
    temperature: Annotated[
        fields.Temperature,
        "0 to 2. 0 always takes the most likely token. The default is the model's own value, or 1.",
    ] = None
    top_p: fields.TopP = None
    top_k: fields.TopK = None
    response_format: Annotated[
        dict[str, Any] | None,
        Need.CONSTRAINTS,
        "text; json_object: any object, or one of `schema`; json_schema; any other object "
        "is a JSON Schema. A local model does not see it, and ignores its name and "
        "description. A vendor gets it unchanged.",
    ] = None
    user: fields.EndUser = None
    inference_timeout: Annotated[
        Seconds | None,
        "The most seconds of the generation, never more than the server's own limit. A "
        "longer generation ends with an error.",
    ] = None
    inference_extra_params: Annotated[
        ExtraParams | None,
        "Fields to add to the request. Fields of /v1 have their effect. Others go to"
        " the vendor if the operator allows them (`extra_params`); otherwise they "
        "are refused.",
    ] = None
    inference_extra_headers: Annotated[
        ExtraHeaders | None,
        "Headers to add to the vendor's request, if the operator allows them "
        "(`extra_headers`). Local models ignore them.",
    ] = None
    metadata: fields.Tags = None


class SgpChatCompletionRequest(SgpCommonRequest, frozen=True, kw_only=True):
    """Body of POST /sgp/v4/beta/chat/completions."""

    messages: Annotated[Messages, Need.TEMPLATE, "The conversation so far."]
    chat_template: fields.ChatTemplate = None
    chat_template_kwargs: fields.ChatTemplateKwargs = None
    guided_decoding_backend: Literal["outlines", "lm-format-enforcer"] | None = None
    guided_whitespace_pattern: Annotated[
        fields.GuidedWhitespacePattern,
        "The whitespace of guided JSON: one class of spaces, tabs and line ends, "
        "with an optional repetition, as [ \\n]{0,2}. It matches once or not at all wherever JSON "
        "allows whitespace.",
    ] = None
    tools: Tools = None
    tool_choice: Annotated[
        Literal["none", "auto", "required"] | ToolChoiceShape | None,
        Need.CONSTRAINTS,
        "Whether the model calls: auto, none, required, or one tool by its name.",
    ] = None
    modalities: fields.Modalities = None
    audio: Speech = None
    prediction: Prediction = None
    parallel_tool_calls: fields.ParallelToolCalls = None
    reasoning_effort: Annotated[
        fields.ReasoningEffort,
        "How much the model reasons, as at /v1. The product's later clients send it.",
    ] = None
    memory_strategy: Memory = None
    rag_params: Rag = None


class SgpCompletionRequest(SgpCommonRequest, frozen=True, kw_only=True):
    """Body of POST /sgp/v4/beta/completions."""

    prompt: Annotated[str, "A text. It can contain control tokens."]
    """An empty prompt means the model's start token."""
    max_new_tokens: Annotated[PositiveInt | None, f"An older name of max_tokens. {LIMITS}"] = None
    return_token_log_probs: Annotated[
        bool | None,
        "Whether you get each token's log-probability, as with logprobs.",
    ] = None
    stop_sequences: Annotated[
        Annotated[list[StopText], Meta(max_length=MAX_STOPS)] | None,
        "More texts that end a choice, in addition to stop. At most four together.",
    ] = None
    suffix: fields.Suffix = None


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
