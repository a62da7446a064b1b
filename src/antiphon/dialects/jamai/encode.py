"""Encodes answers, streams and errors in JamAI Base's form.

JamAI's client reads only `data:` lines and blank lines. It fails at comments and at names of events.
"""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec
from msgspec import UNSET

from antiphon.dialects.base import GenerationCall, Headers, Request, ResponseMeta
from antiphon.dialects.common.chunks import ChatChunkBuilder, OpenAIStreamEncoder
from antiphon.dialects.common.encode import build_extras, build_usage, encode_chat
from antiphon.dialects.common.references import build_references
from antiphon.dialects.common.response_types import ChatChunkChoice
from antiphon.dialects.jamai.wire_types import (
    JamaiDelta,
    JamaiError,
    JamaiFunctionPart,
    JamaiProblem,
    JamaiToolCallPart,
    JamaiUsage,
)
from antiphon.domain.collect import CollectedGeneration
from antiphon.domain.events import ToolCallDelta, ToolCallStarted, Usage
from antiphon.domain.limits import LimitStatus
from antiphon.domain.retrieval import References, UnknownCitations
from antiphon.errors import (
    AntiphonError,
    AuthenticationFailed,
    BudgetExceeded,
    Conflict,
    ContextLengthExceeded,
    FeatureNotServed,
    InvalidValue,
    KnowledgeLimitReached,
    MalformedBody,
    MethodNotAllowed,
    MissingParameter,
    ModelNotFound,
    NotFound,
    PermissionDenied,
    ProviderKeyRefused,
    ProviderModelMissing,
    RateLimited,
    RequestError,
    RouteNotFound,
    UnknownParameter,
    UnsupportedMediaType,
    UnsupportedParameter,
)
from antiphon.validation_messages import STEP

_encode = msgspec.json.Encoder().encode

KEEP_ALIVE = b"\n"
"""A blank line, which JamAI's client skips."""

QUERY = "query"
"""The first word of a query parameter's path, as `query.page`."""

UNAUTHORIZED, UNPROCESSABLE, BAD_REQUEST, TOO_MANY = 401, 422, 400, 429

LARGEST_BODY = 1 << 16
"""The most bytes of a body that an error repeats."""

SHOWN_HEADERS = (
    "authorization", "x-user-id", "x-project-id", "x-request-id", "user-agent", "content-type",
    "content-length", "accept",
)  # fmt: skip
"""The headers that an error repeats."""

SCOPE_HEADERS = frozenset({"authorization", "x-user-id", "x-project-id"})
"""The headers that say who calls."""

MASK = "***"

FIELDS: Mapping[str, str] = MappingProxyType({"expires_at": "expiry", "project": "project_id"})
"""JamAI's names of fields of access tokens."""


class ErrorName(NamedTuple):
    """What JamAI calls an error."""

    status: int
    code: str
    exception: str | None


VALIDATION = ErrorName(UNPROCESSABLE, "validation_error", "RequestValidationError")
BAD_INPUT = ErrorName(UNPROCESSABLE, "bad_input", "BadInputError")
NOT_FOUND = ErrorName(404, "resource_not_found", "ResourceNotFoundError")
STRANGER = ErrorName(UNAUTHORIZED, "unauthorized", "AuthorizationError")

BY_CLASS: Mapping[type[AntiphonError], ErrorName] = MappingProxyType(
    {
        AuthenticationFailed: STRANGER,
        ProviderKeyRefused: ErrorName(401, "external_authentication_failed", "ExternalAuthError"),
        BudgetExceeded: ErrorName(403, "insufficient_credits", "InsufficientCreditsError"),
        PermissionDenied: ErrorName(403, "forbidden", "ForbiddenError"),
        ModelNotFound: NOT_FOUND,
        NotFound: NOT_FOUND,
        ProviderModelMissing: NOT_FOUND,
        RouteNotFound: ErrorName(404, "http_error", None),
        MethodNotAllowed: ErrorName(405, "method_not_allowed", "MethodNotAllowedError"),
        KnowledgeLimitReached: ErrorName(403, "upgrade_tier", "UpgradeTierError"),
        Conflict: ErrorName(409, "resource_exists", "ResourceExistsError"),
        UnsupportedMediaType: ErrorName(415, "unsupported_media_type", "UnsupportedMediaTypeError"),
        ContextLengthExceeded: ErrorName(UNPROCESSABLE, "context_overflow", "ContextOverflowError"),
        FeatureNotServed: ErrorName(501, "not_implemented", None),
        **dict.fromkeys((MalformedBody, InvalidValue, MissingParameter), VALIDATION),
        **dict.fromkeys((UnknownParameter, UnsupportedParameter), VALIDATION),
    }
)

BY_STATUS: Mapping[int, ErrorName] = MappingProxyType(
    {
        400: BAD_INPUT,
        429: ErrorName(TOO_MANY, "rate_limit_exceeded", "RateLimitExceedError"),
        503: ErrorName(503, "busy", "ServerBusyError"),
    }
)

TYPES: Mapping[str, str] = MappingProxyType(
    {
        "invalid_json": "json_invalid",
        "missing_required_parameter": "missing",
        "unknown_parameter": "extra_forbidden",
    }
)
"""The type of a problem for codes of errors. Others are `value_error`."""


class JamaiChunkBuilder(ChatChunkBuilder):
    """Builds OpenAI's chat chunks, with the keys in each part of a call that JamAI's client needs."""

    def build_call(self, event: ToolCallStarted | ToolCallDelta) -> ChatChunkChoice:
        if isinstance(event, ToolCallStarted):
            call = JamaiToolCallPart(
                index=event.index,
                id=event.id,
                function=JamaiFunctionPart(name=event.name),
                extra_content=build_extras(event.signature),
            )
        else:
            call = JamaiToolCallPart(index=event.index, function=JamaiFunctionPart(arguments=event.arguments))
        return self.build_part(event.choice, JamaiDelta(tool_calls=[call]), event.scores)


