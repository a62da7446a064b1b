"""The parts of OpenAI's answers that are read, errors included. Unknown fields are skipped.

An error is the body of a failed request, or comes instead of an answer.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import Struct, field

from antiphon.engines.vendors.base import StreamFailure, VendorError


class FunctionWire(Struct):
    """The function of a call, or a part of it."""

    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class ToolCallWire(Struct):
    """A call, or a part of it."""

    index: int | None = None
    id: str | None = None
    function: FunctionWire = field(default_factory=FunctionWire)
    extra_content: dict[str, Any] | None = None


class PartWire(Struct):
    """A part of a message's content, as Mistral's reasoning models give it."""

    type: str = ""
    text: str | None = None
    thinking: "list[PartWire] | str | None" = None


class SpeechWire(Struct):
    """A spoken answer, or a part of one."""

    id: str | None = None
    data: str | None = None
    transcript: str | None = None
    expires_at: int | None = None


class MessageWire(Struct):
    """A message, or a part of one."""

    content: str | list[PartWire] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[ToolCallWire] | None = None
    thinking_blocks: list[dict[str, Any]] | None = None
    audio: SpeechWire | None = None
    function_call: dict[str, Any] | None = None
    """The older form of a call."""
    images: list[dict[str, Any]] | None = None
    """Generated images."""


class AlternativeWire(Struct):
    """One of the likeliest tokens at a position."""

    token: str
    logprob: float
    bytes: list[int] | None = None


class TokenWire(Struct):
    """A token with its log-probability."""

    token: str
    logprob: float
    bytes: list[int] | None = None
    top_logprobs: list[AlternativeWire] | None = None


class LogprobsWire(Struct):
    """Log-probabilities. A chat has `content`; a text completion has the arrays."""

    content: list[TokenWire] | None = None
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float] | None] | None = None
    text_offset: list[int] | None = None


class ChoiceWire(Struct):
    """A choice, or a part of one. A whole chat has `message`, a streamed chat `delta`, and a text completion
    `text`."""

    index: int = 0
    message: MessageWire | None = None
    delta: MessageWire | None = None
    text: str | None = None
    finish_reason: str | None = None
    logprobs: LogprobsWire | None = None


class PromptDetailsWire(Struct):
    """Details of the prompt's tokens."""

    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    audio_tokens: int | None = None


class CompletionDetailsWire(Struct):
    """Details of the completion's tokens."""

    reasoning_tokens: int | None = None
    audio_tokens: int | None = None
    accepted_prediction_tokens: int | None = None
    rejected_prediction_tokens: int | None = None


NO_PROMPT_DETAILS, NO_COMPLETION_DETAILS = PromptDetailsWire(), CompletionDetailsWire()


class UsageWire(Struct):
    """Token counts."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: PromptDetailsWire | None = None
    prompt_cache_hit_tokens: int | None = None
    """DeepSeek's name of the cached tokens."""
    completion_tokens_details: CompletionDetailsWire | None = None


class ErrorWire(Struct):
    """An error. Some servers send a text instead of this object."""

    message: Any = None
    type: Any = None
    code: Any = None
    param: Any = None


class AnswerWire(Struct):
    """A whole answer, or a chunk of a stream."""

    choices: list[ChoiceWire] | None = None
    usage: UsageWire | None = None
    error: ErrorWire | str | None = None


class ErrorAnswer(Struct):
    """The body of an error: OpenAI's, FastAPI's `detail`, or a message alone."""

    error: ErrorWire | str | None = None
    message: Any = None
    detail: Any = None
    code: Any = None
    type: Any = None


class VectorWire(Struct):
    """One vector: numbers, or base64 of little-endian float32."""

    embedding: list[float] | str
    index: int | None = None


class VectorsWire(Struct):
    """Vectors of several texts."""

    data: list[VectorWire]
    usage: UsageWire | None = None


class ModelWire(Struct):
    """One model in the list."""

    id: str


class ModelsWire(Struct):
    """The list of models."""

    data: list[ModelWire]


read_error = msgspec.json.Decoder(ErrorAnswer).decode

STATUSES: Mapping[str, int] = MappingProxyType(
    {
        "rate_limit_exceeded": 429,
        "rate_limit_error": 429,
        "insufficient_quota": 429,
        "invalid_request_error": 400,
        "context_length_exceeded": 400,
        "authentication_error": 401,
        "overloaded_error": 503,
        "server_overloaded": 503,
        "engine_unavailable": 503,
    }
)
"""The HTTP status that belongs to a code or type of an error inside a stream."""


def decode_error(body: bytes) -> VendorError:
    """Reads the body of an error. A body that cannot be read gives an empty message."""
    try:
        answer = read_error(body.strip().removeprefix(b"[").removesuffix(b"]"))
    except msgspec.MsgspecError:
        return VendorError("")
    if answer.error is not None:
        return build_error(answer.error)
    message = answer.message if answer.message is not None else answer.detail
    return build_error(ErrorWire(message, answer.type, answer.code))


def build_error(error: ErrorWire | str) -> VendorError:
    """Converts an error in an answer."""
    if isinstance(error, str):
        return VendorError(error)
    code, name = error.code, error.type if isinstance(error.type, str) else ""
    if isinstance(code, str) and code.isdecimal():
        code = int(code)
    kind = code if isinstance(code, str) else name
    status = code if isinstance(code, int) else STATUSES.get(kind, STATUSES.get(name))
    return VendorError(
        _find_text(error.message),
        kind,
        status if status is None or 400 <= status < 600 else None,
        param=error.param if isinstance(error.param, str) else None,
    )


def _find_text(message: object) -> str:
    """Returns the text of an error. FastAPI sends a list of problems, and some servers nest the message."""
    match message:
        case str():
            return message
        case {"msg": str(text), "loc": list(place)}:
            return f"{'.'.join(map(str, place))}: {text}"
        case {"message": inner} | {"detail": inner}:
            return _find_text(inner)
        case list():
            return "; ".join(filter(None, map(_find_text, message)))
    return ""


def require_no_error(data: bytes) -> None:
    """Raises StreamFailure for a chunk that is an error without the field `error`."""
    error = decode_error(data)
    if error.message:
        raise StreamFailure(error)
