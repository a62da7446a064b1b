"""The JSON shapes of OpenAI's dialect: what a request may hold, with types and ranges, and what answers look
like.

Decoding checks requests against these types, answers are encoded from them, and the OpenAPI document is made
from them. Which other fields are known and refused is said in `fields`.
"""

from typing import Annotated, Any, Literal

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

MAX_ALTERNATIVES = 20
"""Likeliest tokens at each place; OpenAI's own bound for chats, and the engines'."""

MAX_CANDIDATES = 20
"""`best_of`; OpenAI's own bound."""

MAX_BIASES = 1024
"""Tokens of one logit bias: each costs every step of every sequence."""

MAX_SALT = 256
"""Characters of a cache salt."""

LARGEST_BIAS = 100.0
"""OpenAI's own bound of a logit bias, in both directions."""

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
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Repetition = Annotated[float, Meta(gt=0, le=2)]
Surprise = Annotated[float, Meta(gt=0, le=100)]
Rate = Annotated[float, Meta(ge=0, le=1)]
LeastTokens = Annotated[int, Meta(ge=0, le=INT32_MAX)]
Bias = Annotated[dict[str, float], Meta(max_length=MAX_BIASES)]
Allowed = Annotated[list[TokenId], Meta(min_length=1, max_length=MAX_IDS)]
Salt = Annotated[str, Meta(min_length=1, max_length=MAX_SALT)]
Alternatives = Annotated[int, Meta(ge=0, le=MAX_ALTERNATIVES)]
Candidates = Annotated[int, Meta(ge=1, le=MAX_CANDIDATES)]
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


class NamedSchema(Struct, frozen=True, forbid_unknown_fields=True):
    """A JSON Schema that an answer is to satisfy. It always does, whether `strict` is said or not."""

    schema: dict[str, Any] | bool
    name: Name | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(Struct, frozen=True, forbid_unknown_fields=True):
    """What an answer is: text, any JSON object, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None
    schema: dict[str, Any] | None = None
    """With json_object: the schema of the object."""


class StructuredOutputs(Struct, frozen=True, forbid_unknown_fields=True):
    """One constraint, as vLLM writes it."""

    json: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    whitespace_pattern: str | None = None


class Common(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What chat and text completions share."""

    model: Name
    max_tokens: Count | None = None
    temperature: Temperature | None = None
    top_p: Fraction | None = None
    top_k: TopK | None = None
    min_p: Fraction | None = None
    typical_p: Fraction | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Repetition | None = None
    logit_bias: Bias | None = None
    mirostat_target: Surprise | None = None
    mirostat_lr: Rate | None = None
    min_tokens: LeastTokens | None = None
    ignore_eos: bool | None = None
    allowed_token_ids: Allowed | None = None
    seed: Seed | None = None
    n: Choices | None = None
    stop: Stop | None = None
    stop_token_ids: StopTokens | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: Salt | None = None
    response_format: ResponseFormat | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_whitespace_pattern: str | None = None
    structured_outputs: StructuredOutputs | None = None
    user: str | None = None


class ChatCompletionRequest(Common, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Body of POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Alternatives | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


class CompletionRequest(Common, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Body of POST /v1/completions."""

    prompt: str | Annotated[list[str | TokenId | list[TokenId]], Meta(min_length=1, max_length=MAX_IDS)]
    max_tokens: LeastTokens | None = None
    """0 only together with `echo`."""
    logprobs: Alternatives | None = None
    echo: bool | None = None
    best_of: Candidates | None = None


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


class TopLogprob(Struct, frozen=True, kw_only=True):
    """One of the likeliest tokens at a place."""

    token: str
    """Its text; `bytes:\\xe2\\x98` for part of a character, the name of a control token."""
    logprob: float
    """-9999 is as good as never."""
    bytes: list[int]


class TokenLogprob(TopLogprob, frozen=True, kw_only=True):
    """One token, in the model's raw distribution."""

    top_logprobs: list[TopLogprob]
    """As many as were asked for, best first."""


class ChatLogprobs(Struct, frozen=True, kw_only=True):
    """The tokens of a chat's choice, whole or in part."""

    content: list[TokenLogprob]
    refusal: None = None


class TextLogprobs(Struct, frozen=True, kw_only=True):
    """The tokens of a text completion's choice, whole or in part, with `echo` the prompt's first."""

    tokens: list[str]
    token_logprobs: list[float | None]
    """In the model's raw distribution; null for a prompt's first token."""
    top_logprobs: list[dict[str, float] | None] | None
    """The likeliest tokens and the token itself; null when none were asked for."""
    text_offset: list[int]
    """Which character of the choice's text each token begins in; runs on through a stream."""


class AssistantMessage(Struct, frozen=True, kw_only=True):
    """What the model said."""

    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(Struct, frozen=True, kw_only=True):
    """One complete choice of a chat."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None = None
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
    logprobs: ChatLogprobs | None = None
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
    logprobs: TextLogprobs | None = None
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
