"""The connections of one provider, and whether a request met one that the vendor had closed.

A vendor may close an idle connection in the moment in which the next request is written to it. It then
answers nothing, and has read nothing. HTTP clients send such a request again (RFC 9110, 9.2.2). Here this
holds only for a request on a used connection that broke at once, before any byte of an answer.
"""

from contextvars import ContextVar
from typing import TYPE_CHECKING

import aiohttp

if TYPE_CHECKING:
    from aiohttp.client_proto import ResponseHandler
    from aiohttp.tracing import Trace

STALE_S = 1.0
"""Seconds within which a closed connection shows. A vendor that closes later may have begun to work."""

NO_ANSWER = aiohttp.ServerDisconnectedError().message
"""The message of a disconnection before the first byte."""

_has_opened: ContextVar[bool] = ContextVar("has_opened", default=False)


class ConnectionPool(aiohttp.TCPConnector):
    """Remembers for each request whether a connection was opened for it."""

    async def _create_connection(
        self,
        req: aiohttp.ClientRequest,
        traces: "list[Trace]",
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - the base class has it
    ) -> "ResponseHandler":
        _has_opened.set(True)
        return await super()._create_connection(req, traces, timeout)


def start_request() -> None:
    """Begins a request of the running task."""
    _has_opened.set(False)


def has_opened() -> bool:
    """Whether a connection was opened for the task's request."""
    return _has_opened.get()


def is_unanswered(failure: aiohttp.ClientConnectionError) -> bool:
    """Whether the connection broke before any byte of an answer."""
    if isinstance(failure, aiohttp.ServerDisconnectedError):
        return failure.message == NO_ANSWER
    return isinstance(failure, aiohttp.ClientOSError)
