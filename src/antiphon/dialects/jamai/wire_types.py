"""The JSON types of JamAI Base's requests, answers and errors. Parts with the same meaning in OpenAI's format
use OpenAI's types."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from antiphon.dialects.common.request_types import (
    MAX_TOOLS,
    BodyShape,
    Messages,
    Rag,
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
from antiphon.domain import fields
from antiphon.domain.fields import MAX_NAME, MAX_STOPS, Need, NonNegativeInt, PositiveInt, StopText

OPTIONAL = "Ignored by models that do not support it."
"""The end of the description of a field that is ignored if the model does not support it."""

CHOSEN = "If it is empty, the server takes the first model that can do the request."

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

    model: Annotated[ModelId | None, f"Id of a model, as antiphon/NAME or NAME. {CHOSEN}"] = None
    messages: Annotated[
        Messages,
        Need.TEMPLATE,
        "The conversation so far. An empty system message becomes `.`. If the first "
        "message is "
        "the assistant's, messages with `.` are added before it.",
    ]
    tools: Annotated[
        Annotated[list[ToolShape], Meta(min_length=1, max_length=MAX_TOOLS)] | None,
        Need.TEMPLATE,
        "Functions that the model can call, 1 to 128. Empty texts and lists in the schemas "
        "of their properties count as absent.",
    ] = None
    tool_choice: Annotated[
        Literal["none", "auto", "required"] | ToolChoiceShape | None,
        Need.CONSTRAINTS,
        "Whether the model calls: auto, none, required, or one tool by its name.",
    ] = None
    temperature: Annotated[
        fields.Temperature,
        f"0 to 2, 0.2 by default. 0 always takes the most likely token. {OPTIONAL}",
    ] = None
    top_p: Annotated[
        Annotated[float, Meta(ge=LEAST_TOP_P, le=1)] | None,
        f"Only the most likely tokens whose probabilities add up to this; 0.6 by default. {OPTIONAL}",
    ] = None
    stream: Annotated[
        fields.Stream,
        "Whether the answer comes as server-sent events; false by default.",
    ] = None
    max_tokens: Annotated[
        PositiveInt | None,
        "Most tokens of one choice; 2048 by default. It is lowered to what fits the model.",
    ] = None
    max_completion_tokens: Annotated[
        PositiveInt | None,
        "The newer name of max_tokens. If you send both, max_tokens is ignored.",
    ] = None
    stop: Annotated[
        Annotated[list[StopText], Meta(min_length=1, max_length=MAX_STOPS)] | None,
        f"Texts that end a choice, 1 to 4; cut from its text. {OPTIONAL}",
    ] = None
    presence_penalty: Annotated[
        fields.PresencePenalty,
        f"Taken from the logit of each token that is in the output; -2 to 2. {OPTIONAL}",
    ] = None
    frequency_penalty: Annotated[
        fields.FrequencyPenalty,
        f"Taken from a token's logit for each time it is in the output; -2 to 2. {OPTIONAL}",
    ] = None
    logit_bias: Annotated[
        fields.LogitBias,
        "Added to the logits of tokens: an object of token ids, as texts, to numbers "
        "of -100 "
        f"to 100. {OPTIONAL}",
    ] = None
    id: Annotated[
        ChatId | None,
        "The tag `id` in the records of usage, at most 512 characters. Ignored "
        "without keys. "
        "The request's own id is the header X-REQUEST-ID.",
    ] = None
    n: Annotated[fields.Choices, "Choices, 1 to 128; 1 by default."] = None
    rag_params: Rag = None
    user: fields.EndUser = None
    reasoning_effort: Annotated[
        Literal["disable", "minimal", "low", "medium", "high"] | None,
        Need.REASONING,
        "How much the model reasons: disable, minimal, low, medium, high. "
        f"{OPTIONAL} Later clients of the product send it.",
    ] = None
    thinking_budget: Annotated[
        NonNegativeInt | None,
        Need.REASONING,
        f"Most tokens of reasoning, at most max_tokens; 0 means none. {OPTIONAL} "
        "Later clients of the product send it.",
    ] = None
    reasoning_summary: Literal["auto", "concise", "detailed"] | None = None
    stream_options: dict[str, Any] | None = None


class JamaiEmbeddingRequest(BodyShape, frozen=True, kw_only=True):
    """Body of POST /jamai/api/v1/embeddings."""

    model: Annotated[ModelId | None, f"Id of an embedding model. {CHOSEN}"] = None
    input: Annotated[
        str | Annotated[list[str], Meta(min_length=1)],
        Need.EMBEDDING,
        "A text or a list of texts, at most 2048.",
    ]
    type: Literal["query", "document"] | None = None
    encoding_format: Annotated[
        Literal["float", "base64"] | None,
        Need.EMBEDDING,
        "float, numbers; or base64, their bytes as float32, little-endian.",
    ] = None
    dimensions: Annotated[
        PositiveInt | None,
        Need.EMBEDDING,
        "Only the model's own number: no vector is shortened.",
    ] = None


class JamaiRerankRequest(BodyShape, frozen=True, kw_only=True):
    """Body of POST /jamai/api/v1/rerank."""

    model: Annotated[ModelId | None, f"Id of a reranker. {CHOSEN}"] = None
    query: Annotated[str, Meta(min_length=1), "The text to compare with the documents."]
    documents: Annotated[
        list[Annotated[str, Meta(min_length=1)]],
        Meta(min_length=1, max_length=MOST_RANKED),
        "The texts to rank, at most 1000.",
    ]


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
