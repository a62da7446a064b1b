"""The connections of one provider. Tells whether a request got a new connection or an idle one.

A vendor can close an idle connection at the moment when the next request is written to it. The vendor then
has read nothing and sends no answer. HTTP clients send such a request again (RFC 9110, 9.2.2). This server
does so only if a used connection broke at once, before any byte of an answer.
"""

import asyncio
from contextvars import ContextVar
from functools import lru_cache, partial
from math import ceil
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp.client_proto import ResponseHandler

if TYPE_CHECKING:
    from aiohttp.client_reqrep import ConnectionKey
    from aiohttp.tracing import Trace

STALE_S = 1.0
"""Seconds within which a request notices a closed connection. If the connection closes later, the vendor may
have begun to generate."""

TICKS = 20
"""Parts of a second to which the wait for a connection is rounded up."""

_has_opened: ContextVar[bool] = ContextVar("has_opened", default=False)


class VendorProtocol(ResponseHandler):
    """A connection to a vendor."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.is_idle = False
        """Whether the last answer has ended and no request was written since."""
        self.has_begun = False
        """Whether a byte of an answer to the last request came."""

    def data_received(self, data: bytes) -> None:
        """Closes an idle connection that gets bytes. The bytes belong to no request, and would be taken for
        the answer to the next request."""
        self.has_begun = True
        if not self.is_idle:
            super().data_received(data)
            if not self.is_idle or not self._buffer:
                return
        elif not data:
            return
        self.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Reports an error to the reader of a body without a length whose connection is reset. The base class
        would treat the body as complete."""
        body = self._payload
        if exc is not None and body is not None and not body.is_eof():
            body.set_exception(aiohttp.ClientPayloadError(f"the connection is lost: {exc}"))
        super().connection_lost(exc)

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Starts to read again if reading was paused. The reader of a body calls this for every part. Without
        this check the base class would call its parser each time."""
        if self._reading_paused:
            super().resume_reading(resume_parser)


def _make_protocol(loop: asyncio.AbstractEventLoop) -> ResponseHandler:
    return VendorProtocol(loop)


class ConnectionPool(aiohttp.TCPConnector):
    """aiohttp's pool, which also notes for each request whether a connection was opened for it. Needs a
    running event loop."""

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

    async def _wait_for_available_connection(self, key: "ConnectionKey", traces: "list[Trace]") -> None:
        """Wakes the next waiting request if the request whose turn it is leaves at the same moment. The base
        class would wake none, and the next request would wait although a connection is free."""
        try:
            await super()._wait_for_available_connection(key, traces)
        except BaseException:
            self._release_waiter()
            raise


def reset_opened() -> None:
    """Forgets, for the running task, that a connection was opened. Call it before each request."""
    _has_opened.set(False)


def has_opened() -> bool:
    """Whether a connection was opened for the task's request."""
    return _has_opened.get()


def build_timeout(seconds: float, connect_seconds: float) -> aiohttp.ClientTimeout:
    """Returns the timeouts of a connection. `seconds`: until the pool must supply a connection.
    `connect_seconds`: until a new connection must be open."""
    return _build_rounded(max(1, ceil(seconds * TICKS)), connect_seconds)


@lru_cache(1024)
def _build_rounded(ticks: int, connect_seconds: float) -> aiohttp.ClientTimeout:
    """Returns a cached object, because aiohttp takes long to create it."""
    return aiohttp.ClientTimeout(connect=ticks / TICKS, sock_connect=connect_seconds)
