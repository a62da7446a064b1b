"""The parts of Gemini's answers that are read. Unknown fields are skipped."""

from typing import Any

from msgspec import Raw, Struct, field

NOTHING = Raw()


class GeminiFunctionCall(Struct, rename="camel"):
    """A call of a function. `partial_args` and `will_continue` come only if they are asked for."""

    name: str = ""
    id: str | None = None
    args: Raw = NOTHING
    partial_args: Any = None
    will_continue: bool | None = None


class GeminiPart(Struct, rename="camel"):
    """A part of a content. It has one of the kinds below, perhaps with a signature."""

    text: str | None = None
    thought: bool = False
    """Whether the text is the model's reasoning."""
    thought_signature: str | None = None
    function_call: GeminiFunctionCall | None = None
    inline_data: Any = None
    file_data: Any = None
    executable_code: Any = None
    code_execution_result: Any = None
    function_response: Any = None
    tool_call: Any = None
    tool_response: Any = None


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


class GeminiContent(Struct):
    """The parts of one candidate, or some of them."""

    parts: list[GeminiPart] = field(default_factory=list)


class GeminiToken(Struct, rename="camel"):
    """A token with its log-probability."""

    token: str = ""
    token_id: int | None = None
    log_probability: float | None = None


class GeminiTopTokens(Struct):
    """The likeliest tokens at one position."""

    candidates: list[GeminiToken] = field(default_factory=list)


class GeminiLogprobs(Struct, rename="camel"):
    """The log-probabilities of a candidate's tokens."""

    chosen_candidates: list[GeminiToken] = field(default_factory=list)
    top_candidates: list[GeminiTopTokens] = field(default_factory=list)


class GeminiCandidate(Struct, rename="camel"):
    """One choice, or a part of it."""

    index: int = 0
    content: GeminiContent | None = None
    finish_reason: str | None = None
    finish_message: str | None = None
    logprobs_result: GeminiLogprobs | None = None


class GeminiFeedback(Struct, rename="camel"):
    """The reason why a prompt was refused."""

    block_reason: str | None = None
    block_reason_message: str | None = None


class GeminiUsage(Struct, rename="camel"):
    """Token counts so far. Google leaves out counts of zero."""

    prompt_token_count: int | None = None
    tool_use_prompt_token_count: int | None = None
    cached_content_token_count: int | None = None
    candidates_token_count: int | None = None
    thoughts_token_count: int | None = None


class GeminiStatus(Struct):
    """An error, as all of Google's APIs write it."""

    code: int | None = None
    message: str = ""
    status: str = ""
    details: list[Any] | None = None


class GeminiAnswer(Struct, rename="camel"):
    """A whole answer, a chunk of a stream, or an error."""

    candidates: list[GeminiCandidate] = field(default_factory=list)
    prompt_feedback: GeminiFeedback | None = None
    usage_metadata: GeminiUsage | None = None
    response_id: str | None = None
    error: GeminiStatus | None = None


class GeminiVector(Struct):
    """One vector."""

    values: list[float]


class GeminiVectors(Struct, rename="camel"):
    """The vectors of a batch."""

    embeddings: list[GeminiVector]
    usage_metadata: GeminiUsage | None = None


class GeminiModel(Struct):
    """One model in the list."""

    name: str


class GeminiModels(Struct):
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
