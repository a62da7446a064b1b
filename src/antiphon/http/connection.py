"""The connection of a request, and the watch that drops connections whose clients read nothing.

The protocol makes one `Connection` for each request, and calls `leave` when the client leaves before the
answer ends.

Neither uvicorn nor the transport has a deadline for a client that reads nothing. Without one, an answer in a
closing transport, or a request behind an unread one, would stay as long as the client likes. One timer looks
at all connections of the process every few seconds, so a request costs nothing more.
"""

import asyncio
import contextlib
import fcntl
import math
import struct
import termios
from collections.abc import Callable
from typing import Any, Protocol

from starlette.types import Scope

CONNECTION = "antiphon.connection"
"""Key of the Connection in the scope's state."""

MAX_INTERVAL = 5.0
"""Seconds between two looks, at most: a dead connection is held no longer than that beyond its time."""

MIN_CHECKS = 4
"""Within the time in which something must be taken, at least."""


class Flow(Protocol):
    """What a connection reads and writes."""

    write_paused: bool
    """Whether the client does not take what is written to it."""

    async def drain(self) -> None:
        """Waits until it does."""

    def resume_reading(self) -> None:
        """Reads on, after a large body."""


class Connection:
    """One request's connection. Belongs to the event loop."""

    __slots__ = ("_flow", "abort", "arrived_at", "has_left", "is_whole", "on_leave")

    def __init__(self, abort: Callable[[], None], arrived_at: float, flow: Flow) -> None:
        """`abort`: drops the connection at once. `arrived_at`: the loop's time of the first byte."""
        self.abort = abort
        self.arrived_at = arrived_at
        self.on_leave: Callable[[], None] | None = None
        """Called once when the client leaves before its answer is complete."""
        self.has_left = False
        self.is_whole = False
        """Whether all of the request has arrived."""
        self._flow = flow

    @property
    def is_paused(self) -> bool:
        """Whether the client does not read: what is written now would only be held."""
        return self._flow.write_paused

    def resume_reading(self) -> None:
        """Reads on: a large body stops the reading, and only who reads sees that the client leaves."""
        self._flow.resume_reading()

    async def drain(self) -> None:
        """Waits until the client reads again, or is gone."""
        await self._flow.drain()

    def leave(self) -> None:
        """The client has left."""
        self.has_left = True
        if self.on_leave is not None:
            self.on_leave()


def get_connection(scope: Scope) -> Connection:
    """The connection of a request."""
    connection: Connection = scope["state"][CONNECTION]
    return connection


class OutgoingData:
    """What one connection has still to write."""

    def __init__(self, transport: asyncio.WriteTransport) -> None:
        self._transport = transport
        self._left = 0
        self._still = 0
        """Looks that found nothing moved: counted, so that a process which stood still itself cuts nobody."""

    def check(self, looks: int) -> None:
        """Drops the connection when so many looks, one after the other, have found nothing moved."""
        waiting = self._transport.get_write_buffer_size()
        left = waiting and waiting + _count_kernel_bytes(self._transport)
        self._still = self._still + 1 if left and left == self._left else 0
        self._left = left
        if self._still >= looks:
            self._transport.abort()


class SlowClientWatch:
    """All connections of a process."""

    def __init__(self, patience: float) -> None:
        """`patience`: seconds in which a client must take something of what waits for it."""
        self._looks = max(MIN_CHECKS, math.ceil(patience / MAX_INTERVAL))
        self._step = patience / self._looks
        self._watched: set[OutgoingData] = set()
        self._looking = False

    def add(self, outgoing: OutgoingData) -> None:
        """Looks at a connection from now on."""
        self._watched.add(outgoing)
        if not self._looking:
            self._looking = True
            asyncio.get_running_loop().call_later(self._step, self._check_all)

    def discard(self, outgoing: OutgoingData) -> None:
        """The connection has ended."""
        self._watched.discard(outgoing)

    def _check_all(self) -> None:
        self._looking = bool(self._watched)
        if self._looking:
            asyncio.get_running_loop().call_later(self._step, self._check_all)
        for outgoing in tuple(self._watched):
            outgoing.check(self._looks)


def _count_kernel_bytes(transport: asyncio.WriteTransport) -> int:
    """Bytes that the client's machine has not confirmed, where the system tells: a slow client moves this
    number long before the kernel, whose buffer is megabytes, has room for more."""
    held: Any = transport.get_extra_info("socket")
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return int(struct.unpack("i", fcntl.ioctl(held.fileno(), termios.TIOCOUTQ, bytes(4)))[0])
    return 0
