"""Exchanges messages between two processes of one server over a socket.

A frame is a 4-byte big-endian length and a msgpack array `[sequence, [message, ...]]`. The sequence counts
the frames of one direction from 0, so a lost or repeated frame is detected. The first message of each
direction is `Hello`. Both ends must have the same protocol and release, because structs are encoded
without a schema. All messages of one turn of the event loop are in one frame.

`FrameWriter` and `FrameReader` encode and decode without I/O. `Channel` is one connection.
"""

import asyncio
import os
import socket
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Generic, Protocol, TypeVar, runtime_checkable

import msgspec

import antiphon

M = TypeVar("M")
T = TypeVar("T")

PROTOCOL = 3
"""Incremented when the meaning of a frame changes."""

MAX_MESSAGE = 16 * 1024 * 1024
"""The most bytes of one message: several times the largest vocabulary (5 MB for 256,000 ids), and twice the
default request body."""

MAX_FRAME = MAX_MESSAGE + 2 * 1024 * 1024
"""The most bytes of one frame: one message of any size, or many small ones."""

HEADER_BYTES = 4
"""The size in bytes of the length that precedes each frame's body."""


class FrameError(Exception):
    """The peer violated the protocol. The connection is unusable."""


class Incompatible(FrameError):
    """The peer has another release or protocol. Another attempt would fail too."""


class Frame(msgspec.Struct, array_like=True, gc=False):
    """The base class of messages. Each class has its own tag."""


class Hello(Frame, tag=0):
    """The first message of each direction: the sender's protocol and release."""

    protocol: int
    release: str


class FrameWriter:
    """Encodes the frames of one direction of a connection."""

    def __init__(self) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._sequence = 0

    def encode_message(self, message: Frame) -> bytes:
        """Encodes one message. Raises FrameError if it is too large."""
        encoded = self._encoder.encode(message)
        if len(encoded) > MAX_MESSAGE:
            raise FrameError(f"a message of {len(encoded)} bytes is over the limit of {MAX_MESSAGE}")
        return encoded

    def encode_frame(self, encoded: Sequence[bytes]) -> bytes:
        """Encodes the next frame. Its messages together must fit MAX_FRAME."""
        body = self._encoder.encode((self._sequence, [msgspec.Raw(message) for message in encoded]))
        self._sequence += 1
        return len(body).to_bytes(HEADER_BYTES, "big") + body


class FrameReader(Generic[M]):
    """Decodes the received bytes of one direction, and returns the messages of complete frames."""

    def __init__(self, decoder: "msgspec.msgpack.Decoder[tuple[int, list[M]]]") -> None:
        self._decoder = decoder
        self._pending = bytearray()
        self._sequence = 0

    def feed(self, data: bytes) -> Iterator[M]:
        """Yields the messages of complete frames in order. The caller must exhaust the iterator. Raises
        FrameError at an invalid frame, after the messages before it. The reader is unusable after an
        error."""
        self._pending += data
        start = 0
        while (end := self._find_frame_end(start)) is not None:
            yield from self._decode(self._pending[start + HEADER_BYTES : end])
            start = end
        del self._pending[:start]

    def _find_frame_end(self, start: int) -> int | None:
        """Returns the end of the frame that starts at `start`; None if the frame is incomplete."""
        if len(self._pending) < start + HEADER_BYTES:
            return None
        length = int.from_bytes(self._pending[start : start + HEADER_BYTES], "big")
        if length > MAX_FRAME:
            raise FrameError(f"a frame of {length} bytes is over the limit of {MAX_FRAME}")
        end = start + HEADER_BYTES + length
        return end if len(self._pending) >= end else None

    def _decode(self, body: bytearray) -> list[M]:
        """Returns the messages of a frame. Raises FrameError for an invalid frame or a wrong sequence
        number."""
        try:
            sequence, messages = self._decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
            raise FrameError(f"a frame cannot be read: {problem}") from None
        if sequence != self._sequence:
            raise FrameError(f"received frame {sequence} instead of frame {self._sequence}")
        self._sequence += 1
        return messages


