"""Errors as HTTP responses, and the log record of a request that ends with an error.

The error gives status and headers, the dialect gives the body. A log record contains no text of the caller:
fields have the names that dialects know, and a model has its own name. Only the path of an unknown route is
logged as it came, shortened and escaped, with the client's address: they show a wrong base URL and who uses
it.
"""

import logging
import math
from functools import cache

from starlette.types import Message, Send

from antiphon.dialects.base import Dialect, Endpoint, Request
from antiphon.dialects.common.openapi_schemas import list_body_shapes, list_field_names, list_parameters
from antiphon.errors import (
    AntiphonError,
    BudgetExceeded,
    InternalError,
    MethodNotAllowed,
    RequestError,
    RouteNotFound,
)
from antiphon.http.authenticate import CHOICES
from antiphon.http.state import AppState
from antiphon.telemetry.logs import cut_unknown_path, describe_exception, record

DEFAULT_RETRY = 1.0
"""Seconds for Retry-After where the error names none: an engine is back within a few."""

CLIENTS_RETRY = frozenset({408, 409, 429})
"""Besides 500 and above, what OpenAI's clients send again by themselves unless `x-should-retry` says no."""

SERVER = 500

UNAUTHORIZED, TIMED_OUT, TOO_MANY, UNAVAILABLE = 401, 408, 429, 503

HEADERS = frozenset({"authorization", *(name.decode() for name in CHOICES)})
"""Names of headers that errors blame."""

LONGEST_PATH = 200
"""Characters of a path in the log."""


def build_internal_error(request_id: str) -> InternalError:
    """What a caller hears of a defect: the request id and nothing else."""
    return InternalError(f"something went wrong inside the server; the request id is {request_id}")


def choose_log_level(error: AntiphonError) -> int:
    """How loud the log says it: what a caller did is no news to an operator."""
    return logging.INFO if isinstance(error, RequestError) else logging.WARNING


def describe_cause(error: AntiphonError) -> str | None:
    """What the log says of why, without words of a caller: the sentence of a refusal may hold some, that of a
    failure has none, or has a cause of its own."""
    return error.cause if isinstance(error, RequestError | InternalError) else error.cause or error.message


def build_error_headers(error: AntiphonError, status: int) -> list[tuple[bytes, bytes]]:
    """The headers that an error calls for which is answered with a status, besides those of its body."""
    headers: list[tuple[bytes, bytes]] = []
    retry_after, is_gone = error.retry_after, isinstance(error, BudgetExceeded)
    if retry_after is None and status in (TOO_MANY, UNAVAILABLE) and not is_gone:
        retry_after = DEFAULT_RETRY
    if retry_after is not None:
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(retry_after))))
    if status in CLIENTS_RETRY or status >= SERVER or is_gone:
        headers.append((b"x-should-retry", b"true" if error.retryable else b"false"))
    if status == UNAUTHORIZED:
        headers.append((b"www-authenticate", b'Bearer realm="antiphon"'))
    if isinstance(error, MethodNotAllowed):
        headers.append((b"allow", ", ".join(error.allowed).encode()))
    if error.status == TIMED_OUT:
        headers.append((b"connection", b"close"))
    return headers


def build_json_start(status: int, length: int, headers: list[tuple[bytes, bytes]] | None = None) -> Message:
    """The message that opens a JSON response."""
    fixed = [(b"content-type", b"application/json"), (b"content-length", b"%d" % length)]
    return {"type": "http.response.start", "status": status, "headers": fixed + (headers or [])}


async def send_error(
    send: Send, dialect: Dialect, error: AntiphonError, headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    """A whole error response in the dialect's shape."""
    body, status = dialect.error(error), dialect.status(error)
    await send(build_json_start(status, len(body), build_error_headers(error, status) + (headers or [])))
    await send({"type": "http.response.body", "body": body})


def to_api_error(problem: Exception, request_id: str) -> AntiphonError:
    """What a caller is told of a problem. A defect becomes an InternalError, and a log record with its place
    but not its message; an engine that contained a defect of its own says the place."""
    if isinstance(problem, InternalError):
        if problem.message == build_internal_error(request_id).message:
            return problem
        record("internal_error", logging.ERROR, request_id=request_id, problem=problem.message)
        return build_internal_error(request_id)
    if isinstance(problem, AntiphonError):
        return problem
    record("internal_error", logging.ERROR, request_id=request_id, problem=describe_exception(problem))
    return build_internal_error(request_id)


def record_refusal(
    error: AntiphonError, status: int, request: Request, raw_path: bytes, edge: AppState
) -> None:
    """Records an error that is answered with a status. A defect has its own record already."""
    if isinstance(error, InternalError):
        return
    more: dict[str, object] = {"status": status, "method": request.method}
    if isinstance(error, RouteNotFound):
        more |= {"path": sanitize_path(raw_path), "client": request.client}
    record_failure("refused", error, request, edge, more)


def record_failure(
    event: str,
    error: AntiphonError,
    request: Request,
    edge: AppState,
    more: dict[str, object] | None = None,
) -> None:
    """Records an error with what its work took."""
    record(
        event,
        choose_log_level(error),
        request_id=request.id,
        code=error.code,
        cause=describe_cause(error),
        param=cut_unknown_path(error.param, _list_known_fields(edge.dialects, edge.admin)),
        model=request.progress.model or None,
        **(more or {}),
        **request.progress.account,
    )


@cache
def _list_known_fields(
    dialects: tuple[Dialect, ...], admin: tuple[Endpoint, ...]
) -> tuple[frozenset[str], ...]:
    """Names of all fields, parameters and headers of requests."""
    bodies = list_field_names(list_body_shapes(admin))
    parameters = {str(each["name"]) for endpoint in admin for each in list_parameters(endpoint)}
    return (*(dialect.fields() for dialect in dialects), bodies | parameters | {"id"}, HEADERS)


def sanitize_path(path: bytes) -> str:
    """A path as it was sent, in printable ASCII and not too long."""
    text = path[: LONGEST_PATH + 1].decode("ascii", "backslashreplace")
    plain = "".join(character if character.isprintable() else "?" for character in text)
    return plain if len(plain) <= LONGEST_PATH else plain[:LONGEST_PATH] + "..."
