"""Serves HTTP/1.1 on a connection, over httptools' parser.

The deadline of a request starts with its first byte. If the headers are late, the protocol answers; if the
body is late, the body's reader answers. After an answer the server reads and discards the rest of the body
for a short while, so that a client that still sends can read the refusal. Then the server drops the
connection.

A client can send a few requests before earlier ones are answered. If it sends too many, or bytes that are not
a request, the server first answers the earlier requests. Then it refuses and closes the connection.
"""

import asyncio
import logging
import math
import re
from collections import deque
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from operator import itemgetter
from urllib.parse import unquote

import httptools

from antiphon.dialects.base import Dialect
from antiphon.domain.values import Struct, field
from antiphon.errors import AntiphonError, HeadersTooLarge, RequestError, RequestTimedOut
from antiphon.http.slow_clients import OutgoingData, SlowClientWatch
from antiphon.telemetry.logs import describe_exception, record

MAX_HEADER_BYTES = 1 << 16
"""The most bytes of request line and headers together, with HEADER_OVERHEAD. It is the limit of common
proxies and leaves room for any credential."""

HEADER_OVERHEAD = 32
"""Bytes that each header counts beside its name and value, as in HTTP/2 (RFC 9113 section 6.5.2). Thousands
of tiny headers would take twenty times their size in memory."""

MAX_UNREAD_BYTES = 1 << 16
"""The most bytes of a body that wait for the handler. With more, the server stops to read the connection."""

MAX_PIPELINED = 8
"""The most requests that can wait behind a running one. Up to this number the server continues to read, so it
notices a disconnect."""

END_OF_HEAD = b"\r\n\r\n"
"""The end of the request line and headers."""

HTTP_2 = b"h2c"

UPGRADE_TO_HTTP_2 = re.compile(rb"\r\nupgrade:[ \t]*h2c[ \t]*(?=\r\n|\Z)", re.IGNORECASE)
"""The header that asks for HTTP/2. Java's client sends it in its first request."""

IDLE_SECONDS = 75.0
"""Seconds for which an idle connection stays open. Common proxies and clients close idle connections after 60
seconds, so they close first."""

LINGER_SECONDS = 5.0
"""Seconds after an answer in which the rest of a body can arrive and the client can read a refusal."""

STATUS_LINES = {
    **{status: b"HTTP/1.1 %d \r\n" % status for status in range(100, 600)},
    **{status.value: b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in HTTPStatus},
}

BODILESS_STATUSES = frozenset({204, 304})

CONTROL_BYTES = bytes({*range(32), 127} - {9})
"""Bytes that a header's value cannot have. A line break would begin another header."""

find_value = itemgetter(1)

HeaderList = list[tuple[bytes, bytes]]


class ServerState(Struct):
    """What all connections of a server share."""

    handle: "Callable[[Exchange], Coroutine[None, None, None]]"
    """Answers a request."""
    get_dialect: Callable[[str], Dialect]
    """Returns the dialect of a path."""
    arrival_timeout: float
    """Seconds within which a request must arrive."""
    new_id: Callable[[], str]
    """Returns an id for a request that does not reach the application."""
    watch: SlowClientWatch
    """Drops connections whose clients do not read."""
    grace_seconds: float | None = None
    """Seconds for which an idle connection stays open when the server shuts down, because a request can be on
    its way. None means that the server is not shutting down."""
    date_line: bytes = b""
    """The header Date of all answers."""
    connections: "set[HttpProtocol]" = field(default_factory=set)
    """All open connections."""
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    """The tasks of all running requests. The server waits for them, and cancels them at its end."""


