"""Errors as HTTP responses, and the log record of a request that ends with an error.

The error determines the status and the headers, and the dialect determines the body. A log record contains no
text of the caller. The log names only fields that dialects know, a model by its own name, and the declared
path of the endpoint. For an unknown route the log contains the path that was sent, shortened and escaped. It
helps the operator to find a client with a wrong base URL.
"""

import logging
import math
from functools import cache

from antiphon.dialects.base import Dialect, Endpoint
from antiphon.dialects.common.openapi_schemas import list_body_shapes, list_field_names, list_parameters
from antiphon.dialects.http_types import Request
from antiphon.errors import (
    AntiphonError,
    BudgetExceeded,
    InternalError,
    MethodNotAllowed,
    RequestError,
)
from antiphon.http.authenticate import SCOPE_HEADERS
from antiphon.http.protocol import Exchange
from antiphon.http.state import AppState
from antiphon.telemetry.logs import cut_unknown_path, describe_exception, record

DEFAULT_RETRY_AFTER = 1.0
"""Seconds for Retry-After if the error names none. An engine restarts within a few seconds."""

CLIENT_RETRY_STATUSES = frozenset({408, 409, 429})
"""Statuses below 500 that OpenAI's client libraries retry unless `x-should-retry` is false."""

SERVER_ERROR = 500

UNAUTHORIZED, TIMED_OUT, TOO_MANY, UNAVAILABLE = 401, 408, 429, 503

JSON_HEADER = (b"content-type", b"application/json")

HEADER_PARAMETERS = frozenset({"authorization", *(name.decode() for name in SCOPE_HEADERS)})
"""Names of headers that an error can name as its parameter."""

MAX_PATH_LENGTH = 200
"""The most characters of a path in the log."""


def build_internal_error(request_id: str) -> InternalError:
    """Returns the error that a caller gets for a defect. It contains only the request id."""
    return InternalError(f"something went wrong inside the server; the request id is {request_id}")


def choose_log_level(error: AntiphonError) -> int:
    """Returns the log level of an error. An error of the caller is information, not a warning."""
    return logging.INFO if isinstance(error, RequestError) else logging.WARNING


def describe_cause(error: AntiphonError) -> str | None:
    """Returns the cause of an error for the log, or None. The message of a RequestError is left out, because
    it can contain text of the caller."""
    return error.cause if isinstance(error, RequestError | InternalError) else error.cause or error.message


def build_error_headers(error: AntiphonError, status: int) -> list[tuple[bytes, bytes]]:
    """Returns the headers that an error adds to those of its body. `status` is the status of the response."""
    headers: list[tuple[bytes, bytes]] = []
    retry_after, is_budget_spent = error.retry_after, isinstance(error, BudgetExceeded)
    if retry_after is None and status in (TOO_MANY, UNAVAILABLE) and not is_budget_spent:
        retry_after = DEFAULT_RETRY_AFTER
    if retry_after is not None:
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(retry_after))))
    if status in CLIENT_RETRY_STATUSES or status >= SERVER_ERROR or is_budget_spent:
        headers.append((b"x-should-retry", b"true" if error.retryable else b"false"))
    if status == UNAUTHORIZED:
        headers.append((b"www-authenticate", b'Bearer realm="antiphon"'))
    if isinstance(error, MethodNotAllowed):
        headers.append((b"allow", ", ".join(error.allowed).encode()))
    return headers


async def send_error(
    exchange: Exchange,
    dialect: Dialect,
    error: AntiphonError,
    request: Request,
    headers: list[tuple[bytes, bytes]],
) -> None:
    """Sends a whole error response in the dialect's format. After a request that is late, the connection
    closes."""
    body, status = dialect.encode_error(error, request), dialect.get_status(error)
    if error.status == TIMED_OUT:
        exchange.keep_alive = False
    await exchange.connection.drain()
    exchange.begin(status, [JSON_HEADER, *build_error_headers(error, status), *headers], len(body))
    exchange.write(body, is_last=True)


def to_api_error(exception: Exception, request_id: str) -> AntiphonError:
    """Converts an exception to the error that the caller gets. Any exception but an AntiphonError is a defect
    and becomes an InternalError. The log gets the defect's file and line, but not its message. The message of
    an engine's InternalError is already a file and line, and is logged."""
    if isinstance(exception, InternalError):
        if exception.message == build_internal_error(request_id).message:
            return exception
        record("internal_error", logging.ERROR, request_id=request_id, problem=exception.message)
        return build_internal_error(request_id)
    if isinstance(exception, AntiphonError):
        return exception
    record("internal_error", logging.ERROR, request_id=request_id, problem=describe_exception(exception))
    return build_internal_error(request_id)


def record_refusal(
    error: AntiphonError, status: int, request: Request, path: str, app_state: AppState
) -> None:
    """Logs an error that is sent as a response, unless it is an InternalError: `to_api_error` has logged it.
    `path`: without text of the caller, unless no endpoint has it."""
    if isinstance(error, InternalError):
        return
    fields: dict[str, object] = {"status": status, "method": request.method, "path": path}
    record_failure("refused", error, request, app_state, fields)


def record_failure(
    event: str,
    error: AntiphonError,
    request: Request,
    app_state: AppState,
    fields: dict[str, object],
) -> None:
    """Logs an error with the client's address, and the tokens and times of its request."""
    record(
        event,
        choose_log_level(error),
        request_id=request.id,
        code=error.code,
        cause=describe_cause(error),
        param=cut_unknown_path(
            error.param, _list_known_fields(app_state.dialects, app_state.admin_endpoints)
        ),
        model=request.progress.model or None,
        client=request.client,
        **fields,
        **request.progress.log_fields,
    )


@cache
def _list_known_fields(
    dialects: tuple[Dialect, ...], admin_endpoints: tuple[Endpoint, ...]
) -> tuple[frozenset[str], ...]:
    """Returns the names of all fields, parameters and headers of requests."""
    bodies = list_field_names(list_body_shapes(admin_endpoints))
    parameters = {
        str(parameter["name"]) for endpoint in admin_endpoints for parameter in list_parameters(endpoint)
    }
    return (*(dialect.list_fields() for dialect in dialects), bodies | parameters | {"id"}, HEADER_PARAMETERS)


def sanitize_path(path: bytes) -> str:
    """Returns a path in printable ASCII, shortened if it is too long."""
    text = path[: MAX_PATH_LENGTH + 1].decode("ascii", "backslashreplace")
    printable = "".join(character if character.isprintable() else "?" for character in text)
    return printable if len(printable) <= MAX_PATH_LENGTH else printable[:MAX_PATH_LENGTH] + "..."
