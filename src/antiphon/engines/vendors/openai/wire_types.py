"""The parts of OpenAI's answers that are read, errors included. Unknown fields are skipped.

An error is the body of a failed request, or comes instead of an answer.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import Raw, field

from antiphon.engines.vendors.base import (
    CONTENT_FLAGGED,
    MAX_ERROR_BODY,
    StreamFailure,
    VendorError,
    Wire,
    has_value,
)

NOTHING = Raw()

STATUSES: Mapping[str, int] = MappingProxyType(
    {
        "rate_limit_exceeded": 429,
        "rate_limit_error": 429,
        "insufficient_quota": 429,
        "invalid_request_error": 400,
        "invalid_prompt": 400,
        "context_length_exceeded": 400,
        "authentication_error": 401,
        "overloaded_error": 503,
        "server_overloaded": 503,
        "engine_unavailable": 503,
    }
)
"""The HTTP status that belongs to a code or type of an error inside a stream."""


class FunctionWire(Wire):
    """The function of a call, or a part of it."""

    name: str | None = None
    arguments: Raw = NOTHING
    """A text. Some servers send an object."""


class ToolCallWire(Wire):
    """A call, or a part of it."""

    index: int | None = None
    id: str | None = None
    function: FunctionWire = field(default_factory=FunctionWire)
    extra_content: Raw = NOTHING


class PartWire(Wire):
    """A part of a message's content, as Mistral's reasoning models give it."""

    type: str = ""
    text: str | None = None
    thinking: "list[PartWire] | str | None" = None


class SpeechWire(Wire):
    """A spoken answer, or a part of one."""

    id: str | None = None
    data: str | None = None
    transcript: str | None = None
    expires_at: int | None = None


class MessageWire(Wire):
    """A message, or a part of one."""

    content: str | list[PartWire] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[ToolCallWire] | None = None
    thinking_blocks: list[Raw] | None = None
    audio: SpeechWire | None = None
    function_call: Raw = NOTHING
    """The older form of a call."""
    images: Raw = NOTHING
    """Generated images."""


class AlternativeWire(Wire):
    """One of the likeliest tokens at a position."""

    token: str
    logprob: float
    bytes: list[int] | None = None


class TokenWire(Wire):
    """A token with its log-probability."""

    token: str
    logprob: float
    bytes: list[int] | None = None
    top_logprobs: list[AlternativeWire] | None = None


class LogprobsWire(Wire):
    """Log-probabilities. A chat has `content`; a text completion has the arrays."""

    content: list[TokenWire] | None = None
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[Raw] | None = None
    """For each token, an object or null."""
    text_offset: list[int] | None = None


class ChoiceWire(Wire):
    """A choice, or a part of one. A whole chat has `message`, a streamed chat `delta`, and a text completion
    `text`."""

    index: int = 0
    message: MessageWire | None = None
    delta: MessageWire | None = None
    text: str | None = None
    finish_reason: str | None = None
    logprobs: LogprobsWire | None = None


class PromptDetailsWire(Wire):
    """Details of the prompt's tokens."""

    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    audio_tokens: int | None = None


class CompletionDetailsWire(Wire):
    """Details of the completion's tokens."""

    reasoning_tokens: int | None = None
    audio_tokens: int | None = None
    accepted_prediction_tokens: int | None = None
    rejected_prediction_tokens: int | None = None


NO_PROMPT_DETAILS, NO_COMPLETION_DETAILS = PromptDetailsWire(), CompletionDetailsWire()


class UsageWire(Wire):
    """Token counts."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: PromptDetailsWire | None = None
    prompt_cache_hit_tokens: int | None = None
    """DeepSeek's name of the cached tokens."""
    completion_tokens_details: CompletionDetailsWire | None = None


class ErrorWire(Wire):
    """An error. Some servers send a text instead of this object."""

    message: Any = None
    type: Any = None
    code: Any = None
    param: Any = None
    metadata: Any = None
    """OpenRouter's: `flagged_input` is in it if a moderation refused the prompt, with 403."""


class AnswerWire(Wire):
    """A whole answer, or a chunk of a stream."""

    choices: list[ChoiceWire] | None = None
    usage: UsageWire | None = None
    error: Raw = NOTHING


class ErrorAnswer(Wire):
    """The body of an error: OpenAI's, FastAPI's `detail`, or a message alone."""

    error: ErrorWire | str | None = None
    message: Any = None
    detail: Any = None
    code: Any = None
    type: Any = None


class VectorWire(Wire):
    """One vector: numbers, or base64 of little-endian float32."""

    embedding: Raw
    """Read apart from the others, since the decoder keeps the interpreter's lock."""
    index: int | None = None


class VectorsWire(Wire):
    """Vectors of several texts."""

    data: list[VectorWire]
    usage: UsageWire | None = None


class ModelWire(Wire):
    """One model in the list."""

    id: str


class ModelsWire(Wire):
    """The list of models."""

    data: list[ModelWire]


read_error = msgspec.json.Decoder(ErrorAnswer).decode


def decode_error(body: bytes) -> VendorError:
    """Reads the body of an error. A body that cannot be read, or is too large for an error, gives an empty
    message."""
    if len(body) > MAX_ERROR_BODY:
        return VendorError("")
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
    if isinstance(error.metadata, dict) and "flagged_input" in error.metadata:
        kind = CONTENT_FLAGGED
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


def require_no_error(data: bytes, answer: AnswerWire) -> None:
    """Raises StreamFailure for an error in the place of an answer or a chunk. Some have no field `error`."""
    if has_value(answer.error):
        raise StreamFailure(decode_error(data))
    if answer.usage is not None or answer.choices:
        return
    error = decode_error(data)
    if error.message:
        raise StreamFailure(error)
