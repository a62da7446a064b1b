"""The connections of one provider. Detects whether a request used a connection that the vendor had closed.

A vendor can close an idle connection at the moment when the next request is written to it. It then has read
nothing and sends no answer. HTTP clients send such a request again (RFC 9110, 9.2.2). This server does so
only if a used connection broke at once, before any byte of an answer.
"""

import asyncio
from contextvars import ContextVar
from functools import lru_cache, partial
from math import ceil
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp.client_proto import ResponseHandler

if TYPE_CHECKING:
    from aiohttp.tracing import Trace

STALE_S = 1.0
"""Seconds within which a request notices a closed connection. If the connection closes later, the vendor may
have begun to generate."""

NO_ANSWER = aiohttp.ServerDisconnectedError().message
"""The message of a disconnection before the first byte."""

TICKS = 20
"""Parts of a second to which the wait for a connection is rounded up."""

_has_opened: ContextVar[bool] = ContextVar("has_opened", default=False)


class VendorProtocol(ResponseHandler):
    """A connection to a vendor."""

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Starts to read again if reading was paused. The reader of a body calls this for every part. Without
        this check the base class would call its parser each time."""
        if self._reading_paused:
            super().resume_reading(resume_parser)


def _make_protocol(loop: asyncio.AbstractEventLoop) -> ResponseHandler:
    return VendorProtocol(loop)


class ConnectionPool(aiohttp.TCPConnector):
    """Remembers for each request whether a connection was opened for it. Needs a running event loop."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - those of the base class
        super().__init__(**options)
        self._factory = partial(_make_protocol, asyncio.get_running_loop())

    async def _create_connection(
        self,
        req: aiohttp.ClientRequest,
        traces: "list[Trace]",
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - the base class has it
    ) -> ResponseHandler:
        _has_opened.set(True)
        return await super()._create_connection(req, traces, timeout)


def reset_opened() -> None:
    """Forgets, for the running task, that a connection was opened. Call it before each request."""
    _has_opened.set(False)


def has_opened() -> bool:
    """Whether a connection was opened for the task's request."""
    return _has_opened.get()


def is_unanswered(failure: aiohttp.ClientConnectionError) -> bool:
    """Whether the connection broke before any byte of an answer."""
    if isinstance(failure, aiohttp.ServerDisconnectedError):
        return failure.message == NO_ANSWER
    return isinstance(failure, aiohttp.ClientOSError)


def build_timeout(seconds: float, connect_seconds: float) -> aiohttp.ClientTimeout:
    """Returns the timeouts of a connection. `seconds`: to get one from the pool. `connect_seconds`: to open
    one."""
    return _build_rounded(max(1, ceil(seconds * TICKS)), connect_seconds)


@lru_cache(1024)
def _build_rounded(ticks: int, connect_seconds: float) -> aiohttp.ClientTimeout:
    """Returns a cached object, because aiohttp takes long to create it."""
    return aiohttp.ClientTimeout(connect=ticks / TICKS, sock_connect=connect_seconds)
