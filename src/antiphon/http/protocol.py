"""Extends uvicorn's HTTP/1.1 protocol. It adds a deadline for the request's arrival, a size limit of headers,
errors in the dialect's format, and a way to drop a connection at once.

The deadline starts with the first byte of a request. If the headers are late, the protocol answers; if the
body is late, the body's reader answers. After an answer the server reads and discards the rest of the body
for a short while, so that a client that still sends can read the refusal. Then the server drops the
connection.

A client can send a few requests before earlier ones are answered. If it sends too many, or bytes that are not
a request, the server first answers the earlier requests. Then it refuses and closes the connection.
"""

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Any

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from antiphon.dialects.base import Dialect
from antiphon.domain.values import Struct
from antiphon.errors import AntiphonError, HeadersTooLarge, RequestError, RequestTimedOut
from antiphon.http.connection import CONNECTION, Connection, OutgoingData, SlowClientWatch, get_connection
from antiphon.telemetry.logs import record

MAX_HEADER_BYTES = 1 << 16
"""The most bytes of request line and headers together. It is the limit of common proxies and leaves room for
any credential."""

MAX_PIPELINED = 8
"""The most requests that can wait behind a running one. Up to this number the server continues to read, so it
notices a disconnect."""

END_OF_HEAD = b"\r\n\r\n"
"""The end of the request line and headers."""

ANSWER_START = b"HTTP/1.1 "
"""The first bytes of an answer."""

HTTP_2 = b"h2c"

UPGRADE_TO_HTTP_2 = re.compile(rb"\r\nupgrade:[ \t]*h2c[ \t]*(?=\r\n|\Z)", re.IGNORECASE)
"""The header that asks for HTTP/2. Java's client sends it in its first request."""

LINGER_SECONDS = 5.0
"""Seconds after an answer in which the rest of a body can arrive and the client can read a refusal."""


class ProtocolOptions(Struct, frozen=True):
    """Options that all connections of a server share."""

    get_dialect: Callable[[str], Dialect]
    """Returns the dialect of a path."""
    arrival_timeout: float
    """Seconds within which a request must arrive."""
    new_id: Callable[[], str]
    """Returns an id for a request that does not reach the application."""
    shutdown_state: "ShutdownState"
    watch: SlowClientWatch
    """Drops connections whose clients do not read."""


class ShutdownState(Struct):
    """Whether the server is shutting down, and how long it then keeps idle connections."""

    grace_seconds: float | None = None
    """Seconds for which an idle connection stays open, because a request can be on its way. None means that
    the server is not shutting down."""


