"""The parts of Gemini's answers that are read. Unknown fields are skipped."""

from msgspec import Raw, Struct, field

from antiphon.engines.vendors.base import Wire

NOTHING = Raw()


class GeminiFunctionCall(Wire, rename="camel"):
    """A call of a function. `partial_args` and `will_continue` come only if they are asked for."""

    name: str = ""
    id: str | None = None
    args: Raw = NOTHING
    partial_args: Raw = NOTHING
    will_continue: bool | None = None


class GeminiPart(Wire, rename="camel"):
    """A part of a content. It has one of the kinds below, perhaps with a signature."""

    text: str | None = None
    thought: bool = False
    """Whether the text is the model's reasoning."""
    thought_signature: str | None = None
    function_call: GeminiFunctionCall | None = None
    inline_data: Raw = NOTHING
    file_data: Raw = NOTHING
    executable_code: Raw = NOTHING
    code_execution_result: Raw = NOTHING
    function_response: Raw = NOTHING
    tool_call: Raw = NOTHING
    tool_response: Raw = NOTHING


OTHER_KINDS = (
    "inline_data",
    "file_data",
    "executable_code",
    "code_execution_result",
    "function_response",
    "tool_call",
    "tool_response",
)
"""Kinds of parts that requests never ask for. An answer with one of them is refused."""


class GeminiContent(Wire):
    """The parts of one candidate, or some of them."""

    parts: list[GeminiPart] = field(default_factory=list)


class GeminiToken(Wire, rename="camel"):
    """A token with its log-probability."""

    token: str = ""
    token_id: int | None = None
    log_probability: float | None = None


class GeminiTopTokens(Wire):
    """The likeliest tokens at one position."""

    candidates: list[GeminiToken] = field(default_factory=list)


class GeminiLogprobs(Wire, rename="camel"):
    """The log-probabilities of a candidate's tokens."""

    chosen_candidates: list[GeminiToken] = field(default_factory=list)
    top_candidates: list[GeminiTopTokens] = field(default_factory=list)


class GeminiCandidate(Wire, rename="camel"):
    """One choice, or a part of it."""

    index: int = 0
    content: GeminiContent | None = None
    finish_reason: str | None = None
    finish_message: str | None = None
    logprobs_result: GeminiLogprobs | None = None


class GeminiFeedback(Wire, rename="camel"):
    """The reason why a prompt was refused."""

    block_reason: str | None = None
    block_reason_message: str | None = None


class GeminiUsage(Wire, rename="camel"):
    """Token counts so far. Google leaves out counts of zero."""

    prompt_token_count: int | None = None
    tool_use_prompt_token_count: int | None = None
    cached_content_token_count: int | None = None
    candidates_token_count: int | None = None
    thoughts_token_count: int | None = None


class GeminiStatus(Wire):
    """An error, as all of Google's APIs write it."""

    code: int | None = None
    message: str = ""
    status: str = ""
    details: Raw = NOTHING


class GeminiAnswer(Wire, rename="camel"):
    """A whole answer, a chunk of a stream, or an error."""

    candidates: list[GeminiCandidate] = field(default_factory=list)
    prompt_feedback: GeminiFeedback | None = None
    usage_metadata: GeminiUsage | None = None
    response_id: str | None = None
    error: GeminiStatus | None = None


class GeminiVector(Wire):
    """One vector."""

    values: Raw
    """A list of numbers, which is read apart from the others."""


class GeminiVectors(Wire, rename="camel"):
    """The vectors of a batch."""

    embeddings: list[GeminiVector]
    usage_metadata: GeminiUsage | None = None


class GeminiModel(Wire):
    """One model in the list."""

    name: str


class GeminiModels(Wire):
    """The list of models."""

    models: list[GeminiModel] = field(default_factory=list)


class SignedPart(Struct, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """A text with its signature, as Gemini sent it and must get it back."""

    thought_signature: str
    text: str = ""
    thought: bool = False


class GeminiBlock(Struct, tag="gemini_part", forbid_unknown_fields=True):
    """`ThinkingBlock.block` of this dialect: a signed part and its position."""

    at: int
    """Characters of the choice's text before the part; for a thought, of its reasoning."""
    part: SignedPart
