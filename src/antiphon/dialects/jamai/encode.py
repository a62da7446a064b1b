"""Encodes answers, streams, pages of lists and errors in JamAI Base's form, and reads the queries of lists.

JamAI's client reads only `data:` lines and blank lines. It fails at comments and event names. Every query
parameter has an effect or is refused.
"""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, Struct

from antiphon.bodies.strict_json import read_object, sanitize_key
from antiphon.dialects.base import GenerationCall, Headers, Request, ResponseMeta
from antiphon.dialects.common.chunks import ChatChunkBuilder, OpenAIStreamEncoder
from antiphon.dialects.common.encode import build_extras, build_references, build_usage, encode_chat
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

QUERY = "query"
"""The start of a query parameter's path, such as `query.page`."""

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

PROBLEM_TYPES: Mapping[str, str] = MappingProxyType(
    {
        "invalid_json": "json_invalid",
        "missing_required_parameter": "missing",
        "unknown_parameter": "extra_forbidden",
    }
)
"""The type of a problem, by the error's code. The default is `value_error`."""


class JamaiChunkBuilder(ChatChunkBuilder):
    """Builds OpenAI's chat chunks. JamAI's client needs further keys in each part of a call."""

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

    def __init__(self, meta: ResponseMeta, call: GenerationCall, request: Request) -> None:
        super().__init__(JamaiChunkBuilder(), meta, call)
        self._request = request

    def encode_references(self, references: References) -> bytes:
        return b"data: %b\n\n" % _encode(build_references(references))

    def encode_unknown_citations(self, unknown: UnknownCitations) -> bytes:
        """Returns nothing: JamAI's clients read references only from the first event."""
        return b""

    def encode_usage(self, usage: Usage) -> bytes:
        shape = build_usage(usage) or JamaiUsage()
        return b"data: %b\n\n" % _encode(
            self._builder.build_chunk(self._meta, [], shape)  # type: ignore[arg-type]
        )

    def encode_error(self, error: AntiphonError) -> bytes:
        return b"data: %b\n\n" % encode_jamai_error(error, self._request)

    def keep_alive(self) -> bytes:
        return b"\n"  # JamAI's client ignores a blank line


class JamaiChatEncoder:
    """Encodes the answers of one chat."""

    def __init__(self, request: Request) -> None:
        self._request = request

    def encode_answer(
        self, meta: ResponseMeta, call: GenerationCall, generation: CollectedGeneration
    ) -> bytes:
        return encode_chat(meta, call, generation, JamaiUsage())

    def create_encoder(self, meta: ResponseMeta, call: GenerationCall) -> JamaiStreamEncoder:
        return JamaiStreamEncoder(meta, call, self._request)


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


DEFAULT_LIMIT, LARGEST_LIMIT = 100, 1000
"""The default and the largest number of items of one page."""

LARGEST_OFFSET = 2**31 - 1

TRUE, FALSE = ("true", "1"), ("false", "0")

Item = TypeVar("Item", bound=Struct)


class JamaiPage(Struct, frozen=True, kw_only=True):
    """A part of a list."""

    items: list[Any]
    offset: int
    """The number of items before the first one."""
    limit: int
    """The most items of the page."""
    total: int
    """The number of items of the whole list."""
    end_cursor: None = None


Page = TypeVar("Page", bound=JamaiPage)


