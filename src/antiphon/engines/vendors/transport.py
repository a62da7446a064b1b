"""The HTTP transport of one provider: its connections, its responses, and the events in their bodies.

A vendor can close an idle connection at the moment when the next request is written to it. The vendor then
has read nothing and sends no answer. HTTP clients send such a request again (RFC 9110, 9.2.2). This server
does so only if a used connection broke at once, before any byte of an answer. So the pool tells whether a
request got a new connection or an idle one.

Connections, TLS and the parser of answers are aiohttp's. Its client session is not used, because it would
build the shared headers again for each request. `StallWatch` ends responses that stall or pass their
deadline, by one timer for a provider. `EventSplitter` finds server-sent events and reads no JSON.
"""

import asyncio
from collections.abc import Mapping
from contextvars import ContextVar
from functools import lru_cache, partial
from math import ceil, inf
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError

if TYPE_CHECKING:
    from aiohttp.client_reqrep import ConnectionKey
    from aiohttp.http import RawResponseMessage
    from aiohttp.tracing import Trace


NO_BODY_ENCODING = "identity"
"""The only encoding of a body that requests accept."""

OK = 200

STALE_S = 1.0
"""Seconds within which a request notices a closed connection. If the connection closes later, the vendor may
have begun to generate."""

UPGRADE = 101
"""The only status below 200 that ends an exchange."""

TICKS = 20
"""Parts of a second to which the wait for a connection is rounded up."""

_has_opened: ContextVar[bool] = ContextVar("has_opened", default=False)


MAX_INFORMATIONAL = 16
"""The most answers below 200, such as `100 Continue`, before the answer itself."""

PARSED_BYTES = 8192
"""Bytes that are parsed at once. One read can contain 10,000 informational answers or chunks, and the parser
makes objects of each."""

MAX_ANSWER = 8 << 20
"""The most bytes of a whole answer, and of one event of a stream, unless the operator sets another number."""

MAX_EXCHANGE = 256 << 20
"""The most bytes of any answer, with all that HTTP adds to its content."""


MAX_FRAMING = 1 << 16
"""Bytes of an answer after which at least a quarter must be content. Chunks of one byte, or with endless
extensions, cost a hundred times as much as their content."""


