"""The JSON types of JamAI Base's requests, answers and errors. Parts with the same meaning in OpenAI's format
use OpenAI's types."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from antiphon.dialects.common.request_types import (
    MAX_MESSAGES,
    MAX_NAME,
    MAX_STOPS,
    MAX_TOOLS,
    Bias,
    BodyShape,
    ChatMessage,
    Choices,
    EndUser,
    NonNegativeInt,
    Penalty,
    PositiveInt,
    RagParams,
    StopText,
    Temperature,
    ToolChoiceShape,
    ToolShape,
)
from antiphon.dialects.common.response_types import (
    CallExtras,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    CompletionTokensDetails,
    Delta,
    PromptTokensDetails,
)

LEAST_TOP_P = 0.001
"""The smallest `top_p`, as on the page."""

MOST_RANKED = 1000
"""The most documents of one ranking, as at /v1."""

ModelId = Annotated[str, Meta(max_length=MAX_NAME)]
"""The id of a model. If it is empty, the server chooses one."""

ChatId = Annotated[str, Meta(max_length=512)]
"""A tag in the records of usage, with their maximum length."""


class JamaiChatRequest(BodyShape, frozen=True, kw_only=True):
    """Body of POST /jamai/api/v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
    model: ModelId | None = None
    rag_params: RagParams | None = None
    tools: Annotated[list[ToolShape], Meta(min_length=1, max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoiceShape | None = None
    temperature: Temperature | None = None
    top_p: Annotated[float, Meta(ge=LEAST_TOP_P, le=1)] | None = None
    stream: bool | None = None
    max_tokens: PositiveInt | None = None
    max_completion_tokens: PositiveInt | None = None
    stop: Annotated[list[StopText], Meta(min_length=1, max_length=MAX_STOPS)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Bias | None = None
    id: ChatId | None = None
    n: Choices | None = None
    user: EndUser | None = None
    reasoning_effort: Literal["disable", "minimal", "low", "medium", "high"] | None = None
    thinking_budget: NonNegativeInt | None = None
    reasoning_summary: Literal["auto", "concise", "detailed"] | None = None
    stream_options: dict[str, Any] | None = None


class JamaiEmbeddingRequest(BodyShape, frozen=True, kw_only=True):
    """Body of POST /jamai/api/v1/embeddings."""

    input: str | Annotated[list[str], Meta(min_length=1)]
    model: ModelId | None = None
    type: Literal["query", "document"] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: PositiveInt | None = None


class JamaiRerankRequest(BodyShape, frozen=True, kw_only=True):
    """Body of POST /jamai/api/v1/rerank."""

    query: Annotated[str, Meta(min_length=1)]
    documents: Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(min_length=1, max_length=MOST_RANKED)]
    model: ModelId | None = None


# --- answers ------------------------------------------------------------------------------------------------


class JamaiUsage(Struct, frozen=True):
    """The tokens of the whole request. The numbers are null if a vendor does not report them. JamAI's clients
    need the object, and read null as 0."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: PromptTokensDetails | UnsetType = UNSET
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


class JamaiChatCompletion(ChatCompletion, frozen=True, kw_only=True):
    """Buffered answer of a chat."""

    usage: JamaiUsage  # type: ignore[assignment]


class JamaiFunctionPart(Struct, frozen=True, kw_only=True):
    """The name of a call's function, or null and more of its arguments."""

    name: str | None = None
    arguments: str = ""


class JamaiToolCallPart(Struct, frozen=True, kw_only=True):
    """A part of one call."""

    index: int
    id: str = ""
    """Empty in all parts but the first."""
    type: Literal["function"] = "function"
    function: JamaiFunctionPart
    extra_content: CallExtras | UnsetType = UNSET


class JamaiDelta(Delta, frozen=True, kw_only=True):
    """The content that a chunk adds to its choice."""

    tool_calls: list[JamaiToolCallPart] | UnsetType = UNSET  # type: ignore[assignment]


class JamaiChunkChoice(ChatChunkChoice, frozen=True, kw_only=True):
    """A part of one choice."""

    delta: JamaiDelta


class JamaiChatChunk(ChatCompletionChunk, frozen=True, kw_only=True):
    """One event of a streamed chat. The last one has no choices, but the usage."""

    choices: list[JamaiChunkChoice]  # type: ignore[assignment]
    usage: JamaiUsage | None  # type: ignore[assignment]


class RerankingShape(Struct, frozen=True, kw_only=True):
    """The score of one document."""

    object: Literal["reranking"] = "reranking"
    index: int
    """The document's index in the request."""
    relevance_score: float


class RerankingUsage(Struct, frozen=True):
    """The amount of ranked text."""

    documents: int
    input_tokens: int


class RerankingMeta(Struct, frozen=True):
    """The model that ranked the documents."""

    model: str


class RerankingAnswer(Struct, frozen=True, kw_only=True):
    """The documents, best first."""

    object: Literal["list"] = "list"
    results: list[RerankingShape]
    usage: RerankingUsage
    meta: RerankingMeta


class Health(Struct, frozen=True):
    """The answer of a process that is alive."""

    is_oss: bool = True
    """Whether this is not JamAI's cloud."""


class Done(Struct, frozen=True):
    """The answer of a deletion."""

    ok: bool = True
    progress_key: str = ""


class JamaiProblem(Struct, frozen=True):
    """One wrong value of a request."""

    type: str
    loc: list[str | int]
    """The path: `body`, `query` or `header`, then the path of the field."""
    msg: str


class JamaiError(Struct, frozen=True, kw_only=True):
    """Body of every error response; also the last event of a stream that broke."""

    object: Literal["error"] = "error"
    error: str
    """JamAI's code."""
    message: str
    detail: str | list[JamaiProblem]
    """A list for `validation_error`, otherwise the message."""
    request_id: str
    exception: str | None
    """JamAI's class of the error; null if there is none."""
    request_headers: dict[str, str]
    """Request headers, with the credential masked."""
    body: Any = UNSET
    """The request's body, for `validation_error`; null if it is too large or not JSON."""
