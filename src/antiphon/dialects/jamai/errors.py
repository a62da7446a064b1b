"""Errors in JamAI Base's form: their names, their envelope, and the headers of a refusal by a limit."""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec
from msgspec import UNSET

from antiphon.bodies.strict_json import read_object
from antiphon.dialects.common.list_query import QUERY
from antiphon.dialects.http_types import Headers, Request
from antiphon.dialects.jamai.wire_types import JamaiError, JamaiProblem
from antiphon.domain.limits import LimitStatus
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


UNAUTHORIZED, UNPROCESSABLE, BAD_REQUEST, TOO_MANY = 401, 422, 400, 429


LARGEST_BODY = 1 << 16
"""The most bytes of a body that an error contains."""


ERROR_HEADERS = (
    "authorization", "x-user-id", "x-project-id", "x-request-id", "user-agent", "content-type",
    "content-length", "accept",
)  # fmt: skip
"""The request headers that an error contains."""


SCOPE_HEADERS = frozenset({"authorization", "x-user-id", "x-project-id"})
"""The headers that identify the caller."""


MASK = "***"


FIELD_NAMES: Mapping[str, str] = MappingProxyType({"expires_at": "expiry", "project": "project_id"})
"""JamAI's names of access tokens' fields."""


PROBLEM_TYPES: Mapping[str, str] = MappingProxyType(
    {
        "invalid_json": "json_invalid",
        "missing_required_parameter": "missing",
        "unknown_parameter": "extra_forbidden",
    }
)
"""The type of a problem, by the error's code. The default is `value_error`."""


class ErrorName(NamedTuple):
    """JamAI's status, code and class of an error."""

    status: int
    code: str
    exception: str | None


VALIDATION = ErrorName(UNPROCESSABLE, "validation_error", "RequestValidationError")


BAD_INPUT = ErrorName(UNPROCESSABLE, "bad_input", "BadInputError")


NOT_FOUND = ErrorName(404, "resource_not_found", "ResourceNotFoundError")


UNAUTHORIZED_NAME = ErrorName(UNAUTHORIZED, "unauthorized", "AuthorizationError")


NAMES_BY_CLASS: Mapping[type[AntiphonError], ErrorName] = MappingProxyType(
    {
        AuthenticationFailed: UNAUTHORIZED_NAME,
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


NAMES_BY_STATUS: Mapping[int, ErrorName] = MappingProxyType(
    {
        400: BAD_INPUT,
        429: ErrorName(TOO_MANY, "rate_limit_exceeded", "RateLimitExceedError"),
        503: ErrorName(503, "busy", "ServerBusyError"),
    }
)


# --- errors -------------------------------------------------------------------------------------------------


def get_error_name(error: AntiphonError) -> ErrorName:
    """Returns JamAI's name of an error. An invalid HTTP request keeps its status."""
    is_about_caller = error.param in SCOPE_HEADERS and isinstance(error, PermissionDenied | MissingParameter)
    if is_about_caller:
        return UNAUTHORIZED_NAME
    name = next((NAMES_BY_CLASS[cls] for cls in type(error).__mro__ if cls in NAMES_BY_CLASS), None)
    if name is not None:
        return name
    if error.status in NAMES_BY_STATUS and error.code != RequestError.code:
        return NAMES_BY_STATUS[error.status]
    if isinstance(error, RequestError):
        return ErrorName(error.status, BAD_INPUT.code, BAD_INPUT.exception)
    return ErrorName(error.status, "unexpected_error", "UnexpectedError")


def encode_jamai_error(error: AntiphonError, request: Request | None) -> bytes:
    """Encodes an error in JamAI's envelope."""
    name, message = get_error_name(error), error.message
    detail: str | list[JamaiProblem] = message
    body: object = UNSET
    if name is VALIDATION:
        path = _split_param(error.param or "", b"" if request is None else request.body)
        detail = [JamaiProblem(PROBLEM_TYPES.get(error.code, "value_error"), path, message)]
        message = f"Your request contains errors:\n1. {'.'.join(map(str, path))} : {message}"
        body = _quote_body(request)
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
    """Returns the path of a field as JamAI writes it: `messages[0].role` becomes `body`, `messages`, 0 and
    `role`. The body itself can have a field `query`."""
    if param in SCOPE_HEADERS:
        return ["header", param]
    steps = STEP.findall(FIELD_NAMES.get(param, param))
    path: list[str | int] = [int(index) if index else name for name, index in steps]
    is_in_query = param.startswith(f"{QUERY}.") and f'"{QUERY}"'.encode() not in body
    return path if is_in_query else ["body", *path]


def _quote_body(request: Request | None) -> msgspec.Raw | msgspec.UnsetType | None:
    """Returns the request's body if it is a small JSON object; UNSET if there is no body; otherwise None. The
    object is encoded anew: the caller's bytes can be no JSON, or have line breaks that would end an event."""
    if request is None or not request.body:
        return UNSET
    is_json = request.headers.get(b"content-type", [b""])[0].startswith(b"application/json")
    if len(request.body) > LARGEST_BODY or not is_json:
        return None
    try:
        return msgspec.Raw(_encode(read_object(request.body)))
    except (MalformedBody, OverflowError, RecursionError):
        return None


def _mask_headers(request: Request) -> dict[str, str]:
    """Returns the request headers for an error. The credential is masked."""
    header_values = {
        name: b", ".join(request.headers.get(name.encode(), ())).decode("latin-1") for name in ERROR_HEADERS
    }
    return {
        name: MASK if name == "authorization" else value for name, value in header_values.items() if value
    }


def build_limit_headers(error: AntiphonError, now: float) -> Headers:
    """Returns JamAI's headers of a refusal by a limit. They contain whole numbers. `now`: Unix seconds."""
    statuses = error.statuses if isinstance(error, RateLimited) else ()
    status = next((status for status in statuses if isinstance(status, LimitStatus)), None)
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
