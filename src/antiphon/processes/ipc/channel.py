"""One end of a connection between two processes of a server: frames in order, coalesced writes, a greeting.

What is put during one turn of the event loop leaves in one frame at its end.
"""

import asyncio
import socket
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Generic, Protocol, TypeVar, runtime_checkable

import antiphon
from antiphon.processes.ipc.frames import (
    PROTOCOL,
    Frame,
    FrameError,
    FrameReader,
    FrameWriter,
    Hello,
    Incompatible,
)

M = TypeVar("M", bound=Frame)

FULL_FRAME = 1024 * 1024
"""Bytes after which a frame is closed and the next one begun."""


@runtime_checkable
class FrameTransport(Protocol):
    """The part of a transport that is used. Each event loop has its own classes."""

    def write(self, data: bytes) -> None: ...
    def is_closing(self) -> bool: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


class Channel(asyncio.Protocol, Generic[M]):
    """Speaks frames over one transport. `received` gets each message after the greeting; `lost` is called
    once, at the end."""

    def __init__(
        self, reader: FrameReader[M], received: Callable[[M], None], lost: Callable[[str], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._reader = reader
        self._writer = FrameWriter()
        self._received = received
        self._lost = lost
        self._transport: FrameTransport | None = None
        self._waiting: deque[tuple[bytes, str]] = deque()
        """Messages with their owners."""
        self._flushing = False
        self._paused = False
        self._reason = "the connection ended"
        self.unsent = 0
        """Bytes of messages that the peer does not read yet. Each end limits them in its own way."""
        self._unsent_of: Counter[str] = Counter()
        self.greeted: asyncio.Future[None] = self._loop.create_future()
        """Done when the peer has sent Hello. Fails with Incompatible or ConnectionError if it never will."""

    def put(self, message: Frame) -> None:
        """Sends the message at the end of this turn of the event loop; drops it when the connection is gone.

        Raises FrameError for a message that no frame can hold; the connection is unharmed.
        """
        if self._transport is not None and not self._transport.is_closing():
            self.put_encoded(self.encode(message))

    def encode(self, message: Frame) -> bytes:
        """Encodes a message. Raises FrameError for one that no frame can hold."""
        return self._writer.encode_message(message)

    def count_unsent(self, owner: str) -> int:
        """Bytes of `unsent` that belong to an owner."""
        return self._unsent_of[owner]

    def put_encoded(self, encoded: bytes, owner: str = "") -> None:
        """Like `put`, for an encoded message. `owner`: whose unsent bytes it counts to, if any."""
        if self._transport is None or self._transport.is_closing():
            return
        self._waiting.append((encoded, owner))
        self.unsent += len(encoded)
        if owner:
            self._unsent_of[owner] += len(encoded)
        if not self._flushing and not self._paused:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def cut(self, reason: str) -> None:
        """Ends the connection at once and drops unsent messages."""
        if self._transport is not None and not self._transport.is_closing():
            self._reason = reason
            self._transport.abort()

    def finish(self) -> None:
        """Ends the connection after all messages are sent."""
        if self._transport is not None and not self._transport.is_closing():
            self._reason = "this side closed"
            self._flush()
            self._transport.close()

    def _flush(self) -> None:
        self._flushing = False
        while (
            self._waiting
            and not self._paused
            and self._transport is not None
            and not self._transport.is_closing()
        ):
            self._transport.write(self._writer.encode_frame(self._take_frame()))

    def _take_frame(self) -> list[bytes]:
        """Returns the waiting messages of the next frame, at least one."""
        taken: list[bytes] = []
        size = 0
        while self._waiting and (not taken or size + len(self._waiting[0][0]) <= FULL_FRAME):
            encoded, owner = self._waiting.popleft()
            taken.append(encoded)
            size += len(encoded)
            if owner:
                self._note_sent(owner, len(encoded))
        self.unsent -= size
        return taken

    def _note_sent(self, owner: str, size: int) -> None:
        self._unsent_of[owner] -= size
        if not self._unsent_of[owner]:
            del self._unsent_of[owner]

    # --- asyncio.Protocol -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not isinstance(transport, FrameTransport):
            raise TypeError(f"{transport!r} cannot carry frames")
        self._transport = transport
        self.put(Hello(PROTOCOL, antiphon.__version__))

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._reader.feed(data):
                self._take(message)
        except FrameError as problem:
            if isinstance(problem, Incompatible):
                self.greeted.set_exception(problem)
            self.cut(str(problem))

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._waiting.clear()
        if not self.greeted.done():
            self.greeted.set_exception(ConnectionError(self._reason))
        if not self.greeted.cancelled():
            self.greeted.exception()  # `lost` reports it too, so nobody needs to read it
        self._lost(self._reason)

    def _take(self, message: M) -> None:
        if self.greeted.done():
            self._received(message)
        elif not isinstance(message, Hello):
            raise FrameError("the peer did not begin with Hello")
        elif (message.protocol, message.release) != (PROTOCOL, antiphon.__version__):
            raise Incompatible(
                f"the peer speaks protocol {message.protocol} of release {message.release}, "
                f"this process {PROTOCOL} of {antiphon.__version__}; install the same release for both"
            )
        else:
            self.greeted.set_result(None)


def bind_private(path: str) -> socket.socket:
    """Binds a socket at a path, mode 0600 before anybody can connect. Replaces an existing one."""
    remove_socket(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(path)
        Path(path).chmod(0o600)
    except OSError:
        sock.close()
        raise
    return sock


def remove_socket(path: str) -> None:
    """Removes a socket's path, if it exists. A process without the right leaves it to the supervisor."""
    with suppress(PermissionError):
        Path(path).unlink(missing_ok=True)
