"""Drops connections whose clients take nothing of what is written to them.

Neither uvicorn nor the transport has a deadline for that: an answer that is put into a closing transport,
or a request that waits for the one before it to be read, would be held for as long as the client likes. One
timer looks at all connections of the process every few seconds, so that a request costs nothing more.
"""

import asyncio
import contextlib
import fcntl
import math
import struct
import termios
from typing import Any

LOOK = 5.0
"""Seconds between two looks, at most: a dead connection is held no longer than that beyond its time."""

LOOKS = 4
"""Within the time in which something must be taken, at least."""


class OutgoingData:
    """What one connection has still to write."""

    def __init__(self, transport: asyncio.WriteTransport) -> None:
        self._transport = transport
        self._left = 0
        self._still = 0
        """Looks that found nothing moved: counted, so that a process which stood still itself cuts nobody."""

    def look(self, looks: int) -> None:
        """Drops the connection when so many looks, one after the other, have found nothing moved."""
        waiting = self._transport.get_write_buffer_size()
        left = waiting and waiting + _held_by_kernel(self._transport)
        self._still = self._still + 1 if left and left == self._left else 0
        self._left = left
        if self._still >= looks:
            self._transport.abort()


class SlowClientWatch:
    """All connections of a process."""

    def __init__(self, patience: float) -> None:
        """`patience`: seconds in which a client must take something of what waits for it."""
        self._looks = max(LOOKS, math.ceil(patience / LOOK))
        self._step = patience / self._looks
        self._watched: set[OutgoingData] = set()
        self._looking = False

    def add(self, outgoing: OutgoingData) -> None:
        """Looks at a connection from now on."""
        self._watched.add(outgoing)
        if not self._looking:
            self._looking = True
            asyncio.get_running_loop().call_later(self._step, self._look)

    def discard(self, outgoing: OutgoingData) -> None:
        """The connection has ended."""
        self._watched.discard(outgoing)

    def _look(self) -> None:
        self._looking = bool(self._watched)
        if self._looking:
            asyncio.get_running_loop().call_later(self._step, self._look)
        for outgoing in tuple(self._watched):
            outgoing.look(self._looks)


def _held_by_kernel(transport: asyncio.WriteTransport) -> int:
    """Bytes that the client's machine has not confirmed, where the system tells: a slow client moves this
    number long before the kernel, whose buffer is megabytes, has room for more."""
    held: Any = transport.get_extra_info("socket")
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return int(struct.unpack("i", fcntl.ioctl(held.fileno(), termios.TIOCOUTQ, bytes(4)))[0])
    return 0
