"""Sends responses: buffered answers, files, and streams of server-sent events.

Answers and streams of OpenAI's dialect have its rate-limit headers.

A stream is written to one client, at the speed at which the client reads. All events of one turn of the event
loop are written at once. The writer delays the headers until the first event, or for a limited time. So a
failure before them is a plain HTTP error. After a long pause between events it sends a comment. If the client
does not read, the writer pauses the producer of events, and disconnects the client after a while.
"""

import asyncio
from collections.abc import Callable

from antiphon.dialects.http_types import JSON, FileStream, Response
from antiphon.domain.values import Struct
from antiphon.http.in_flight import ClientLeft
from antiphon.http.protocol import Exchange, HeaderList

NO_CONTENT = 204

JSON_TYPE = JSON.encode()


HIGH_WATER = 1 << 16
"""The number of bytes that are written at once, even if more data follows: some hundreds of chunks."""

STREAM_HEADERS: list[tuple[bytes, bytes]] = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


async def send_response(exchange: Exchange, response: Response, extra_headers: HeaderList) -> None:
    """Sends a buffered response with its own headers and `extra_headers`, in one write. A response of status
    204 has neither type nor length (RFC 9110 section 8.6)."""
    headers: HeaderList = [*response.headers, *extra_headers]
    length: int | None = None
    if response.status != NO_CONTENT:
        media_type = JSON_TYPE if response.media_type == JSON else _content_type(response.media_type)
        headers.insert(0, (b"content-type", media_type))
        length = len(response.body)
    if exchange.connection.is_writing_paused:
        await exchange.connection.drain()
    exchange.begin(response.status, headers, length)
    exchange.write(response.body, is_last=True)


async def send_file(exchange: Exchange, stream: FileStream) -> None:
    """Sends a file in parts, each after the previous one is written. Raises ClientLeft, without reading
    another part, if the client has left."""
    headers = [(b"content-type", _content_type(stream.media_type)), *stream.headers]
    async for part in stream.parts:
        if exchange.has_left:
            raise ClientLeft
        await exchange.connection.drain()
        if not exchange.status:
            exchange.begin(200, headers)
        if part:
            exchange.write(part)
    if not exchange.status:
        exchange.begin(200, headers)
    await exchange.connection.drain()
    exchange.write(b"", is_last=True)


def _content_type(media_type: str) -> bytes:
    """Returns the value of Content-Type. UTF-8 is added to a text without a charset."""
    is_text = media_type.startswith("text/") and "charset" not in media_type
    return (f"{media_type}; charset=utf-8" if is_text else media_type).encode()


class StreamTimeouts(Struct, frozen=True):
    """The timeouts of a stream, in seconds."""

    keep_alive_after: float
    """The longest pause without an event. After it the writer sends a comment, with the headers before it if
    the response has not begun."""
    disconnect_after: float
    """How long a client can read nothing before it is disconnected."""


class EventWriter:
    """Writes the events of one response. One timer checks the timeouts of the stream. It is set again only
    after it fires, because setting it for each event would cost time."""

    __slots__ = (
        "_build_headers",
        "_byte_count",
        "_connection",
        "_encode_keep_alive",
        "_exchange",
        "_interval",
        "_last_progress_at",
        "_loop",
        "_parts",
        "_planned_flush",
        "_timeouts",
        "_timer",
    )

    def __init__(
        self,
        exchange: Exchange,
        timeouts: StreamTimeouts,
        build_headers: Callable[[], HeaderList],
        encode_keep_alive: Callable[[], bytes],
    ) -> None:
        """`build_headers` returns further headers of the response. The writer calls it when the response
        begins. `encode_keep_alive` returns what is sent after a long pause."""
        self._exchange = exchange
        self._connection = exchange.connection
        self._timeouts = timeouts
        self._build_headers = build_headers
        self._encode_keep_alive = encode_keep_alive
        self._parts: list[bytes] = []
        self._byte_count = 0
        """The number of bytes in the waiting parts."""
        self._planned_flush: asyncio.Handle | None = None
        self._interval = min(timeouts.keep_alive_after, timeouts.disconnect_after)
        self._loop = exchange.connection.loop
        self._last_progress_at = self._loop.time()
        """The time of the last write, or the time at which the client last started to read again."""
        self._timer = self._loop.call_later(self._interval, self._check_timeouts)

    @property
    def has_begun(self) -> bool:
        """Whether the response has begun. It begins with the first part, also if that is not written yet."""
        return self._exchange.status != 0 or bool(self._parts)

    async def put(self, part: bytes) -> None:
        """Writes a part. An empty part only begins the response. Waits while the client does not read."""
        self._parts.append(part)
        self._byte_count += len(part)
        if self._connection.is_writing_paused:
            await self._connection.drain()
        if self._byte_count > HIGH_WATER:
            self._flush()
            await asyncio.sleep(0)  # a producer that never waits lets others run
        elif self._planned_flush is None:
            self._planned_flush = self._loop.call_soon(self._flush)

    async def close(self, part: bytes) -> None:
        """Writes the waiting parts and the last part, and ends the response. Waits while the client does not
        read."""
        self._parts.append(part)
        try:
            if self._connection.is_writing_paused:
                await self._connection.drain()
            self._write(is_last=True)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Stops the writer without writing anything more."""
        self._timer.cancel()
        if self._planned_flush is not None:
            self._planned_flush.cancel()

    def _flush(self) -> None:
        """Writes the waiting parts. If the client does not read, the parts wait for the next `put` or for the
        end."""
        if self._planned_flush is not None:
            self._planned_flush.cancel()
            self._planned_flush = None
        if not self._connection.is_writing_paused:
            self._write()
            self._last_progress_at = self._loop.time()

    def _write(self, is_last: bool = False) -> None:
        """Writes the waiting parts, after the head of the response."""
        if not self._exchange.status:
            self._exchange.begin(200, STREAM_HEADERS + self._build_headers())
        data = b"".join(self._parts)
        self._parts.clear()
        self._byte_count = 0
        self._exchange.write(data, is_last)

    def _check_timeouts(self) -> None:
        """Sends something after a long pause, or disconnects a client that does not read. Then sets the timer
        again."""
        now, timeouts, is_paused = self._loop.time(), self._timeouts, self._connection.is_writing_paused
        timeout = timeouts.disconnect_after if is_paused else timeouts.keep_alive_after
        due_at = self._last_progress_at + timeout
        if now < due_at:
            self._timer = self._loop.call_at(min(due_at, now + self._interval), self._check_timeouts)
            return
        if is_paused:
            self._connection.transport.abort()
            return
        self._parts.append(self._encode_keep_alive())
        self._flush()
        self._timer = self._loop.call_at(now + self._interval, self._check_timeouts)
