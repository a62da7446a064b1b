"""The JSON shapes of OpenAI's dialect: what a request may hold, with types and ranges, and what answers look
like.

Decoding checks requests against these types, answers are encoded from them, and the OpenAPI document is made
from them. Which other fields are known and refused is said in `fields`.
"""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

# --- limits, each with its reason ---------------------------------------------------------------------------

MAX_CHOICES = 128
"""Choices of one prompt; OpenAI's own bound."""

MAX_SEQUENCES = 256
"""Prompts times choices of one request: more than any engine runs at once, and little enough to hold in
memory."""

MAX_MESSAGES = 4096
"""Messages of one conversation: more than fit a context of 32,768 tokens with a word in each."""

MAX_STOPS = 4
"""Stop texts of one request; OpenAI's own bound."""

MAX_STOP_LENGTH = 1024
"""Characters of one stop text: the detokenizer holds back as much of every stream."""

MAX_STOP_TOKENS = 128
"""Stop token ids of one request: every step of every sequence is compared with them."""

MAX_IDS = 1 << 20
"""Items of one list of token ids: the longest contexts hold as many, and more would keep others waiting."""

MAX_NAME = 256
"""Characters of a model's or speaker's name."""

INT32_MAX = 2**31 - 1

# --- requests -----------------------------------------------------------------------------------------------

Count = Annotated[int, Meta(ge=1, le=INT32_MAX)]
TokenId = Annotated[int, Meta(ge=0, le=INT32_MAX)]
Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]
StopText = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_LENGTH)]
Temperature = Annotated[float, Meta(ge=0, le=2)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
TopK = Annotated[int, Meta(ge=-1, le=INT32_MAX)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Choices = Annotated[int, Meta(ge=1, le=MAX_CHOICES)]
Stop = StopText | Annotated[list[StopText], Meta(max_length=MAX_STOPS)]
StopTokens = Annotated[list[TokenId], Meta(max_length=MAX_STOP_TOKENS)]


class TextPart(Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a message's content."""

    type: Literal["text"]
    text: str


class ChatMessage(Struct, frozen=True, forbid_unknown_fields=True):
    """One turn of the conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Meta(min_length=1)]
    name: Name | None = None


class StreamOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """How a stream ends."""

    include_usage: bool | None = None


class Common(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What chat and text completions share."""

    model: Name
    max_tokens: Count | None = None
    temperature: Temperature | None = None
    top_p: Fraction | None = None
    top_k: TopK | None = None
    min_p: Fraction | None = None
    seed: Seed | None = None
    n: Choices | None = None
    stop: Stop | None = None
    stop_token_ids: StopTokens | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None


class ChatCompletionRequest(Common, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Body of POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Count | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


class CompletionRequest(Common, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Body of POST /v1/completions."""

    prompt: str | Annotated[list[str | TokenId | list[TokenId]], Meta(min_length=1, max_length=MAX_IDS)]


# --- answers ------------------------------------------------------------------------------------------------

FinishName = Literal["stop", "length"]


class CachedTokens(Struct, frozen=True):
    """What the prompt's tokens are made of."""

    cached_tokens: int


class UsageShape(Struct, frozen=True):
    """Tokens of the whole request: each prompt once, every choice."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class AssistantMessage(Struct, frozen=True, kw_only=True):
    """What the model said."""

    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(Struct, frozen=True, kw_only=True):
    """One complete choice of a chat."""

    index: int
    message: AssistantMessage
    logprobs: None = None
    finish_reason: FinishName


class ChatCompletion(Struct, frozen=True, kw_only=True):
    """Buffered answer of a chat."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageShape


class Delta(Struct, frozen=True, kw_only=True):
    """What a chunk adds to its choice: the role first, then text, and nothing beside the finish reason."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    refusal: UnsetType | None = UNSET


class ChatChunkChoice(Struct, frozen=True, kw_only=True):
    """A part of one choice."""

    index: int
    delta: Delta
    logprobs: None = None
    finish_reason: FinishName | None = None


class ChatCompletionChunk(Struct, frozen=True, kw_only=True):
    """One event of a streamed chat."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: UsageShape | UnsetType | None = UNSET
    """Only there when it was asked for: null until the last chunk, which has no choices."""


class TextChoice(Struct, frozen=True, kw_only=True):
    """One choice of a text completion, whole or in part."""

    index: int
    text: str
    logprobs: None = None
    finish_reason: FinishName | None = None


class Completion(Struct, frozen=True, kw_only=True):
    """Buffered answer of a text completion; also one event of a streamed one."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[TextChoice]
    usage: UsageShape | UnsetType | None = UNSET
    """In a stream only there when it was asked for: null until the last event, which has no choices."""


class ErrorBody(Struct, frozen=True):
    """What went wrong, and where."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorEnvelope(Struct, frozen=True):
    """Body of every error response; also the last event of a stream that broke."""

    error: ErrorBody