class VendorProtocol(ResponseHandler):
    """A connection to a vendor. It ends an answer that is too large while its bytes arrive."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.is_idle = False
        """Whether the last answer has ended and no request was written since."""
        self.has_begun = False
        """Whether a byte of an answer to the last request came."""
        self._has_head = False
        self._informational_count = 0
        self._byte_count = 0
        self.max_bytes = MAX_EXCHANGE
        """The most bytes of the answer, with all that HTTP adds to its content."""

    def begin_request(self) -> None:
        """Prepares the connection for the answer to a request that is about to be written. The body stays
        as the vendor sent it: a compressed one is refused, since no request asks for it."""
        self.is_idle = self.has_begun = self._has_head = False
        self._informational_count = self._byte_count = 0
        self.max_bytes = MAX_EXCHANGE
        self.set_response_params(read_until_eof=True, auto_decompress=False)

    def data_received(self, data: bytes) -> None:
        """Closes an idle connection that gets bytes. The bytes belong to no request, and would be taken for
        the answer to the next request."""
        self.has_begun = True
        if self.is_idle:
            if data:
                self.abort()
            return
        for begin in range(0, len(data) or 1, PARSED_BYTES):  # no data: the parser goes on with what it has
            piece = data[begin : begin + PARSED_BYTES]
            self._byte_count += len(piece)
            super().data_received(piece)
            if self.is_idle:
                if self._buffer or begin + len(piece) < len(data):
                    self.abort()
                return
            if self.transport is None or self.transport.is_closing():
                return
            excess = self._find_excess()
            if excess is not None:
                self._fail(excess)
                return

    def _find_excess(self) -> str | None:
        """Returns why the answer must end, if it has too much of anything."""
        body = self._payload
        if self._informational_count > MAX_INFORMATIONAL:
            return f"more than {MAX_INFORMATIONAL} informational answers came before the answer"
        if self._byte_count > self.max_bytes:
            return "the answer is too large"
        if self._byte_count > MAX_FRAMING and body is not None and self._byte_count > 4 * body.total_bytes:
            return "the answer is more framing than content"
        return None

    def feed_data(self, data: "tuple[RawResponseMessage, aiohttp.StreamReader]", size: int = 0) -> None:
        """Passes on the head of an answer. Discards informational ones."""
        if data[0].code < 200 and data[0].code != UPGRADE:
            self._informational_count += 1
            return
        self._has_head = True
        super().feed_data(data, size)

    def _fail(self, reason: str) -> None:
        """Makes the reader of the answer raise an error. The reader closes the connection."""
        error = aiohttp.ClientPayloadError(reason)
        if self._has_head and self._payload is not None:
            self._payload.set_exception(error)
        else:
            self.set_exception(error)

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


class UpstreamResponse:
    """An open response. A `StallWatch` ends it if it is late. Times are seconds of the event loop's clock."""

    __slots__ = (
        "_connection",
        "_protocol",
        "content",
        "deadline",
        "headers",
        "is_complete",
        "next_bytes_due",
        "status",
    )

    status: int
    headers: Mapping[str, str]

    def __init__(self, connection: aiohttp.connector.Connection, deadline: float) -> None:
        """`connection` is of a ConnectionPool, and must have no other request."""
        protocol = connection.protocol
        if not isinstance(protocol, VendorProtocol):
            raise TypeError("the connection is of another pool")
        self._connection: aiohttp.connector.Connection | None = connection
        self._protocol = protocol
        self.content: aiohttp.StreamReader | None = None
        """The body; None until the head has arrived."""
        self.next_bytes_due = inf
        """The time by which the next bytes must arrive. The reader sets it before it waits for bytes, and to
        infinity when it stops waiting."""
        self.deadline = deadline
        self.is_complete = False
        """Whether all content has arrived, and only the end of the body is missing."""

    @property
    def is_closed(self) -> bool:
        """Whether the answer has ended, or was closed before its end."""
        return self._connection is None

    @property
    def has_begun(self) -> bool:
        """Whether any byte of the response has arrived, even if the head is not complete."""
        return self._protocol.has_begun

    @property
    def media_type(self) -> str:
        """The type of the body, without parameters."""
        return self.headers.get("Content-Type", "").partition(";")[0].strip().lower()

    def limit(self, max_bytes: int) -> None:
        """Limits the bytes of the answer, with all that HTTP adds to its content. More bytes are an error of
        the reader."""
        self._protocol.max_bytes = min(max_bytes, MAX_EXCHANGE)

    async def exchange(self, head: bytes, body: bytes) -> None:
        """Writes the request, and waits for the head of the answer. Raises a ClientError, TimeoutError or
        OSError, and then closes the connection."""
        protocol = self._protocol
        try:
            protocol.begin_request()
            if protocol.transport is None:
                raise aiohttp.ClientOSError("the connection is closed")
            protocol.transport.write(head + body)
            message, content = await protocol.read()
            encoding = message.headers.get("Content-Encoding", NO_BODY_ENCODING)
            if message.code == OK and encoding.strip().lower() not in ("", NO_BODY_ENCODING):
                raise aiohttp.ClientPayloadError("the answer is compressed, which was not asked for")
        except HttpProcessingError as error:
            self.close()
            raise aiohttp.ClientPayloadError(f"{error.code}, message={error.message!r}") from error
        except BaseException:
            self.close()
            raise
        self.status, self.headers, self.content = message.code, message.headers, content
        content.on_eof(self._release)

    async def read_part(self) -> bytes:
        """Waits for the next bytes of the body, and returns them. Returns no bytes at its end."""
        return b"" if self.content is None else await self.content.readany()

    async def read(self, max_bytes: int = MAX_ANSWER) -> bytes:
        """Returns the whole body. Raises ValueError if it has more than `max_bytes`, and a ClientError or
        OSError if the answer breaks or is late."""
        parts: list[bytes] = []
        byte_count = 0
        while part := await self.read_part():
            parts.append(part)
            byte_count += len(part)
            if byte_count > max_bytes:
                raise ValueError("the answer is too large")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def fail(self, error: Exception) -> None:
        """Makes the reader of the answer raise an error."""
        if self.content is None:
            self._protocol.set_exception(error)
        else:
            self.content.set_exception(error)

    def close(self) -> None:
        """Closes the connection at once, unless the response has ended. An orderly close would wait for a
        vendor that has stopped reading the request, or that does not confirm the end of TLS."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self.content is not None and self.content.exception() is None:
            self.content.set_exception(aiohttp.ClientConnectionError("the answer is closed"))
        self._protocol.abort()
        connection.close()

    def _release(self) -> None:
        """Gives the connection back to the pool at the end of the body. Closes it if the vendor answered
        before it had read the whole request."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        transport = connection.transport
        if transport is None or transport.get_write_buffer_size():
            self._protocol.abort()
            connection.close()
        else:
            self._protocol.is_idle = True
            connection.release()


CHECKS_PER_TIMEOUT = 4
"""The number of checks within one timeout."""

MIN_INTERVAL = 0.02
MAX_INTERVAL = 1.0
"""The bounds of the interval between two checks, in seconds."""

LAST_BYTES_S = 0.25
"""Seconds that a complete stream has to end its body. If it does, its connection can be used again."""


