"""Exchanges messages between two processes of one server over a socket.

A frame is a 4-byte big-endian length and a msgpack array `[sequence, [message, ...]]`. The sequence counts
the frames of one direction from 0, so a lost or repeated frame is detected. The first message of each
direction is `Hello`. Both ends must have the same protocol and release, since dataclasses are encoded as they
are. All messages of one turn of the event loop are in one frame.

`FrameWriter` and `FrameReader` encode and decode without I/O. `Channel` is one connection.
"""

import asyncio
import socket
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Generic, Protocol, TypeVar, runtime_checkable

import msgspec

import antiphon

M = TypeVar("M")
T = TypeVar("T")

PROTOCOL = 2
"""Raised whenever the meaning of a frame changes."""

MAX_MESSAGE = 16 * 1024 * 1024
"""Most bytes of one message: several times the largest vocabulary (5 MB for 256,000 ids), twice the default
request body."""

MAX_FRAME = MAX_MESSAGE + 2 * 1024 * 1024
"""Most bytes of one frame: one message of any size, or many small ones."""

HEADER = 4
"""Bytes of the length at the start of each frame."""


class FrameError(Exception):
    """The peer broke the protocol; the connection cannot be used any more."""


class Incompatible(FrameError):
    """The peer has another release or protocol, so another attempt is useless."""


class Frame(msgspec.Struct, array_like=True, gc=False):
    """Base of all messages. Each class has its own number."""


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
        """Encodes one message for a frame. Raises FrameError if it is too large for one."""
        encoded = self._encoder.encode(message)
        if len(encoded) > MAX_MESSAGE:
            raise FrameError(f"a message of {len(encoded)} bytes is over the limit of {MAX_MESSAGE}")
        return encoded

    def encode_frame(self, encoded: Sequence[bytes]) -> bytes:
        """Encodes the next frame. Its messages must fit MAX_FRAME together."""
        body = self._encoder.encode((self._sequence, [msgspec.Raw(message) for message in encoded]))
        self._sequence += 1
        return len(body).to_bytes(HEADER, "big") + body


class FrameReader(Generic[M]):
    """Decodes the bytes of one direction as they arrive, and returns the messages of complete frames."""

    def __init__(self, decoder: "msgspec.msgpack.Decoder[tuple[int, list[M]]]") -> None:
        self._decoder = decoder
        self._pending = bytearray()
        self._sequence = 0

    def feed(self, data: bytes) -> Iterator[M]:
        """Yields the messages of complete frames in order; the caller must read them to the end. Raises
        FrameError at a fault, after the messages before the fault. The reader cannot be used after that."""
        self._pending += data
        start = 0
        while (end := self._find_frame_end(start)) is not None:
            yield from self._decode(self._pending[start + HEADER : end])
            start = end
        del self._pending[:start]

    def _find_frame_end(self, start: int) -> int | None:
        """Returns the end of the frame that begins at `start`; None while it is incomplete."""
        if len(self._pending) < start + HEADER:
            return None
        length = int.from_bytes(self._pending[start : start + HEADER], "big")
        if length > MAX_FRAME:
            raise FrameError(f"a frame of {length} bytes is over the limit of {MAX_FRAME}")
        end = start + HEADER + length
        return end if len(self._pending) >= end else None

    def _decode(self, body: bytearray) -> list[M]:
        """Returns the messages of a frame. Raises FrameError for an invalid frame or a wrong sequence
        number."""
        try:
            sequence, messages = self._decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
            raise FrameError(f"a frame cannot be read: {problem}") from None
        if sequence != self._sequence:
            raise FrameError(f"frame {sequence} came where frame {self._sequence} was due")
        self._sequence += 1
        return messages


# --- lines of JSON, for the supervisor's pipes (see `control`) ----------------------------------------------


def to_line(value: object) -> bytes:
    """Encodes a dataclass as one line."""
    return msgspec.json.encode(value) + b"\n"


def from_line(line: bytes, cls: type[T]) -> T:
    """Decodes the dataclass that `to_line` encoded. Raises FrameError."""
    try:
        return msgspec.json.decode(line, type=cls)
    except msgspec.DecodeError as problem:
        raise FrameError(f"a line cannot be read: {problem}") from None


Sent = TypeVar("Sent", bound=Frame)

FULL_FRAME = 1024 * 1024
"""Bytes after which a frame is closed and the next one begun."""


@runtime_checkable
class FrameTransport(Protocol):
    """The part of a transport that is used. Each event loop has its own classes."""

    def write(self, data: bytes) -> None: ...
    def is_closing(self) -> bool: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


class Channel(asyncio.Protocol, Generic[Sent]):
    """Sends and receives frames over one transport. `received` gets each message after the greeting. `lost`
    is called once, at the end, with the reason."""

    def __init__(
        self, reader: FrameReader[Sent], received: Callable[[Sent], None], lost: Callable[[str], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._reader = reader
        self._writer = FrameWriter()
        self._received = received
        self._lost = lost
        self._transport: FrameTransport | None = None
        self._waiting: deque[tuple[bytes, str]] = deque()
        """Waiting messages, each with the owner to whom its bytes are counted."""
        self._flushing = False
        self._paused = False
        self._reason = "the connection ended"
        self.unsent = 0
        """Bytes of messages that the peer has not read yet. Each side of the connection sets its own
        limit."""
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
        """Returns the bytes of `unsent` that are counted to an owner."""
        return self._unsent_of[owner]

    def put_encoded(self, encoded: bytes, owner: str = "") -> None:
        """Sends an encoded message as `put` does. `owner`: to whom the unsent bytes are counted; empty counts
        them to nobody."""
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
        """Writes the waiting messages until the transport pauses."""
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
        """Subtracts sent bytes from the owner's unsent bytes."""
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

    def _take(self, message: Sent) -> None:
        """Handles one message. The first one must be a matching Hello; raises FrameError or Incompatible
        otherwise."""
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
    """Binds a socket at a path, and replaces an existing socket there. The mode is 0600 before anybody can
    connect."""
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
    """Removes a socket's path, if it exists. Does nothing if this process lacks the right; the supervisor
    then removes it."""
    with suppress(PermissionError):
        Path(path).unlink(missing_ok=True)
