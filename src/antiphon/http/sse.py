"""Writes a stream of server-sent events to one client, at the speed at which the client reads.

All events of one turn of the event loop are written at once. The writer delays the headers until the first
event, or for a limited time. So a failure before them is a plain HTTP error. Comments fill a later silence.
If the client does not read, the writer pauses the producer of events, and disconnects the client after a
while.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.types import Message, Send

from antiphon.dialects.base import KEEP_ALIVE
from antiphon.http.connection import Connection

HIGH_WATER = 1 << 16
"""The number of bytes that are written at once, even if more data follows: some hundreds of chunks."""

HEADERS: list[tuple[bytes, bytes]] = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


@dataclass(frozen=True, slots=True)
class Pace:
    """The longest pauses of a stream, in seconds."""

    silence: float
    """The longest pause without an event. After it the headers are sent, and then comments."""
    patience: float
    """The longest wait for a client that does not read. After it the client is disconnected."""


class EventWriter:
    """Writes the events of one response. One timer checks the pace of the stream, and is set again only after
    it fires."""

    __slots__ = (
        "_connection",
        "_flushing",
        "_headers",
        "_keep_alive",
        "_loop",
        "_moved_at",
        "_pace",
        "_parts",
        "_send",
        "_size",
        "_step",
        "_timer",
        "has_begun",
    )

    def __init__(
        self,
        send: Send,
        connection: Connection,
        pace: Pace,
        headers: Callable[[], list[tuple[bytes, bytes]]],
        keep_alive: bytes = KEEP_ALIVE,
    ) -> None:
        """`headers` returns further headers of the response. The writer calls it when the response begins.
        `keep_alive` fills a silence."""
        self.has_begun = False
        """Whether the response has begun."""
        self._send = send
        self._connection = connection
        self._pace = pace
        self._headers = headers
        self._keep_alive = keep_alive
        self._parts: list[bytes] = []
        self._size = 0
        """The number of bytes in the waiting parts."""
        self._flushing: asyncio.Handle | None = None
        self._step = min(pace.silence, pace.patience)
        self._loop = asyncio.get_running_loop()
        self._moved_at = self._loop.time()
        """The time of the last write, or the time at which the client last started to read again."""
        self._timer = self._loop.call_later(self._step, self._check_pace)

    async def put(self, part: bytes) -> None:
        """Writes a part. An empty part only opens the response. Waits while the client does not read."""
        self._parts.append(part)
        self._size += len(part)
        if self._connection.is_paused:
            await self._connection.drain()
        if self._size > HIGH_WATER:
            self._flush()
            await asyncio.sleep(0)  # a producer that never waits lets others run
        elif self._flushing is None:
            self._flushing = self._loop.call_soon(self._flush)

    async def close(self, part: bytes) -> None:
        """Writes the last part after the client has taken the others."""
        self._stop_flushing()
        self._parts.append(part)
        try:
            if not self.has_begun:
                await self._send(self._build_start())
            await self._send({"type": "http.response.body", "body": self._take_parts(), "more_body": False})
        finally:
            self._timer.cancel()

    def abandon(self) -> None:
        """Stops the writer without writing anything more."""
        self._stop_flushing()
        self._timer.cancel()

    def _flush(self) -> None:
        """Writes the waiting parts. If the client does not read, the parts wait for the next `put` or for the
        end."""
        self._stop_flushing()
        if self._connection.is_paused:
            return
        if not self.has_begun:
            _finish_send(self._send(self._build_start()))
        if data := self._take_parts():
            _finish_send(self._send({"type": "http.response.body", "body": data, "more_body": True}))
        self._moved_at = self._loop.time()

    def _build_start(self) -> Message:
        """Returns the message that opens the response."""
        self.has_begun = True
        return {"type": "http.response.start", "status": 200, "headers": HEADERS + self._headers()}

    def _take_parts(self) -> bytes:
        """Removes the waiting parts, and returns them joined."""
        data = b"".join(self._parts)
        self._parts.clear()
        self._size = 0
        return data

    def _stop_flushing(self) -> None:
        """Cancels the flush that is planned, if there is one."""
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None

    def _check_pace(self) -> None:
        """Fills a silence if there was no event for a while, or drops a client that does not read. Then sets
        the timer again."""
        now, pace, is_paused = self._loop.time(), self._pace, self._connection.is_paused
        due = self._moved_at + (pace.patience if is_paused else pace.silence)
        if now < due:
            self._timer = self._loop.call_at(min(due, now + self._step), self._check_pace)
            return
        if is_paused:
            self._connection.abort()
            return
        self._parts.append(self._keep_alive)
        self._flush()
        self._timer = self._loop.call_at(now + self._step, self._check_pace)


def _finish_send(sending: Awaitable[None]) -> None:
    """Runs a send to its end, without the event loop. The send cannot wait, because the connection accepts
    data."""
    try:
        next(iter(sending.__await__()))
    except StopIteration:
        return
    raise RuntimeError("a write waited on a connection that takes writes")