class JamaiStreamEncoder(OpenAIStreamEncoder[ChatChunkChoice]):
    """Encodes one stream. Its last chunk always has a usage."""

    def __init__(self, head: ResponseMeta, call: GenerationCall, request: Request) -> None:
        super().__init__(JamaiChunkBuilder(), head, call)
        self._request = request

    def encode_references(self, references: References) -> bytes:
        return b"data: %b\n\n" % _encode(build_references(references))

    def encode_unknown(self, unknown: UnknownCitations) -> bytes:
        """Shows nothing: JamAI's clients read references from the first event only."""
        return b""

    def encode_usage(self, usage: Usage) -> bytes:
        shape = build_usage(usage) or JamaiUsage()
        return b"data: %b\n\n" % _encode(
            self._builder.build_chunk(self._meta, [], shape)  # type: ignore[arg-type]
        )

    def error(self, error: AntiphonError) -> bytes:
        return b"data: %b\n\n" % encode_jamai_error(error, self._request)


class JamaiChatEncoder:
    """Encodes the answers of one chat."""

    def __init__(self, request: Request) -> None:
        self._request = request

    def answer(self, meta: ResponseMeta, call: GenerationCall, generation: CollectedGeneration) -> bytes:
        return encode_chat(meta, call, generation, JamaiUsage())

    def encoder(self, meta: ResponseMeta, call: GenerationCall) -> JamaiStreamEncoder:
        return JamaiStreamEncoder(meta, call, self._request)


# --- errors -------------------------------------------------------------------------------------------------


def name_error(error: AntiphonError) -> ErrorName:
    """Returns what JamAI calls an error. A request that is no proper HTTP keeps its status."""
    is_scope = error.param in SCOPE_HEADERS and isinstance(error, PermissionDenied | MissingParameter)
    if is_scope:
        return STRANGER
    known = next((BY_CLASS[each] for each in type(error).__mro__ if each in BY_CLASS), None)
    if known is not None:
        return known
    if error.status in BY_STATUS and error.code != RequestError.code:
        return BY_STATUS[error.status]
    if isinstance(error, RequestError):
        return ErrorName(error.status, BAD_INPUT.code, BAD_INPUT.exception)
    return ErrorName(error.status, "unexpected_error", "UnexpectedError")


def encode_jamai_error(error: AntiphonError, request: Request | None) -> bytes:
    """Encodes an error in JamAI's envelope."""
    name, message = name_error(error), error.message
    detail: str | list[JamaiProblem] = message
    body: object = UNSET
    if name is VALIDATION:
        place = _split_param(error.param or "", b"" if request is None else request.body)
        detail = [JamaiProblem(TYPES.get(error.code, "value_error"), place, message)]
        message = f"Your request contains errors:\n1. {'.'.join(map(str, place))} : {message}"
        body = _quote_body(error, request)
    return _encode(
        JamaiError(
            error=name.code,
            message=message,
            detail=detail,
            request_id="" if request is None else request.id,
            exception=name.exception,
            request_headers={} if request is None else _mask_headers(request),
            body=body,
        )
    )


def _split_param(param: str, body: bytes) -> list[str | int]:
    """Returns the place of a field: `messages[0].role` is `body`, `messages`, 0 and `role`. A body can have a
    field `query` of its own."""
    if param in SCOPE_HEADERS:
        return ["header", param]
    steps = STEP.findall(FIELDS.get(param, param))
    path: list[str | int] = [int(index) if index else name for name, index in steps]
    is_in_query = param.startswith(f"{QUERY}.") and f'"{QUERY}"'.encode() not in body
    return path if is_in_query else ["body", *path]


def _quote_body(error: AntiphonError, request: Request | None) -> msgspec.Raw | msgspec.UnsetType | None:
    """Returns the request's body if it is a small JSON object, and UNSET if there is none."""
    if request is None or not request.body:
        return UNSET
    is_json = request.headers.get(b"content-type", [b""])[0].startswith(b"application/json")
    if isinstance(error, MalformedBody) or len(request.body) > LARGEST_BODY or not is_json:
        return None
    return msgspec.Raw(request.body)


def _mask_headers(request: Request) -> dict[str, str]:
    """Returns the request's headers that an error repeats. The credential is masked."""
    found = {
        name: b", ".join(request.headers.get(name.encode(), ())).decode("latin-1") for name in SHOWN_HEADERS
    }
    return {name: MASK if name == "authorization" else value for name, value in found.items() if value}


def build_limit_headers(error: AntiphonError, now: float) -> Headers:
    """Returns JamAI's headers of a refusal by a limit, with whole numbers. `now`: Unix seconds."""
    standings = error.statuses if isinstance(error, RateLimited) else ()
    status = next((each for each in standings if isinstance(each, LimitStatus)), None)
    if status is None:
        return ()
    limit = status.limit
    window = None if limit.window is None else str(limit.window)
    return (
        (b"x-ratelimit-limit", b"%d" % limit.amount),
        (b"x-ratelimit-remaining", b"%d" % status.remaining),
        (b"x-ratelimit-reset", b"%d" % math.ceil(now + status.reset)),
        (b"x-ratelimit-used", b"%d" % (limit.amount - status.remaining)),
        (b"x-ratelimit-meta", _encode({"measure": str(limit.measure), "window": window})),
    )