# --- lines of JSON, for the supervisor's pipes (see `engines.host.control`) ---------------------------------


def to_line(value: object) -> bytes:
    """Encodes a value as one line."""
    return msgspec.json.encode(value) + b"\n"


def from_line(line: bytes, cls: type[T]) -> T:
    """Decodes a line of `to_line`. Raises FrameError."""
    try:
        return msgspec.json.decode(line, type=cls)
    except msgspec.DecodeError as problem:
        raise FrameError(f"a line cannot be read: {problem}") from None


Sent = TypeVar("Sent", bound=Frame)

FULL_FRAME_BYTES = 1024 * 1024
"""Bytes after which a frame is complete and the next one starts."""


@runtime_checkable
class FrameTransport(Protocol):
    """The methods of a transport that `Channel` uses. Each event loop has its own transport classes."""

    def write(self, data: bytes) -> None: ...
    def is_closing(self) -> bool: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...
    def get_write_buffer_size(self) -> int: ...
    def get_extra_info(self, name: str) -> "SocketInfo": ...


class SocketInfo(Protocol):
    """The socket of a transport, as event loops show it."""

    def fileno(self) -> int: ...


class Channel(asyncio.Protocol, Generic[Sent]):
    """Sends and receives frames over one transport. `on_message` is called with each message after the
    greeting. `on_lost` is called once, at the end of the connection, with the reason.

    Only the event loop may use a channel, except `encode` and `write_now`, which one other thread may use."""

    def __init__(
        self, reader: FrameReader[Sent], on_message: Callable[[Sent], None], on_lost: Callable[[str], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._reader = reader
        self._writer = FrameWriter()
        self._on_message = on_message
        self._on_lost = on_lost
        self._transport: FrameTransport | None = None
        self._lock = Lock()
        """Guards the transport, the order of the frames and the waiting messages. The event loop closes the
        socket only after `connection_lost`."""
        self._rest = b""
        """The end of a frame whose beginning `write_now` has written."""
        self._has_backlog = False
        """Whether the transport had unwritten bytes after the last flush. Only the event loop may ask the
        transport: asyncio takes bytes out of its buffer before it has written them."""
        self._waiting: deque[tuple[bytes, str]] = deque()
        """Waiting messages, each with the owner whose unsent bytes include it."""
        self._is_flushing = False
        self._is_paused = False
        self._reason = "the connection ended"
        self.unsent = 0
        """Bytes of messages that the peer has not read yet. Each side of the connection has its own
        limit."""
        self._unsent_by_owner: Counter[str] = Counter()
        self.greeted: asyncio.Future[None] = self._loop.create_future()
        """Done when the peer has sent Hello. Fails with Incompatible, or with ConnectionError if the
        connection ends first."""

    def put(self, message: Frame) -> None:
        """Sends the message at the end of this turn of the event loop. Drops it if the connection has ended.

        Raises FrameError if the message is too large; the connection stays usable.
        """
        if self._transport is not None and not self._transport.is_closing():
            self.put_encoded(self.encode(message))

    def encode(self, message: Frame) -> bytes:
        """Encodes a message. Raises FrameError if it is too large."""
        return self._writer.encode_message(message)

    def count_unsent(self, owner: str) -> int:
        """Returns the unsent bytes of an owner."""
        return self._unsent_by_owner[owner]

    def put_encoded(self, encoded: bytes, owner: str = "") -> None:
        """Sends an encoded message as `put` does. `owner`: whose unsent bytes include the message; empty
        means nobody's."""
        if self._transport is None or self._transport.is_closing():
            return
        with self._lock:
            self._waiting.append((encoded, owner))
            self.unsent += len(encoded)
        if owner:
            self._unsent_by_owner[owner] += len(encoded)
        if not self._is_flushing and not self._is_paused:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    def write_now(self, encoded: Sequence[bytes]) -> int:
        """Writes encoded messages as one frame at once, without the event loop. What the peer does not take
        at once, or what has to wait for earlier messages, is left to the event loop. Returns the unsent
        bytes."""
        with self._lock:
            transport = self._transport
            if transport is None or transport.is_closing():
                return 0
            has_earlier = self._waiting or self._rest or self._has_backlog
            if has_earlier or self._is_paused or sum(map(len, encoded)) > FULL_FRAME_BYTES:
                self._waiting += [(message, "") for message in encoded]
                self.unsent += sum(map(len, encoded))
            else:
                frame = self._writer.encode_frame(encoded)
                try:
                    written = os.write(transport.get_extra_info("socket").fileno(), frame)
                except BlockingIOError:
                    written = 0
                except OSError:
                    return 0  # the transport notices the lost connection too
                if written == len(frame):
                    return 0
                self._rest = frame[written:]
                self.unsent += len(self._rest)
            unsent = self.unsent
        with suppress(RuntimeError):  # the loop has closed
            self._loop.call_soon_threadsafe(self._flush)
        return unsent

    def cut(self, reason: str) -> None:
        """Ends the connection immediately and drops unsent messages."""
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
        """Writes the waiting messages until the transport pauses."""
        self._is_flushing = False
        with self._lock:
            while (
                (self._rest or self._waiting)
                and not self._is_paused
                and self._transport is not None
                and not self._transport.is_closing()
            ):
                if self._rest:
                    frame, self._rest = self._rest, b""
                    self.unsent -= len(frame)
                else:
                    frame = self._writer.encode_frame(self._take_frame())
                self._transport.write(frame)
            self._has_backlog = self._transport is not None and self._transport.get_write_buffer_size() > 0

    def _take_frame(self) -> list[bytes]:
        """Returns the waiting messages of the next frame, at least one."""
        messages: list[bytes] = []
        size = 0
        while self._waiting and (not messages or size + len(self._waiting[0][0]) <= FULL_FRAME_BYTES):
            encoded, owner = self._waiting.popleft()
            messages.append(encoded)
            size += len(encoded)
            if owner:
                self._subtract_sent(owner, len(encoded))
        self.unsent -= size
        return messages

    def _subtract_sent(self, owner: str, size: int) -> None:
        """Subtracts sent bytes from the owner's unsent bytes."""
        self._unsent_by_owner[owner] -= size
        if not self._unsent_by_owner[owner]:
            del self._unsent_by_owner[owner]

    # --- asyncio.Protocol -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not isinstance(transport, FrameTransport):
            raise TypeError(f"{transport!r} cannot carry frames")
        self._transport = transport
        self.put(Hello(PROTOCOL, antiphon.__version__))

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._reader.feed(data):
                self._handle(message)
        except FrameError as problem:
            if isinstance(problem, Incompatible):
                self.greeted.set_exception(problem)
            self.cut(str(problem))

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        with self._lock:
            self._transport = None
            self._waiting.clear()
            self._rest = b""
        if not self.greeted.done():
            self.greeted.set_exception(ConnectionError(self._reason))
        if not self.greeted.cancelled():
            self.greeted.exception()  # marks the error as retrieved: `on_lost` reports the reason too
        self._on_lost(self._reason)

    def _handle(self, message: Sent) -> None:
        """Handles one message. Raises FrameError or Incompatible if the first message is no matching
        Hello."""
        if self.greeted.done():
            self._on_message(message)
        elif not isinstance(message, Hello):
            raise FrameError("the peer did not begin with Hello")
        elif (message.protocol, message.release) != (PROTOCOL, antiphon.__version__):
            raise Incompatible(
                f"the peer uses protocol {message.protocol} of release {message.release}, "
                f"this process {PROTOCOL} of {antiphon.__version__}; install the same release for both"
            )
        else:
            self.greeted.set_result(None)


def bind_private(path: str) -> socket.socket:
    """Binds a socket at a path, and replaces an existing socket. Only this user can connect."""
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
    """Removes a socket's path, if it exists. If this process lacks the permission, the path stays until the
    supervisor removes it."""
    with suppress(PermissionError):
        Path(path).unlink(missing_ok=True)
