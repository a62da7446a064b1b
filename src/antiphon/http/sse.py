"""Writes a stream of server-sent events to one client, as fast as the client reads and no faster.

The maker of events puts their bytes into an outbox; the sender takes all that lies there and writes it at
once. Response
headers wait for the first event, or for so much silence, so that a failure before them is a plain HTTP
error. Silence
after them is filled with comments. A client that does not read holds the maker back, and is cut after a
while.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from starlette.types import Message, Send

HIGH_WATER = 1 << 16
"""Bytes in an outbox from which the maker waits: some hundreds of chunks."""

KEEP_ALIVE = b": keep-alive\n\n"

HEADERS: list[tuple[bytes, bytes]] = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Outbox:
    """Bytes on their way from one maker to one sender."""

    def __init__(self) -> None:
        self.begun = False
        """Whether the sender has opened the response; set by the sender, read by the maker."""
        self.closed = False
        self._parts: list[bytes] = []
        self._size = 0
        self._stirred = asyncio.Event()
        self._room = asyncio.Event()

    def leave(self, part: bytes) -> None:
        """Leaves a part, however full the outbox is."""
        self._parts.append(part)
        self._size += len(part)
        self._stirred.set()

    async def put(self, part: bytes) -> None:
        """Leaves a part, which may be empty to say that the stream began; waits while the outbox is full."""
        self.leave(part)
        if self._size > HIGH_WATER:
            self._room.clear()
            await self._room.wait()

    def close(self, part: bytes) -> None:
        """Leaves the last part."""
        self.leave(part)
        self.closed = True

    async def stirred(self) -> None:
        """Waits until something was left since the last taking."""
        await self._stirred.wait()

    def take(self) -> bytes:
        """All that lies there."""
        taken = b"".join(self._parts)
        self._parts.clear()
        self._size = 0
        self._stirred.clear()
        self._room.set()
        return taken


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a stream may stand still, in seconds."""

    silence: float
    """Without an event, until headers and then comments are sent."""
    patience: float
    """Within one write, until a client that does not read is cut."""


class Sender:
    """Empties an outbox into one response. One timer watches over it, set anew only when it goes off.

    `cut` drops the connection.
    """

    def __init__(self, send: Send, outbox: Outbox, pace: Pace, cut: Callable[[], None]) -> None:
        self._send = send
        self._outbox = outbox
        self._pace = pace
        self._cut = cut
        self._step = min(pace.silence, pace.patience)
        self._loop = asyncio.get_running_loop()
        self._moved = self._loop.time()
        """When the last write began or ended."""
        self._writing = False

    async def deliver(self, headers: Callable[[], list[tuple[bytes, bytes]]]) -> None:
        """Sends until the outbox is closed and empty. `headers` gives more headers of this response, as it
        begins."""
        self._timer = self._loop.call_later(self._step, self._tick)
        outbox, last = self._outbox, False
        try:
            await outbox.stirred()
            outbox.begun = True
            await self._write({"type": "http.response.start", "status": 200, "headers": HEADERS + headers()})
            while not last:
                last, data = outbox.closed, outbox.take()
                if data or last:
                    await self._write({"type": "http.response.body", "body": data, "more_body": not last})
                if not last:
                    await outbox.stirred()
        finally:
            self._timer.cancel()

    async def _write(self, message: Message) -> None:
        self._writing, self._moved = True, self._loop.time()
        await self._send(message)
        self._writing, self._moved = False, self._loop.time()

    def _tick(self) -> None:
        now, pace = self._loop.time(), self._pace
        due = self._moved + (pace.patience if self._writing else pace.silence)
        if now < due:
            self._timer = self._loop.call_at(min(due, now + self._step), self._tick)
        elif self._writing:
            self._cut()
        else:
            self._outbox.leave(KEEP_ALIVE)
            self._timer = self._loop.call_at(now + self._step, self._tick)
