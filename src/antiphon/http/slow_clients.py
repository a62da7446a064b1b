"""Drops connections whose clients read nothing.

The transport has no deadline for a client that reads nothing. Without a deadline such a client could keep an
unsent answer, and the requests behind it, in memory forever. One timer checks all connections of the process
every few seconds, so a request costs nothing more.
"""

import asyncio
import contextlib
import fcntl
import math
import struct
import termios
from typing import Any

MAX_INTERVAL = 5.0
"""The longest time between two checks in seconds. A client is disconnected at most this many seconds after
its deadline."""

MIN_CHECKS = 4
"""The smallest number of checks until a client's deadline."""


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