class ListQuery:
    """The query parameters of one request. An empty parameter counts as absent."""

    def __init__(self, request: Request, *known_names: str, repeated: tuple[str, ...] = ()) -> None:
        """Raises a RequestError for an unknown parameter, and for one that is sent twice unless it is in
        `repeated`."""
        self._values: dict[str, list[str]] = {}
        for name, value in request.query():
            shown_name = sanitize_key(name)
            if name not in (*known_names, *repeated):
                raise UnknownParameter(f"unknown query parameter {shown_name}", param=f"{QUERY}.{shown_name}")
            if name in self._values and name not in repeated:
                raise InvalidValue(
                    f"{shown_name} is in the query twice; send it once", param=f"{QUERY}.{shown_name}"
                )
            self._values.setdefault(name, []).append(value)

    def get_all(self, name: str) -> list[str]:
        """Returns all values of a parameter, without empty ones."""
        return [value for value in self._values.get(name, ()) if value]

    def get(self, name: str) -> str:
        """Returns the value of a parameter; empty if there is none."""
        return next(iter(self.get_all(name)), "")

    def require(self, name: str) -> str:
        """Returns the value of a parameter. Raises MissingParameter if there is none."""
        if not (value := self.get(name)):
            raise MissingParameter(f"{name} is missing in the query", param=f"{QUERY}.{name}")
        return value

    def read_number(self, name: str, default: int, minimum: int, maximum: int) -> int:
        """Returns a whole number. Raises InvalidValue."""
        text = self.get(name) or str(default)
        is_number = text.isascii() and text.isdigit() and len(text) <= len(str(maximum))
        if not is_number or not minimum <= int(text) <= maximum:
            raise InvalidValue(
                f"{name} must be a whole number of {minimum} to {maximum}", param=f"{QUERY}.{name}"
            )
        return int(text)

    def read_switch(self, name: str, default: bool) -> bool:
        """Returns the value of a boolean parameter. Raises InvalidValue."""
        text = self.get(name).lower()
        if text and text not in (*TRUE, *FALSE):
            raise InvalidValue(f"{name} must be true or false", param=f"{QUERY}.{name}")
        return text in TRUE if text else default

    def read_word(self, name: str, default: str, words: Sequence[str]) -> str:
        """Returns one of the words. Raises InvalidValue."""
        text = self.get(name) or default
        if text not in words:
            raise InvalidValue(
                f"{name} must be {', '.join(words[:-1])} or {words[-1]}", param=f"{QUERY}.{name}"
            )
        return text


ORDER_PARAMETERS = ("order_by", "order_ascending")
PAGING = ("offset", "limit", *ORDER_PARAMETERS)


def order_items(
    items: Sequence[Item], query: ListQuery, sort_fields: Sequence[str], default: str
) -> list[Item]:
    """Sorts the items as the query requests. `sort_fields`: the possible sort fields. Raises InvalidValue."""
    field = query.read_word("order_by", default, sort_fields)
    is_ascending = query.read_switch("order_ascending", default=True)
    return sorted(items, key=lambda item: str(getattr(item, field)), reverse=not is_ascending)


def build_page(
    shape: type[Page], items: Sequence[Struct], query: ListQuery, sort_fields: Sequence[str]
) -> Page:
    """Builds the page that the query requests. `sort_fields`: the possible sort fields. Raises
    InvalidValue."""
    ordered_items = order_items(items, query, sort_fields, "updated_at")
    offset = query.read_number("offset", 0, 0, LARGEST_OFFSET)
    limit = query.read_number("limit", DEFAULT_LIMIT, 1, LARGEST_LIMIT)
    return shape(
        items=ordered_items[offset : offset + limit], offset=offset, limit=limit, total=len(ordered_items)
    )


def declare_paging(sort_fields: Sequence[str]) -> tuple[Mapping[str, Any], ...]:
    """Returns the parameters of a list in OpenAPI's form."""
    schemas: dict[str, Mapping[str, Any]] = {
        "offset": {"type": "integer", "minimum": 0, "maximum": LARGEST_OFFSET, "default": 0},
        "limit": {"type": "integer", "minimum": 1, "maximum": LARGEST_LIMIT, "default": DEFAULT_LIMIT},
        "order_by": {"enum": list(sort_fields)},
        "order_ascending": {"type": "boolean", "default": True},
    }
    return tuple(declare_parameter(name, schema) for name, schema in schemas.items())


def declare_parameter(name: str, schema: Mapping[str, Any], **properties: object) -> Mapping[str, Any]:
    """Returns a query parameter in OpenAPI's form."""
    return {"name": name, "in": "query", "schema": schema, **properties}
