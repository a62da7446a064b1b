"""The JSON types of Fireworks' requests, answers and errors. Parts with the same meaning in OpenAI's format
use OpenAI's types.

Types and ranges of requests are those of Fireworks' page. Its bounds are inclusive.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from antiphon.dialects.common.request_types import (
    INT32_MAX,
    MAX_IDS,
    MAX_MESSAGES,
    MAX_TOOLS,
    Bias,
    BodyShape,
    CacheKey,
    ChatMessage,
    Choices,
    EndUser,
    Fraction,
    MemoryShape,
    MirostatRate,
    MirostatTarget,
    Name,
    NamedFunction,
    NamedSchema,
    NonNegativeInt,
    Penalty,
    PositiveInt,
    PredictionShape,
    RagParams,
    Salt,
    Seed,
    Stop,
    Tags,
    Temperature,
    TokenId,
    ToolShape,
)
from antiphon.dialects.common.response_types import AssistantMessage, Delta, MaybeReferences, UsageShape

MOST_ALTERNATIVES = 5
"""The most alternatives at each position, as on the page."""

MOST_CANDIDATES = 128
"""The largest `top_k`, as on the page."""

LEAST_BUDGET = 1024
"""The smallest `thinking.budget_tokens`, as at Fireworks."""

MAX_IMAGES = 1024
"""The most images of one request. No prompt can contain as many."""

PromptText = Annotated[str, Meta(min_length=1)]
Alternatives = Annotated[int, Meta(ge=0, le=MOST_ALTERNATIVES)]
Candidates = Annotated[int, Meta(ge=1, le=MOST_CANDIDATES)]
Repetition = Annotated[float, Meta(ge=0, le=2)]
MostReasoningTokens = Annotated[int, Meta(ge=1, le=INT32_MAX)]
Budget = Annotated[int, Meta(ge=LEAST_BUDGET, le=INT32_MAX)]
Images = Annotated[list[str], Meta(max_length=MAX_IMAGES)]


class FireworksResponseFormat(BodyShape, frozen=True):
    """The form of an answer: text, any JSON object, JSON that satisfies a schema, or text that satisfies a
    grammar."""

    type: Literal["text", "json_object", "json_schema", "grammar"]
    schema: dict[str, Any] | str | None = None
    """With json_object: the schema of the object, as JSON or as a text that contains JSON."""
    json_schema: NamedSchema | str | None = None
    grammar: str | None = None


class ChosenTool(BodyShape, frozen=True):
    """One tool that the model must call. Its name is beside the type, or in OpenAI's form."""

    type: Literal["function"]
    name: Name | None = None
    function: NamedFunction | None = None


class FireworksThinking(BodyShape, frozen=True):
    """Whether a model that can reason does so, and the most tokens of reasoning."""

    type: Literal["enabled", "disabled"]
    budget_tokens: Budget | None = None


class FireworksCommonRequest(BodyShape, frozen=True, kw_only=True):
    """The fields that text and chat completions share."""

    model: Name
    max_completion_tokens: PositiveInt | None = None
    context_length_exceeded_behavior: Literal["truncate", "error"] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: Repetition | None = None
    ignore_eos: bool | None = None
    logprobs: Alternatives | bool | None = None
    top_logprobs: Alternatives | None = None
    mirostat_target: MirostatTarget | None = None
    mirostat_lr: MirostatRate | None = None
    n: Choices | None = None
    response_format: FireworksResponseFormat | None = None
    stop: Stop | None = None
    stream: bool | None = None
    temperature: Temperature | None = None
    top_k: Candidates | None = None
    top_p: Fraction | None = None
    min_p: Fraction | None = None
    typical_p: Fraction | None = None
    logit_bias: Bias | None = None
    seed: Seed | None = None
    return_token_ids: bool | None = None
    user: EndUser | None = None
    metadata: Tags | None = None
    prompt_cache_key: CacheKey | None = None
    service_tier: Name | None = None
    prompt_cache_isolation_key: Salt | None = None
    prediction: str | PredictionShape | None = None
    speculation: str | Annotated[list[TokenId], Meta(max_length=MAX_IDS)] | None = None


class FireworksCompletionRequest(FireworksCommonRequest, frozen=True, kw_only=True):
    """Body of POST /fireworks/inference/v1/completions."""

    prompt: (
        PromptText
        | Annotated[list[PromptText | TokenId | list[TokenId]], Meta(min_length=1, max_length=MAX_IDS)]
    )
    max_tokens: NonNegativeInt | None = None
    """The value 0 is allowed only together with `echo`."""
    echo: bool | None = None
    images: Annotated[list[str | Images], Meta(max_length=MAX_IMAGES)] | None = None
    """One list of images, or one list for each of several prompts."""


