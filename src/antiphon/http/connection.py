"""The connection of a request, and the watch that drops connections whose clients read nothing.

The protocol creates one `Connection` for each request. It calls `leave` when the client leaves before the
answer ends.

Neither uvicorn nor the transport has a deadline for a client that reads nothing. Without a deadline such a
client could keep an unsent answer, and the requests behind it, in memory forever. One timer checks all
connections of the process every few seconds, so a request costs nothing more.
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
"""The key of the `Connection` in the state of an ASGI scope."""

MAX_INTERVAL = 5.0
"""The longest time between two checks in seconds. A client is disconnected at most this many seconds after
its deadline."""

MIN_CHECKS = 4
"""The smallest number of checks until a client's deadline."""


class Flow(Protocol):
    """The flow control of a connection, as uvicorn provides it."""

    write_paused: bool
    """Whether the client does not read the written data."""

    async def drain(self) -> None:
        """Waits until the client reads again, or is gone."""

    def resume_reading(self) -> None:
        """Starts to read from the connection again. Reading pauses during a large body."""


class Connection:
    """The connection of one request. Use it only on the event loop."""

    __slots__ = ("_flow", "abort", "arrived_at", "has_arrived", "has_left", "on_leave")

    def __init__(self, abort: Callable[[], None], arrived_at: float, flow: Flow) -> None:
        """`abort` drops the connection at once. `arrived_at` is the event loop's time of the first byte."""
        self.abort = abort
        self.arrived_at = arrived_at
        self.on_leave: Callable[[], None] | None = None
        """The function that is called once if the client leaves before its answer is complete."""
        self.has_left = False
        self.has_arrived = False
        """Whether the whole request has arrived."""
        self._flow = flow

    @property
    def is_paused(self) -> bool:
        """Whether the client has stopped to read. Data written now would only stay in memory."""
        return self._flow.write_paused

    def resume_reading(self) -> None:
        """Starts to read from the connection again. Reading pauses during a large body, and a server that
        does not read cannot notice that the client leaves."""
        self._flow.resume_reading()

    async def drain(self) -> None:
        """Waits until the client reads again, or is gone."""
        await self._flow.drain()

    def leave(self) -> None:
        """Records that the client has closed the connection, and calls `on_leave`."""
        self.has_left = True
        if self.on_leave is not None:
            self.on_leave()


def get_connection(scope: Scope) -> Connection:
    """Returns the connection of a request."""
    connection: Connection = scope["state"][CONNECTION]
    return connection


class OutgoingData:
    """The unsent data of one connection."""

    def __init__(self, transport: asyncio.WriteTransport) -> None:
        self._transport = transport
        self._last_unsent_bytes = 0
        self._idle_checks = 0
        """The number of consecutive checks that found no progress. The watch counts checks instead of
        seconds, so a process that was stopped for a while disconnects nobody."""

    def drop_if_idle(self, max_idle_checks: int) -> None:
        """Checks whether the client has read data since the last check. Drops the connection after
        `max_idle_checks` consecutive checks in which it has read nothing."""
        buffered_bytes = self._transport.get_write_buffer_size()
        unsent_bytes = buffered_bytes and buffered_bytes + _count_unconfirmed_bytes(self._transport)
        has_progress = not unsent_bytes or unsent_bytes != self._last_unsent_bytes
        self._idle_checks = 0 if has_progress else self._idle_checks + 1
        self._last_unsent_bytes = unsent_bytes
        if self._idle_checks >= max_idle_checks:
            self._transport.abort()


class SlowClientWatch:
    """Watches all connections of a process."""

    def __init__(self, timeout: float) -> None:
        """`timeout`: the seconds within which a client must read some of its unsent data."""
        self._max_idle_checks = max(MIN_CHECKS, math.ceil(timeout / MAX_INTERVAL))
        self._interval = timeout / self._max_idle_checks
        self._watched: set[OutgoingData] = set()
        self._is_scheduled = False

    def add(self, outgoing: OutgoingData) -> None:
        """Starts to watch a connection."""
        self._watched.add(outgoing)
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_later(self._interval, self._check_connections)

    def discard(self, outgoing: OutgoingData) -> None:
        """Stops watching a connection that has ended."""
        self._watched.discard(outgoing)

    def _check_connections(self) -> None:
        """Checks all watched connections, and sets the timer again."""
        self._is_scheduled = bool(self._watched)
        if self._is_scheduled:
            asyncio.get_running_loop().call_later(self._interval, self._check_connections)
        for outgoing in tuple(self._watched):
            outgoing.drop_if_idle(self._max_idle_checks)


def _count_unconfirmed_bytes(transport: asyncio.WriteTransport) -> int:
    """Returns the number of bytes in the kernel's send buffer that the client's machine has not confirmed, or
    0 if the system does not report it. This number shows progress of a slow client much earlier than the
    transport's buffer does."""
    sock: Any = transport.get_extra_info("socket")
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return int(struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)))[0])
    return 0
