"""Writes a stream of server-sent events to one client, at the speed at which the client reads.

All events of one turn of the event loop are written at once. The writer delays the headers until the first
event, or for a limited time. So a failure before them is a plain HTTP error. After a long pause between
events it sends a comment. If the client does not read, the writer pauses the producer of events, and
disconnects the client after a while.
"""

import asyncio
from collections.abc import Awaitable, Callable

from starlette.types import Message, Send

from antiphon.dialects.base import KEEP_ALIVE
from antiphon.domain.values import Struct
from antiphon.http.connection import Connection

HIGH_WATER = 1 << 16
"""The number of bytes that are written at once, even if more data follows: some hundreds of chunks."""

HEADERS: list[tuple[bytes, bytes]] = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


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
        "_byte_count",
        "_connection",
        "_headers",
        "_interval",
        "_keep_alive",
        "_last_progress_at",
        "_loop",
        "_parts",
        "_planned_flush",
        "_send",
        "_timeouts",
        "_timer",
        "has_begun",
    )

    def __init__(
        self,
        send: Send,
        connection: Connection,
        timeouts: StreamTimeouts,
        headers: Callable[[], list[tuple[bytes, bytes]]],
        keep_alive: bytes = KEEP_ALIVE,
    ) -> None:
        """`headers` returns further headers of the response. The writer calls it when the response begins.
        `keep_alive`: the comment that is sent after a long pause."""
        self.has_begun = False
        """Whether the response has begun."""
        self._send = send
        self._connection = connection
        self._timeouts = timeouts
        self._headers = headers
        self._keep_alive = keep_alive
        self._parts: list[bytes] = []
        self._byte_count = 0
        """The number of bytes in the waiting parts."""
        self._planned_flush: asyncio.Handle | None = None
        self._interval = min(timeouts.keep_alive_after, timeouts.disconnect_after)
        self._loop = asyncio.get_running_loop()
        self._last_progress_at = self._loop.time()
        """The time of the last write, or the time at which the client last started to read again."""
        self._timer = self._loop.call_later(self._interval, self._check_timeouts)

    async def put(self, part: bytes) -> None:
        """Writes a part. An empty part only begins the response. Waits while the client does not read."""
        self._parts.append(part)
        self._byte_count += len(part)
        if self._connection.is_paused:
            await self._connection.drain()
        if self._byte_count > HIGH_WATER:
            self._flush()
            await asyncio.sleep(0)  # a producer that never waits lets others run
        elif self._planned_flush is None:
            self._planned_flush = self._loop.call_soon(self._flush)

    async def close(self, part: bytes) -> None:
        """Writes the waiting parts and the last part, and ends the response. Waits while the client does not
        read."""
        self._cancel_flush()
        self._parts.append(part)
        try:
            if not self.has_begun:
                await self._send(self._begin_response())
            await self._send({"type": "http.response.body", "body": self._take_parts(), "more_body": False})
        finally:
            self._timer.cancel()

    def abandon(self) -> None:
        """Stops the writer without writing anything more."""
        self._cancel_flush()
        self._timer.cancel()

    def _flush(self) -> None:
        """Writes the waiting parts. If the client does not read, the parts wait for the next `put` or for the
        end."""
        self._cancel_flush()
        if self._connection.is_paused:
            return
        if not self.has_begun:
            _finish_send(self._send(self._begin_response()))
        if data := self._take_parts():
            _finish_send(self._send({"type": "http.response.body", "body": data, "more_body": True}))
        self._last_progress_at = self._loop.time()

    def _begin_response(self) -> Message:
        """Returns the message that begins the response, and sets `has_begun`."""
        self.has_begun = True
        return {"type": "http.response.start", "status": 200, "headers": HEADERS + self._headers()}

    def _take_parts(self) -> bytes:
        """Removes the waiting parts, and returns them joined."""
        data = b"".join(self._parts)
        self._parts.clear()
        self._byte_count = 0
        return data

    def _cancel_flush(self) -> None:
        """Cancels the flush that is planned, if there is one."""
        if self._planned_flush is not None:
            self._planned_flush.cancel()
            self._planned_flush = None

    def _check_timeouts(self) -> None:
        """Sends a comment after a long pause, or disconnects a client that does not read. Then sets the timer
        again."""
        now, timeouts, is_paused = self._loop.time(), self._timeouts, self._connection.is_paused
        timeout = timeouts.disconnect_after if is_paused else timeouts.keep_alive_after
        due_at = self._last_progress_at + timeout
        if now < due_at:
            self._timer = self._loop.call_at(min(due_at, now + self._interval), self._check_timeouts)
            return
        if is_paused:
            self._connection.abort()
            return
        self._parts.append(self._keep_alive)
        self._flush()
        self._timer = self._loop.call_at(now + self._interval, self._check_timeouts)


def _finish_send(sending: Awaitable[None]) -> None:
    """Runs a coroutine of `send` to its end without the event loop. The coroutine does not wait, because the
    connection accepts data. Raises RuntimeError if it waits."""
    try:
        next(iter(sending.__await__()))
    except StopIteration:
        return
    raise RuntimeError("a write waited on a connection that accepts data")
