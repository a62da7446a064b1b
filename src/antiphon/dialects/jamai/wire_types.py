"""The JSON types of JamAI Base's requests, answers and errors, and the table of all request fields.

Parts with the same meaning in OpenAI's format use OpenAI's types. The table has the fields of JamAI Base's
page, its embeddings and rankings, and how Antiphon treats them.
"""

from enum import StrEnum
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from antiphon.dialects.common.field_table import (
    END_USER,
    RETRIEVAL,
    FieldTable,
    RequestField,
    declare_ignored,
    declare_supported,
)
from antiphon.dialects.common.request_types import (
    MAX_MESSAGES,
    MAX_NAME,
    MAX_STOPS,
    MAX_TOOLS,
    Bias,
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

BASE = "/jamai/api"


class JamaiScope(StrEnum):
    """The object that contains a field. Other fields of messages are in OpenAI's table."""

    CHAT = f"{BASE}/v1/chat/completions"
    MESSAGE = "JamAI's message"
    EMBEDDINGS = f"{BASE}/v1/embeddings"
    RERANK = f"{BASE}/v1/rerank"


CHAT = frozenset({JamaiScope.CHAT})
MESSAGE = frozenset({JamaiScope.MESSAGE})
EMBEDDINGS = frozenset({JamaiScope.EMBEDDINGS})
RERANK = frozenset({JamaiScope.RERANK})


OPTIONAL = "Ignored by models that do not support it."

CHOSEN = "If it is empty, the server takes the first model that can do the request."

FIELDS: tuple[RequestField, ...] = (
    *declare_supported(
        CHAT,
        model=f"Id of a model, as antiphon/NAME or NAME. {CHOSEN}",
        messages="The conversation so far. An empty system message becomes `.`. If the first message is "
        "the assistant's, messages with `.` are added before it.",
        tools="Functions that the model can call, 1 to 128. Empty texts and lists in the schemas "
        "of their properties count as absent.",
        tool_choice="Whether the model calls: auto, none, required, or one tool by its name.",
        temperature=f"0 to 2, 0.2 by default. 0 always takes the most likely token. {OPTIONAL}",
        top_p=f"Only the most likely tokens whose probabilities add up to this; 0.6 by default. {OPTIONAL}",
        stream="Whether the answer comes as server-sent events; false by default.",
        max_tokens="Most tokens of one choice; 2048 by default. It is lowered to what fits the model.",
        max_completion_tokens="The newer name of max_tokens. If you send both, max_tokens is ignored.",
        stop=f"Texts that end a choice, 1 to 4; cut from its text. {OPTIONAL}",
        presence_penalty=f"Taken from the logit of each token that is in the output; -2 to 2. {OPTIONAL}",
        frequency_penalty="Taken from a token's logit for each time it is in the output; -2 to 2. "
        f"{OPTIONAL}",
        logit_bias="Added to the logits of tokens: an object of token ids, as texts, to numbers of -100 to "
        f"100. {OPTIONAL}",
        id="The tag `id` in the records of usage, at most 512 characters. Ignored without keys. "
        "The request's own id is the header X-REQUEST-ID.",
        n="Choices, 1 to 128; 1 by default.",
        rag_params=RETRIEVAL,
        user=END_USER,
        reasoning_effort="How much the model reasons: disable, minimal, low, medium, high. "
        f"{OPTIONAL} Later clients of the product send it.",
        thinking_budget=f"Most tokens of reasoning, at most max_tokens; 0 means none. {OPTIONAL} "
        "Later clients of the product send it.",
    ),
    declare_ignored(
        "reasoning_summary",
        CHAT,
        "auto, concise or detailed. It has no effect: you get the reasoning as the model wrote it.",
    ),
    declare_ignored("stream_options", CHAT, "every stream brings the usage."),
    *declare_supported(
        MESSAGE,
        content="As at /v1. null and an empty list mean an empty text.",
        name="The name of the speaker. Characters besides letters, digits, _ and - become _.",
    ),
    *declare_supported(
        EMBEDDINGS,
        model=f"Id of an embedding model. {CHOSEN}",
        input="A text or a list of texts, at most 2048.",
        encoding_format="float, numbers; or base64, their bytes as float32, little-endian.",
        dimensions="Only the model's own number: no vector is shortened.",
    ),
    declare_ignored(
        "type", EMBEDDINGS, "query or document. It has no effect: a text's vector is the same for both."
    ),
    *declare_supported(
        RERANK,
        model=f"Id of a reranker. {CHOSEN}",
        query="The text to compare with the documents.",
        documents="The texts to rank, at most 1000.",
    ),
)

FIELD_TABLE = FieldTable(
    FIELDS, tuple(JamaiScope), endpoints=(JamaiScope.CHAT, JamaiScope.EMBEDDINGS, JamaiScope.RERANK)
)
TABLES = FIELD_TABLE.tables
filter_fields = FIELD_TABLE.filter


LEAST_TOP_P = 0.001
"""The smallest `top_p`, as on the page."""

MOST_RANKED = 1000
"""The most documents of one ranking, as at /v1."""

ModelId = Annotated[str, Meta(max_length=MAX_NAME)]
"""The id of a model. If it is empty, the server chooses one."""

ChatId = Annotated[str, Meta(max_length=512)]
"""A tag in the records of usage, with their maximum length."""


class JamaiChatRequest(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
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


class JamaiEmbeddingRequest(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Body of POST /jamai/api/v1/embeddings."""

    input: str | Annotated[list[str], Meta(min_length=1)]
    model: ModelId | None = None
    type: Literal["query", "document"] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: PositiveInt | None = None


class JamaiRerankRequest(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
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
