"""The JSON shapes of Fireworks' answers, buffered and streamed, and of its errors. What has the same meaning
is of OpenAI's."""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from antiphon.dialects.common.response_types import AssistantMessage, Delta, FinishName, UsageShape

FireworksFinishName = Literal["stop", "length", "tool_calls", "error"]
"""`error` ends a choice of a stream that broke."""


class FireworksRankedToken(Struct, frozen=True, kw_only=True):
    """One of the likeliest tokens at a place."""

    token: str
    """Its text; `bytes:\\xe2\\x98` for part of a character, the name of a control token."""
    logprob: float
    """-9999 is as good as never."""
    token_id: int
    bytes: list[int]


class TokenEntry(FireworksRankedToken, frozen=True, kw_only=True):
    """One token, in the model's raw distribution."""

    text_offset: int
    """Which character of the choice's text it begins in; runs on through a stream."""
    top_logprobs: list[FireworksRankedToken]
    """As many as were asked for, best first."""


class Logprobs(Struct, frozen=True, kw_only=True):
    """The tokens of a choice, whole or in part, in arrays of equal length where `logprobs` was a number, and
    as a list of entries where it was true. With `echo` the prompt's tokens are the first."""

    tokens: list[str] | UnsetType = UNSET
    token_logprobs: list[float] | UnsetType = UNSET
    """In the model's raw distribution; 0 for a prompt's first token, which nothing comes before."""
    top_logprobs: list[dict[str, float]] | UnsetType | None = UNSET
    """The likeliest tokens and the token itself; null when none were asked for."""
    text_offset: list[int] | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    content: list[TokenEntry] | UnsetType = UNSET


class FireworksTextChoice(Struct, frozen=True, kw_only=True):
    """One choice of a text completion, whole or in part."""

    index: int
    text: str
    logprobs: Logprobs | None = None
    finish_reason: FireworksFinishName | None = None
    prompt_token_ids: list[int] | UnsetType = UNSET
    """Of its prompt, with return_token_ids; in a stream in its first chunk."""
    token_ids: list[int] | UnsetType = UNSET
    """Of its tokens, with return_token_ids; in a stream of those since its last chunk."""


class FireworksCompletion(Struct, frozen=True, kw_only=True):
    """Buffered answer of a text completion; also one event of a streamed one."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[FireworksTextChoice]
    usage: UsageShape | None = None
    """In a stream null until a choice ends; then that of the whole request."""


class FireworksChatChoice(Struct, frozen=True, kw_only=True):
    """One choice of a chat."""

    index: int
    message: AssistantMessage
    logprobs: Logprobs | None = None
    finish_reason: FinishName
    token_ids: list[int] | UnsetType = UNSET
    """As of a TextChoice."""


class FireworksChatCompletion(Struct, frozen=True, kw_only=True):
    """Buffered answer of a chat."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[FireworksChatChoice]
    usage: UsageShape
    prompt_token_ids: list[int] | UnsetType = UNSET
    """With return_token_ids."""


class FireworksChatChunkChoice(Struct, frozen=True, kw_only=True):
    """A part of one choice."""

    index: int
    delta: Delta
    logprobs: Logprobs | None = None
    finish_reason: FireworksFinishName | None = None
    token_ids: list[int] | UnsetType = UNSET
    """As of a TextChoice."""


class FireworksChatCompletionChunk(Struct, frozen=True, kw_only=True):
    """One event of a streamed chat."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[FireworksChatChunkChoice]
    usage: UsageShape | None = None
    """As of a Completion."""
    prompt_token_ids: list[int] | UnsetType = UNSET
    """In the first chunk, with return_token_ids."""


class FireworksErrorBody(Struct, frozen=True):
    """What went wrong, and where."""

    message: str
    param: str | None
    """The field at fault."""
    code: str


class FireworksErrorEnvelope(Struct, frozen=True):
    """Body of every error response; also the last event of a stream that broke."""

    error: FireworksErrorBody
