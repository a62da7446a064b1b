"""Errors as HTTP responses: status and headers from the error, the body from the dialect."""

import logging
import math

from starlette.types import Message, Send

from antiphon.dialects.base import Dialect
from antiphon.errors import AntiphonError, BudgetExceeded, InternalError, MethodNotAllowed, RequestError
from antiphon.telemetry.logs import describe_exception, record

DEFAULT_RETRY = 1.0
"""Seconds for Retry-After where the error names none: an engine is back within a few."""

CLIENTS_RETRY = frozenset({408, 409, 429})
"""Besides 500 and above, what OpenAI's clients send again by themselves unless `x-should-retry` says no."""

SERVER = 500
UNAUTHORIZED, TIMED_OUT, TOO_MANY, UNAVAILABLE = 401, 408, 429, 503


def internal_error(request_id: str) -> InternalError:
    """What a caller hears of a defect: the request id and nothing else."""
    return InternalError(f"something went wrong inside the server; the request id is {request_id}")


def level_of(error: AntiphonError) -> int:
    """How loud the log says it: what a caller did is no news to an operator."""
    return logging.INFO if isinstance(error, RequestError) else logging.WARNING


def cause_of(error: AntiphonError) -> str | None:
    """What the log says of why, without words of a caller: the sentence of a refusal may hold some, that of a
    failure has none, or has a cause of its own."""
    return error.cause if isinstance(error, RequestError | InternalError) else error.cause or error.message


def error_headers(error: AntiphonError, status: int) -> list[tuple[bytes, bytes]]:
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


def json_start(status: int, length: int, headers: list[tuple[bytes, bytes]] | None = None) -> Message:
    """The message that opens a JSON response."""
    fixed = [(b"content-type", b"application/json"), (b"content-length", b"%d" % length)]
    return {"type": "http.response.start", "status": status, "headers": fixed + (headers or [])}


async def send_error(
    send: Send, dialect: Dialect, error: AntiphonError, headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    """A whole error response in the dialect's shape."""
    body, status = dialect.error(error), dialect.status(error)
    await send(json_start(status, len(body), error_headers(error, status) + (headers or [])))
    await send({"type": "http.response.body", "body": body})


def to_api_error(problem: Exception, request_id: str) -> AntiphonError:
    """What a caller is told of a problem. A defect becomes an InternalError, and a log record with its place
    but not its message; an engine that contained a defect of its own says the place."""
    if isinstance(problem, InternalError):
        if problem.message == internal_error(request_id).message:
            return problem
        record("internal_error", logging.ERROR, request_id=request_id, problem=problem.message)
        return internal_error(request_id)
    if isinstance(problem, AntiphonError):
        return problem
    record("internal_error", logging.ERROR, request_id=request_id, problem=describe_exception(problem))
    return internal_error(request_id)