class Exchange:
    """One request and its answer. Use it only on the event loop."""

    __slots__ = (
        "_head",
        "_is_chunked",
        "arrived_at",
        "body_waiter",
        "connection",
        "expects_continue",
        "extra_headers",
        "has_arrived",
        "has_left",
        "headers",
        "is_complete",
        "keep_alive",
        "method",
        "on_leave",
        "path",
        "query_string",
        "raw_path",
        "status",
        "unread",
        "version",
    )

    def __init__(self, connection: "HttpProtocol", method: str, version: str, url: bytes) -> None:
        """Raises `httptools.HttpParserError`, AttributeError or UnicodeDecodeError for an invalid URL."""
        parsed_url = httptools.parse_url(url)
        self.connection = connection
        self.method = method
        self.version = version
        self.raw_path: bytes = parsed_url.path
        path = self.raw_path.decode("ascii")
        self.path = unquote(path) if "%" in path else path
        """The decoded path."""
        self.query_string: bytes = parsed_url.query or b""
        self.headers = connection.headers
        """All values of each header, in order, by lower-case name."""
        self.arrived_at = connection.arrived_at
        """The event loop's time of the first byte."""
        self.has_arrived = False
        """Whether the whole request has arrived."""
        self.unread = bytearray()
        """The part of the body that has arrived and that the handler has not read."""
        self.expects_continue = False
        """Whether the client sends the body only after an interim answer."""
        self.body_waiter: asyncio.Future[None] | None = None
        """Ends `wait_for_body`."""
        self.on_leave: Callable[[], None] | None = None
        """The function that is called once if the client leaves before its answer is complete."""
        self.has_left = False
        self.keep_alive = True
        """Whether the connection stays open after the answer."""
        self.extra_headers: HeaderList = []
        """Headers that the answer has beside its own."""
        self.status = 0
        """The status of the answer; 0 before the answer has begun."""
        self.is_complete = False
        """Whether the whole answer is written."""
        self._is_chunked = False
        self._head = b""
        """The head of the answer. It leaves with the first part of the body, in one write."""

    async def wait_for_body(self) -> None:
        """Waits until more of the body has arrived, or the client has left."""
        if self.expects_continue and not self.connection.transport.is_closing():
            self.expects_continue = False
            self.connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self.connection.resume_reading()
        self.body_waiter = self.connection.loop.create_future()
        await self.body_waiter

    def wake_body_reader(self) -> None:
        """Ends `wait_for_body`."""
        if self.body_waiter is not None and not self.body_waiter.done():
            self.body_waiter.set_result(None)

    def leave(self) -> None:
        """Records that the client has closed the connection, and calls `on_leave`."""
        self.has_left = True
        self.wake_body_reader()
        if self.on_leave is not None:
            self.on_leave()

    def begin(self, status: int, headers: HeaderList, length: int | None = None) -> None:
        """Begins the answer. `length`: the bytes of its body. Without it the body is sent in chunks. Raises
        ValueError if a header contains control characters."""
        all_headers = [*headers, *self.extra_headers]
        if self.expects_continue and not self.has_arrived:
            # The client can send its next request in the place of this body, which it did not begin.
            self.keep_alive = False
        values = b"".join(map(find_value, all_headers))
        if len(values.translate(None, CONTROL_BYTES)) != len(values):
            raise ValueError("a header of the answer contains control characters")
        lines = [STATUS_LINES[status], self.connection.server.date_line]
        for name, value in all_headers:
            lines += (name, b": ", value, b"\r\n")
        if length is not None:
            lines.append(b"content-length: %d\r\n" % length)
        elif status not in BODILESS_STATUSES and self.method != "HEAD":
            self._is_chunked = True
            lines.append(b"transfer-encoding: chunked\r\n")
        lines.append(b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n")
        self._head = b"".join(lines)
        self.status = status

    def write(self, part: bytes, is_last: bool = False) -> None:
        """Writes a part of the answer's body, after its head. An empty part writes the head alone. Does
        nothing if the client has left, or the connection closes."""
        connection = self.connection
        if self.has_left or connection.transport.is_closing():
            return
        data, self._head = self._head, b""
        if self._is_chunked:
            if part:
                data = b"%b%x\r\n%b\r\n" % (data, len(part), part)
            if is_last:
                data += b"0\r\n\r\n"
        elif self.method != "HEAD":
            data += part
        if data:
            connection.transport.write(data)
        if is_last:
            self.is_complete = True
            if self.keep_alive:
                connection.end_answer()
            elif self.has_arrived:
                connection.transport.close()
            else:
                connection.close_after_answer()

    def end_task(self, task: asyncio.Task[None]) -> None:
        """Ends the request when its task has ended. Cuts an answer off that is not complete."""
        server = self.connection.server
        server.tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            record("internal_error", logging.ERROR, problem=describe_exception(error))
        if not self.is_complete and not self.has_left:
            self.connection.transport.close()


class _HeadersError(Exception):
    """Raised in a callback of the parser to stop it."""


class HttpProtocol(asyncio.Protocol):
    """One HTTP/1.1 connection."""

    transport: asyncio.Transport

    def __init__(self, server: ServerState, loop: asyncio.AbstractEventLoop) -> None:
        self.server = server
        self.loop = loop
        self.peer: str | None = None
        """The client's address, if it has one."""
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        # A client can send more after its last request, and must still read the answer.
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._outgoing: OutgoingData | None = None
        self.is_reading_paused = False
        """Whether the server waits for a handler to take a part of a body."""
        self.is_writing_paused = False
        """Whether the client does not read. Data written now would only stay in memory."""
        self._can_write = asyncio.Event()
        self._can_write.set()

        # The request that arrives.
        self._url = b""
        self.headers: dict[bytes, list[bytes]] = {}
        """The headers of the newest request."""
        self.arrived_at = 0.0
        """The event loop's time of the newest request's first byte."""
        self._in_headers = False
        self._bytes_outside_body = 0
        """The number of bytes of headers, trailers and chunk framing since the request began, or since the
        last part of its body arrived."""
        self._header_bytes = 0
        """The number of bytes of headers: names, values, and HEADER_OVERHEAD for each."""
        self._headers_error: AntiphonError | None = None
        """The error in headers that are valid HTTP."""
        self._refusal: AntiphonError | None = None
        """The error that ends this connection. If it is set, no more data is parsed."""

        # The requests that have arrived.
        self._newest: Exchange | None = None
        """The newest request. It can wait behind the running one."""
        self._running: Exchange | None = None
        """The request that is being answered, or the last one that was."""
        self._waiting: deque[Exchange] = deque()

        # The deadline of what the client must do next. Its timer is set again only after it fires, because
        # setting it for each request would cost time.
        self._due = math.inf
        self._on_due: Callable[[], object] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = math.inf
        self._is_expecting = False
        """Whether the deadline is that of a request, or of the rest of its body."""

    # --- the connection ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Starts to watch the connection. Closes it if the server is shutting down."""
        self.transport = transport  # type: ignore[assignment]
        peer = transport.get_extra_info("peername")
        self.peer = str(peer[0]) if isinstance(peer, tuple) else None
        self._outgoing = OutgoingData(self.transport)
        self.server.connections.add(self)
        self.server.watch.add(self._outgoing)
        self._set_deadline(IDLE_SECONDS, self.transport.close)
        if self.server.grace_seconds is not None:
            self.shutdown()  # the kernel accepted the connection at the moment when listening ended

    def connection_lost(self, exc: Exception | None) -> None:
        """Reports the disconnect to the running handler, and drops all references."""
        self.server.connections.discard(self)
        if self._outgoing is not None:
            self.server.watch.discard(self._outgoing)
        if self._timer is not None:
            self._timer.cancel()
        self._on_due = self._timer = None
        self._abandon_answer()
        self.resume_writing()
        self._running = self._newest = self._parser = None

    def shutdown(self) -> None:
        """Closes the connection after the running answer. An idle connection closes after the grace time, or
        after the answer to a request that arrives within this time."""
        grace_seconds = self.server.grace_seconds
        if self._newest is not None and not self._newest.is_complete:
            self._newest.keep_alive = False
        elif not grace_seconds:
            self.transport.close()
        elif not self._is_expecting:  # otherwise a request is arriving, with its own deadline
            self._set_deadline(grace_seconds, self.transport.close)

    def pause_writing(self) -> None:
        self.is_writing_paused = True
        self._can_write.clear()

    def resume_writing(self) -> None:
        self.is_writing_paused = False
        self._can_write.set()

    async def drain(self) -> None:
        """Waits until the client reads again, or is gone."""
        await self._can_write.wait()

    def resume_reading(self) -> None:
        """Starts to read again. Reading pauses during a large body, and a server that does not read cannot
        notice that the client leaves."""
        if self.is_reading_paused:
            self.is_reading_paused = False
            self.transport.resume_reading()

    def _set_deadline(self, seconds: float, on_due: Callable[[], object]) -> None:
        """Sets what happens after `seconds`, instead of what was set before."""
        self._due, self._on_due = self.loop.time() + seconds, on_due
        if self._timer is None or self._due < self._timer_due:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_due, self._timer = self._due, self.loop.call_at(self._due, self._check_deadline)

    def _check_deadline(self) -> None:
        """Does what is due, or sets the timer again for a later deadline."""
        self._timer = None
        if self.loop.time() >= self._due and self._on_due is not None:
            self._due = math.inf
            self._on_due()
        elif self._due < math.inf:
            self._timer_due, self._timer = self._due, self.loop.call_at(self._due, self._check_deadline)

    # --- from first to last byte of a request ---

    def data_received(self, data: bytes) -> None:
        """Parses data from the client. The first byte of a request starts its deadline."""
        if self._refusal is not None or self._parser is None:
            return
        if not self._is_expecting and (self._newest is None or self._newest.is_complete):
            if HTTP_2 in data:
                data = _strip_upgrade(data)
            if not self._in_headers:  # otherwise a part of the request arrived behind the last one
                self._in_headers, self._bytes_outside_body, self._url = True, 0, b""
            self._is_expecting = True
            self._set_deadline(self.server.arrival_timeout, self._end_late_request)
        self._bytes_outside_body += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:  # the server ignores upgrades
            if remaining := data[upgrade.args[0] :]:
                self.data_received(remaining)
        except httptools.HttpParserError:
            self._refuse(self._headers_error or RequestError("the request is not valid HTTP"))
        if self._bytes_outside_body > MAX_HEADER_BYTES:
            self._refuse(_build_size_error())

    def on_message_begin(self) -> None:
        """Starts a request that begins to arrive."""
        self._url, self.headers, self.arrived_at = b"", {}, self.loop.time()
        self._in_headers, self._bytes_outside_body, self._header_bytes = True, 0, 0

    def on_url(self, part: bytes) -> None:
        self._url += part

    def on_header(self, name: bytes, value: bytes) -> None:
        """Stores a header. Ignores trailers, because the request may have been authorized by its headers."""
        if self._in_headers:
            self._header_bytes += len(name) + len(value) + HEADER_OVERHEAD
            if self._header_bytes > MAX_HEADER_BYTES:
                self._headers_error = _build_size_error()
                raise _HeadersError
            name = name.lower()
            if name in self.headers:
                self.headers[name].append(value)
            else:
                self.headers[name] = [value]

    def on_headers_complete(self) -> None:
        """Starts the request, or has it wait behind earlier ones. Refuses it if its headers are too large, if
        it asks for an upgrade with a body, or if too many requests wait."""
        self._in_headers = False
        parser, headers = self._parser, self.headers
        if parser is None:
            raise _HeadersError
        if len(self._url) + self._header_bytes > MAX_HEADER_BYTES:
            self._headers_error = _build_size_error()
        elif parser.should_upgrade() and (
            b"transfer-encoding" in headers or headers.get(b"content-length", [b"0"]) != [b"0"]
        ):
            # The parser does not read a body after Upgrade, so the body would be parsed as the next request.
            self._headers_error = RequestError(
                "a request with a body must not ask for another protocol (Upgrade)"
            )
        elif len(self._waiting) == MAX_PIPELINED:
            self._headers_error = RequestError(f"more than {MAX_PIPELINED} requests wait for earlier ones")
        if self._headers_error is not None:
            raise _HeadersError
        version = parser.get_http_version()
        exchange = Exchange(self, parser.get_method().decode("ascii"), version, self._url)
        exchange.keep_alive = (
            version != "1.0" and parser.should_keep_alive() and self.server.grace_seconds is None
        )
        if b"expect" in headers and version != "1.0":  # such a client knows no interim answers
            exchange.expects_continue = any(value.lower() == b"100-continue" for value in headers[b"expect"])
        before, self._newest = self._newest, exchange
        if before is None or before.is_complete:
            self._start(exchange)
        else:
            self._waiting.append(exchange)

    def on_body(self, part: bytes) -> None:
        """Stores a part of a body, unless the answer is already complete."""
        self._bytes_outside_body = 0
        exchange = self._newest
        if exchange is None or exchange.is_complete:
            return
        exchange.unread += part
        if len(exchange.unread) > MAX_UNREAD_BYTES and not self.is_reading_paused:
            self.is_reading_paused = True
            self.transport.pause_reading()
        if exchange.body_waiter is not None:
            exchange.wake_body_reader()

    def on_message_complete(self) -> None:
        """Ends the deadline of a request that has arrived."""
        self._is_expecting, self._due = False, math.inf
        exchange = self._newest
        if exchange is not None:
            exchange.has_arrived = True
            if exchange.body_waiter is not None:
                exchange.wake_body_reader()
            if exchange.is_complete:
                self._set_deadline(IDLE_SECONDS, self.transport.close)

    def _start(self, exchange: Exchange) -> None:
        """Starts the task of a request."""
        self._running = exchange
        # The server owns the set of tasks. A task group would abort all requests with one that fails.
        task = asyncio.Task(self.server.handle(exchange), loop=self.loop)
        self.server.tasks.add(task)
        task.add_done_callback(exchange.end_task)

    def end_answer(self) -> None:
        """Starts the next request after an answer, or writes a refusal that waits. If the rest of the body
        has not arrived, drops the connection after a while."""
        if self.transport.is_closing() or self._running is None:
            return
        if self.is_reading_paused:
            self.resume_reading()
        if self._waiting:
            self._start(self._waiting.popleft())
        elif self._refusal is not None:
            self._write_refusal(self._refusal)
        elif self._running.has_arrived:
            self._set_deadline(IDLE_SECONDS, self.transport.close)
        else:
            self._is_expecting = True
            self._set_deadline(LINGER_SECONDS, self.transport.abort)

    def close_after_answer(self) -> None:
        """Closes the connection after an answer that came before the end of its request. What still arrives
        is discarded for a while: a connection that closes with unread data is reset, and the client could
        lose the answer."""
        self._parser = None
        self.resume_reading()
        self.transport.write_eof()
        self._set_deadline(LINGER_SECONDS, self.transport.abort)

    def _end_late_request(self) -> None:
        """Refuses a request whose headers are late. If the body is late, drops the connection after a
        while."""
        if self._in_headers:
            timeout = self.server.arrival_timeout
            self._refuse(RequestTimedOut(f"the request did not arrive within {timeout:g} seconds"))
        else:
            self._set_deadline(LINGER_SECONDS, self.transport.abort)

    def _abandon_answer(self) -> bool:
        """Reports to the handler of the running request that the client has left. Returns whether the answer
        had begun."""
        self._waiting.clear()
        exchange = self._running
        if exchange is None or exchange.is_complete:
            return False
        exchange.leave()
        return exchange.status != 0

    # --- refusals before there is a request ---

    def _refuse(self, error: AntiphonError) -> None:
        """Refuses invalid or late data, and ends the connection. The answers to earlier requests come
        first."""
        if self._refusal is not None or self.transport.is_closing():
            return
        self._refusal = error
        self._is_expecting, self._due = False, math.inf
        if self._waiting and not self._waiting[-1].has_arrived:
            self._waiting.pop()  # the newest request: its body broke off
            self._newest = self._waiting[-1] if self._waiting else self._running
        if self._newest is None or self._newest.is_complete or not self._newest.has_arrived:
            self._write_refusal(error)

    def _write_refusal(self, error: AntiphonError) -> None:
        """Writes an error response and drops the connection after a while."""
        if self._abandon_answer():
            self.transport.abort()  # the client would read a refusal in the middle of an answer as part of it
            return
        dialect = self.server.get_dialect(self._url.partition(b"?")[0].decode("latin-1"))
        body, status = dialect.encode_error(error), dialect.get_status(error)
        request_id = f"req-{self.server.new_id()}"
        record(
            "refused", logging.INFO, request_id=request_id, status=status, code=error.code, client=self.peer
        )
        self.transport.write(
            STATUS_LINES[status]
            + b"content-type: application/json\r\n"
            + b"content-length: %d\r\n" % len(body)
            + b"x-request-id: %b\r\n" % request_id.encode()
            + b"connection: close\r\n\r\n"
            + body
        )
        self.transport.write_eof()
        self._set_deadline(LINGER_SECONDS, self.transport.abort)


def _strip_upgrade(data: bytes) -> bytes:
    """Returns the beginning of a request without the header that asks for HTTP/2. HTTP allows a server to
    ignore the header, but the parser would then read no body."""
    head, end, rest = data.partition(END_OF_HEAD)
    return UPGRADE_TO_HTTP_2.sub(b"", head) + end + rest if end else data


def _build_size_error() -> HeadersTooLarge:
    return HeadersTooLarge(f"the headers are larger than {MAX_HEADER_BYTES:,} bytes")