class JoiningTransport:
    """A transport that joins the head of an answer with the first part of its body in one system call. The
    head waits for at most one turn of the event loop."""

    __slots__ = ("_head", "_loop", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""

    def write(self, data: bytes) -> None:
        """Writes data. Delays data that begins like the head of an answer, until the next write or the next
        turn of the event loop."""
        if self._head:
            data, self._head = self._head + data, b""
        elif data.startswith(ANSWER_START):
            self._head = data
            self._loop.call_soon(self.flush)
            return
        self._transport.write(data)

    def close(self) -> None:
        """Writes the delayed head and closes the transport."""
        self.flush()
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def flush(self) -> None:
        """Writes the delayed head if no body has followed it."""
        if self._head:
            data, self._head = self._head, b""
            self._transport.write(data)


class _HeadersError(Exception):
    """Raised in a callback of the parser to stop it."""


class Protocol(HttpToolsProtocol):
    """One HTTP/1.1 connection."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        options: ProtocolOptions,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.url = b""
        self._options = options
        self._deadline: asyncio.TimerHandle | None = None
        self._in_headers = False
        self._bytes_outside_body = 0
        """The number of bytes of headers, trailers and chunk framing since the request began, or since the
        last part of its body arrived."""
        self._header_bytes = 0
        """The number of bytes in the names and values of headers."""
        self._headers_error: AntiphonError | None = None
        """The error in headers that are valid HTTP."""
        self._refusal: AntiphonError | None = None
        """The error that ends this connection. If it is set, no more data is parsed."""
        self._outgoing: OutgoingData | None = None
        self._connection: Connection | None = None
        """The connection object of the newest request."""
        self._running: RequestResponseCycle | None = None
        """The request that is being answered. `cycle` is the newest request, which can wait behind this
        one."""
        self.access_log = False

    # --- from first to last byte of a request ---

    def data_received(self, data: bytes) -> None:
        """Parses data from the client, and starts the deadline with the first byte of a request."""
        if self._refusal is not None:
            return
        if HTTP_2 in data and self._deadline is None and self._is_idle():
            data = _strip_upgrade(data)
        if self._deadline is None and self._is_idle():
            self._start_deadline()
        self._bytes_outside_body += len(data)
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:  # the server ignores the upgrade to HTTP/2
            if remaining := data[upgrade.args[0] :]:
                self.data_received(remaining)
        except httptools.HttpParserError:
            self.send_400_response("")
        if self._bytes_outside_body > MAX_HEADER_BYTES:
            self._refuse(_build_size_error())

    def on_message_begin(self) -> None:
        """Creates the `Connection` of a request that begins to arrive."""
        super().on_message_begin()
        self._in_headers, self._bytes_outside_body, self._header_bytes = True, 0, 0
        self._connection = Connection(self.transport.abort, self.loop.time(), self.flow)
        self.scope["state"][CONNECTION] = self._connection

    def on_header(self, name: bytes, value: bytes) -> None:
        """Stores a header. Ignores trailers, because the request may have been authorized by its headers."""
        if self._in_headers:
            self._header_bytes += len(name) + len(value)
            name = name.lower()
            if name == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Starts the request. Refuses it if its headers are too large, if it asks for an upgrade with a body,
        or if too many requests wait."""
        self._in_headers = False
        if len(self.url) + self._header_bytes > MAX_HEADER_BYTES:
            self._headers_error = _build_size_error()
        elif self.parser.should_upgrade() and self._has_body():
            # The parser does not read a body after Upgrade, so the body would be parsed as the next request.
            self._headers_error = RequestError(
                "a request with a body must not ask for another protocol (Upgrade)"
            )
        elif len(self.pipeline) == MAX_PIPELINED:
            self._headers_error = RequestError(f"more than {MAX_PIPELINED} requests wait for earlier ones")
        if self._headers_error is not None:
            raise _HeadersError
        super().on_headers_complete()
        self.cycle.transport = self._joining_transport  # type: ignore[assignment]
        if self._options.shutdown_state.grace_seconds is not None:
            self.cycle.keep_alive = False
        self.flow.resume_reading()

    def _has_body(self) -> bool:
        """Whether the headers announce a body."""
        return any(
            name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
            for name, value in self.headers
        )

    def on_body(self, body: bytes) -> None:
        """Resets the count of bytes outside the body, and passes the part to uvicorn."""
        self._bytes_outside_body = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Stops the deadline of a request that has arrived."""
        self._cancel_deadline()
        if self._connection is not None:
            self._connection.has_arrived = True
        super().on_message_complete()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Starts to watch the connection, and sets the timer of idle connections. Closes the connection if
        the server is shutting down."""
        super().connection_made(transport)
        self._joining_transport = JoiningTransport(transport, self.loop)
        self._outgoing = OutgoingData(transport)
        self._options.watch.add(self._outgoing)
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )
        if self._options.shutdown_state.grace_seconds is not None:
            self.shutdown()  # the kernel accepted the connection at the moment when listening ended

    def shutdown(self) -> None:
        """Closes the connection after the running answer. An idle connection closes after the grace time, or
        after the answer to a request that arrives within this time."""
        grace_seconds = self._options.shutdown_state.grace_seconds
        if not self._is_idle() or not grace_seconds:
            super().shutdown()
        elif self._deadline is None:  # otherwise a request is arriving, with its own deadline
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(
                grace_seconds, self.timeout_keep_alive_handler
            )

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops the deadline and the watch, and reports the disconnect to the running handler."""
        self._cancel_deadline()
        self._abandon_answer()
        if self._outgoing is not None:
            self._options.watch.discard(self._outgoing)
        super().connection_lost(exc)

    def _abandon_answer(self) -> bool:
        """Reports to the handler of the running request that the client has left. Returns whether the answer
        had begun."""
        cycle = self._running
        self.pipeline.clear()
        if cycle is None or cycle.response_complete:
            return False
        cycle.disconnected = True
        cycle.message_event.set()
        get_connection(dict(cycle.scope)).leave()
        return cycle.response_started

    def on_response_complete(self) -> None:
        """Starts the next request after an answer, or writes a waiting refusal. If the rest of the body has
        not arrived, drops the connection after a while."""
        self._joining_transport.flush()
        super().on_response_complete()
        if self._refusal is not None and self._is_idle() and not self.transport.is_closing():
            self._write_refusal(self._refusal)
        elif self._running is self.cycle and self.cycle.more_body and not self.transport.is_closing():
            self._cancel_deadline()
            self._deadline = self.loop.call_later(LINGER_SECONDS, self.transport.abort)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        """Stores the request as the running one, and starts its task."""
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _is_idle(self) -> bool:
        """Whether no request is running or waiting."""
        return self.cycle is None or self.cycle.response_complete

    def _start_deadline(self) -> None:
        """Starts the deadline for a request to arrive."""
        if not self._in_headers:  # otherwise an arriving request already has a deadline
            self._in_headers, self._bytes_outside_body, self.url = True, 0, b""
        self._deadline = self.loop.call_later(self._options.arrival_timeout, self._end_late_request)

    def _cancel_deadline(self) -> None:
        """Stops the deadline."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _end_late_request(self) -> None:
        """Refuses a request whose headers are late. If the body is late, drops the connection after a
        while."""
        if self._in_headers:
            timeout = self._options.arrival_timeout
            self._refuse(RequestTimedOut(f"the request did not arrive within {timeout:g} seconds"))
        else:
            self._deadline = self.loop.call_later(LINGER_SECONDS, self.transport.abort)

    # --- refusals before there is a request ---

    def send_400_response(self, msg: str) -> None:
        """Refuses the request with an error in the dialect's format instead of uvicorn's."""
        self._refuse(self._headers_error or RequestError("the request is not valid HTTP"))

    def _refuse(self, error: AntiphonError) -> None:
        """Refuses invalid or late data, and ends the connection. The answers to earlier requests come
        first."""
        if self._refusal is not None or self.transport.is_closing():
            return
        self._refusal = error
        self._cancel_deadline()
        if self._running is not None and self._running is not self.cycle and self.cycle.more_body:
            self.pipeline.popleft()  # the newest request: its body broke off
            self.cycle = self.pipeline[0][0] if self.pipeline else self._running
        if self._is_idle() or self.cycle.more_body:
            self._write_refusal(error)

    def _write_refusal(self, error: AntiphonError) -> None:
        """Writes an error response and drops the connection after a while."""
        if self._abandon_answer():
            self.transport.abort()  # the client would read a refusal in the middle of an answer as part of it
            return
        dialect = self._options.get_dialect(self.url.partition(b"?")[0].decode("latin-1"))
        body, status, request_id = (
            dialect.encode_error(error),
            dialect.get_status(error),
            f"req-{self._options.new_id()}",
        )
        peer = None if self.client is None else self.client[0]
        record("refused", logging.INFO, request_id=request_id, status=status, code=error.code, client=peer)
        self.transport.write(
            STATUS_LINE[status]
            + b"content-type: application/json\r\n"
            + b"content-length: %d\r\n" % len(body)
            + b"x-request-id: %b\r\n" % request_id.encode()
            + b"connection: close\r\n\r\n"
            + body
        )
        self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, self.transport.abort)


def _strip_upgrade(data: bytes) -> bytes:
    """Returns the beginning of a request without the header that asks for HTTP/2. HTTP allows a server to
    ignore the header, but the parser would then read no body."""
    head, end, rest = data.partition(END_OF_HEAD)
    return UPGRADE_TO_HTTP_2.sub(b"", head) + end + rest if end else data


def _build_size_error() -> HeadersTooLarge:
    """Returns the error for headers that are too large."""
    return HeadersTooLarge(f"the headers are larger than {MAX_HEADER_BYTES:,} bytes")