class FireworksChatCompletionRequest(FireworksCommonRequest, frozen=True, kw_only=True):
    """Body of POST /fireworks/inference/v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
    max_tokens: PositiveInt | None = None
    tools: Annotated[list[ToolShape], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required", "any"] | ChosenTool | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Literal["none", "low", "medium", "high"] | bool | MostReasoningTokens | None = None
    thinking: FireworksThinking | None = None
    memory_strategy: MemoryShape | None = None
    rag_params: RagParams | None = None


FireworksFinishName = Literal["stop", "length", "tool_calls", "error"]
"""The reason why a choice ended. `error` ends a choice of a stream that broke, and one that a vendor's filter
cut."""


class FireworksRankedToken(Struct, frozen=True, kw_only=True):
    """One of the likeliest tokens at a place."""

    token: str
    r"""The token's text. It is `bytes:\xe2\x98` for part of a character, and the name for a control token."""
    logprob: float
    """The value -9999 means that the token is practically impossible."""
    token_id: int | UnsetType = UNSET
    """Absent for tokens of a vendor's model, because vendors do not report ids."""
    bytes: list[int]


class TokenEntry(FireworksRankedToken, frozen=True, kw_only=True):
    """One token, in the model's raw distribution."""

    text_offset: int
    """The position of the character of the choice's text in which the token begins. In a stream it counts
    from the stream's first chunk."""
    top_logprobs: list[FireworksRankedToken]
    """The number of tokens that the caller asked for, best first."""


class Logprobs(Struct, frozen=True, kw_only=True):
    """The tokens of a choice, whole or in part. They are arrays of equal length if `logprobs` was a number,
    and a list of entries if it was true. With `echo` the prompt's tokens come first."""

    tokens: list[str] | UnsetType = UNSET
    token_logprobs: list[float] | UnsetType = UNSET
    """The log-probabilities in the model's raw distribution. The value is 0 for a prompt's first token,
    because no token precedes it."""
    top_logprobs: list[dict[str, float]] | UnsetType | None = UNSET
    """The likeliest tokens and the token itself at each place; null if the caller asked for none."""
    text_offset: list[int] | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    """The ids, except for tokens of a vendor's model."""
    content: list[TokenEntry] | UnsetType = UNSET


class FireworksTextChoice(Struct, frozen=True, kw_only=True):
    """One choice of a text completion, whole or in part."""

    index: int
    text: str
    logprobs: Logprobs | None = None
    finish_reason: FireworksFinishName | None = None
    prompt_token_ids: list[int] | UnsetType = UNSET
    """The token ids of the choice's prompt, with return_token_ids. In a stream the choice's first chunk
    contains them."""
    token_ids: list[int] | UnsetType = UNSET
    """The ids of the choice's tokens, with return_token_ids. In a stream these are the tokens since the
    choice's last chunk."""


class FireworksCompletion(Struct, frozen=True, kw_only=True):
    """Buffered answer of a text completion; also one event of a streamed one."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[FireworksTextChoice]
    usage: UsageShape | None = None
    """The usage. In a stream it is null until a choice ends, and then it is the usage of the whole
    request."""


class FireworksChatChoice(Struct, frozen=True, kw_only=True):
    """One choice of a chat."""

    index: int
    message: AssistantMessage
    logprobs: Logprobs | None = None
    finish_reason: FireworksFinishName
    token_ids: list[int] | UnsetType = UNSET
    """The ids of the choice's tokens, as in FireworksTextChoice."""


class FireworksChatCompletion(Struct, frozen=True, kw_only=True):
    """Buffered answer of a chat."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[FireworksChatChoice]
    usage: UsageShape | None
    """The usage; null if a vendor tells none."""
    prompt_token_ids: list[int] | UnsetType = UNSET
    """The prompt's token ids, with return_token_ids."""
    references: MaybeReferences = UNSET


class FireworksChatChunkChoice(Struct, frozen=True, kw_only=True):
    """A part of one choice."""

    index: int
    delta: Delta
    logprobs: Logprobs | None = None
    finish_reason: FireworksFinishName | None = None
    token_ids: list[int] | UnsetType = UNSET
    """The ids of the choice's tokens, as in FireworksTextChoice."""


class FireworksChatCompletionChunk(Struct, frozen=True, kw_only=True):
    """One event of a streamed chat."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[FireworksChatChunkChoice]
    usage: UsageShape | None = None
    """The usage, as in FireworksCompletion."""
    prompt_token_ids: list[int] | UnsetType = UNSET
    """The prompt's token ids, in the first chunk and with return_token_ids."""
    references: MaybeReferences = UNSET


class FireworksErrorBody(Struct, frozen=True):
    """The error and the field at fault."""

    message: str
    param: str | None
    """The name of the wrong field."""
    code: str


class FireworksErrorEnvelope(Struct, frozen=True):
    """Body of every error response; also the last event of a stream that broke."""

    error: FireworksErrorBody
