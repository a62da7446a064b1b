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

    async def put(self, part: bytes) -> None:
        """Leaves a part, which may be empty to say that the stream has begun; waits while the outbox is
        full."""
        self._parts.append(part)
        self._size += len(part)
        self._stirred.set()
        if self._size > HIGH_WATER:
            self._room.clear()
            await self._room.wait()

    def close(self, part: bytes) -> None:
        """Leaves the last part."""
        self._parts.append(part)
        self.closed = True
        self._stirred.set()

    async def stir(self, seconds: float) -> bool:
        """Waits until there is something to send or nothing more to come; False after so many seconds of
        silence."""
        if self._stirred.is_set():
            return True
        try:
            async with asyncio.timeout(seconds):
                return await self._stirred.wait()
        except TimeoutError:
            return False

    def take(self) -> bytes:
        """All that lies there."""
        taken = b"".join(self._parts)
        self._parts.clear()
        self._size = 0
        self._stirred.clear()
        self._room.set()
        return taken


@dataclass(frozen=True, slots=True)
class Sender:
    """Empties an outbox into one response."""

    send: Send
    silence: float
    """Seconds after which headers, and then comments, are sent although there is no event."""
    patience: float
    """Seconds that one write may wait for the client to read."""
    cut: Callable[[], None]
    """Drops the connection; called when the patience is over."""
    headers: list[tuple[bytes, bytes]]
    """More headers of this response."""

    async def deliver(self, outbox: Outbox) -> None:
        """Sends until the outbox is closed and empty, or the client was cut."""
        try:
            heard, last = await outbox.stir(self.silence), False
            outbox.begun = True
            await self._send(
                {"type": "http.response.start", "status": 200, "headers": HEADERS + self.headers}
            )
            while not last:
                last, data = (outbox.closed, outbox.take()) if heard else (False, KEEP_ALIVE)
                if data or last:
                    await self._send({"type": "http.response.body", "body": data, "more_body": not last})
                heard = last or await outbox.stir(self.silence)
        except TimeoutError:
            self.cut()

    async def _send(self, message: Message) -> None:
        async with asyncio.timeout(self.patience):
            await self.send(message)