class StallWatch:
    """Checks the open responses of one provider at intervals. It forgets a response that has ended."""

    def __init__(self, chunk_timeout: float) -> None:
        """`chunk_timeout`: seconds between two parts of a stream."""
        self._interval = min(max(chunk_timeout / CHECKS_PER_TIMEOUT, MIN_INTERVAL), MAX_INTERVAL)
        self._responses: set[UpstreamResponse] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._next_check = inf
        """When the timer fires."""

    def add(self, response: UpstreamResponse) -> None:
        """Begins to watch a response whose request is about to be sent."""
        self._responses.add(response)
        self._schedule_check(min(asyncio.get_running_loop().time() + self._interval, response.deadline))

    def finish(self, response: UpstreamResponse) -> None:
        """Gives a complete stream LAST_BYTES_S to end its body, and then closes its connection. Does not
        wait."""
        response.is_complete = True
        response.next_bytes_due = asyncio.get_running_loop().time() + LAST_BYTES_S

    def close(self) -> None:
        """Stops the timer, and closes the connections that it watches."""
        for response in self._responses:
            response.close()
        self._responses.clear()
        self._stop_timer()

    def _schedule_check(self, when: float) -> None:
        """Sets the timer to `when`, unless the next check is earlier."""
        if when < self._next_check:
            self._stop_timer()
            self._timer = asyncio.get_running_loop().call_at(when, self._check)
            self._next_check = when

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._next_check = None, inf

    def _check(self) -> None:
        """Ends each response that is late."""
        now = asyncio.get_running_loop().time()
        self._timer, self._next_check = None, inf
        self._responses = {response for response in self._responses if not _end_if_late(response, now)}
        if self._responses:
            self._schedule_check(
                min(now + self._interval, *(response.deadline for response in self._responses))
            )


def _end_if_late(response: UpstreamResponse, now: float) -> bool:
    """Ends a response if it is late: its reader gets a TimeoutError, unless all content has arrived. Returns
    whether the response has ended."""
    if response.is_closed:
        return True
    if now <= response.next_bytes_due and now <= response.deadline:
        return False
    if response.is_complete:
        response.close()
    else:
        response.fail(TimeoutError("the answer stalled"))
    return True


MAX_LINES = 10_000
"""The most lines of one event."""

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""The byte order mark that may begin a stream."""


class EventSplitter:
    """Collects bytes, and returns each server-sent event as (name, data) when it is complete. Reads each byte
    once, however small the parts are."""

    __slots__ = ("_incomplete", "_max_bytes", "_return")

    def __init__(self, max_bytes: int = MAX_ANSWER) -> None:
        """`max_bytes`: the most bytes of one event."""
        self._max_bytes = max_bytes
        self._incomplete = bytearray()
        """An event whose end has not arrived."""
        self._return = b""
        """A carriage return at the end of the last part, until it is known whether a line feed follows."""

    def feed(self, data: bytes) -> list[tuple[str, bytes]]:
        """Returns the events that these bytes complete. An event that is too large raises ValueError once the
        events before it are returned."""
        self._require_size()
        if self._return or b"\r" in data:
            data = self._return + data
            self._return = b"\r" if data.endswith(b"\r") else b""
            data = data.removesuffix(b"\r").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if self._incomplete:
            begin = len(self._incomplete) - 1  # an event's end can begin in the bytes before
            self._incomplete += data
            if self._incomplete.find(b"\n\n", begin) < 0:
                self._require_size()
                return []
            data = bytes(self._incomplete)
            self._incomplete.clear()
        *blocks, rest = data.split(b"\n\n")
        self._incomplete += rest
        events = [event for block in blocks if block and (event := _parse_event(block))]
        if not events:
            self._require_size()
        return events

    def finish(self) -> list[tuple[str, bytes]]:
        """Returns the last event if the stream ended without an empty line after it. Raises ValueError for an
        event that is too large."""
        self._require_size()
        event = _parse_event(bytes(self._incomplete).rstrip(b"\n"))
        self._incomplete.clear()
        return [event] if event else []

    def _require_size(self) -> None:
        """Raises ValueError if the incomplete event is too large."""
        if len(self._incomplete) > self._max_bytes:
            raise ValueError("an event of the stream is too large")


def _parse_event(block: bytes) -> tuple[str, bytes] | None:
    """Returns the name and the data of an event; None if it has no data."""
    if block.startswith(b"data:") and b"\n" not in block:
        return "", block[6:] if block[5:6] == b" " else block[5:]
    if block.count(b"\n") >= MAX_LINES:
        raise ValueError("an event of the stream has too many lines")
    name, lines = "", []
    for line in block.split(b"\n"):
        field, _, value = line.removeprefix(BYTE_ORDER_MARK).partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            lines.append(value)
        elif field == b"event":
            name = value.decode("utf-8", "replace")
    return (name, b"\n".join(lines)) if lines else None
