"""How messages between two processes of one server become bytes.

A frame is a 4-byte big-endian length and a msgpack array `[sequence, [message, ...]]`. The sequence counts
the frames of one direction from 0, so a lost or doubled frame is seen. The first message of each direction is
`Hello`; both ends must speak the same protocol and be of the same release, since dataclasses travel as they
are.

Whatever happens in one turn of the event loop travels in one frame. This module does no input or output.
"""

from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

import msgspec

M = TypeVar("M")
T = TypeVar("T")

PROTOCOL = 2
"""Raised whenever the meaning of a frame changes."""

MAX_MESSAGE = 16 * 1024 * 1024
"""Bytes of one message: several times the largest vocabulary (5 MB for 256 thousand ids), twice the usual
request body."""

MAX_FRAME = MAX_MESSAGE + 2 * 1024 * 1024
"""Bytes of one frame: a message of any size, or many small ones."""

HEADER = 4
"""Bytes of the length before each frame."""


class FrameError(Exception):
    """The peer broke the protocol; the connection is of no more use."""


class Incompatible(FrameError):
    """The peer is of another release or protocol; it will be so again at the next attempt."""


class Frame(msgspec.Struct, array_like=True, gc=False):
    """Base of all messages; each has a number of its own on the wire."""


class Hello(Frame, tag=0):
    """First of each direction: who speaks."""

    protocol: int
    release: str


class FrameWriter:
    """Makes the frames of one direction of one connection."""

    def __init__(self) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._sequence = 0

    def encode_message(self, message: Frame) -> bytes:
        """One message, ready for a frame. Raises FrameError when no frame can hold it."""
        encoded = self._encoder.encode(message)
        if len(encoded) > MAX_MESSAGE:
            raise FrameError(f"a message of {len(encoded)} bytes is over the limit of {MAX_MESSAGE}")
        return encoded

    def encode_frame(self, encoded: Sequence[bytes]) -> bytes:
        """The next frame, of messages that together stay under MAX_FRAME."""
        body = self._encoder.encode((self._sequence, [msgspec.Raw(message) for message in encoded]))
        self._sequence += 1
        return len(body).to_bytes(HEADER, "big") + body


class FrameReader(Generic[M]):
    """Takes the bytes of one direction as they come, and gives the messages of the frames that they
    complete."""

    def __init__(self, decoder: "msgspec.msgpack.Decoder[tuple[int, list[M]]]") -> None:
        self._decoder = decoder
        self._pending = bytearray()
        self._sequence = 0

    def feed(self, data: bytes) -> Iterator[M]:
        """The messages, in order; must be read to the end. Raises FrameError where the stream breaks, after
        the messages before it; then the reader is of no more use."""
        self._pending += data
        start = 0
        while (end := self._find_frame_end(start)) is not None:
            yield from self._decode(self._pending[start + HEADER : end])
            start = end
        del self._pending[:start]

    def _find_frame_end(self, start: int) -> int | None:
        """Where the frame that begins at `start` ends; None while it is not all there."""
        if len(self._pending) < start + HEADER:
            return None
        length = int.from_bytes(self._pending[start : start + HEADER], "big")
        if length > MAX_FRAME:
            raise FrameError(f"a frame of {length} bytes is over the limit of {MAX_FRAME}")
        end = start + HEADER + length
        return end if len(self._pending) >= end else None

    def _decode(self, body: bytearray) -> list[M]:
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
    """A dataclass as one line."""
    return msgspec.json.encode(value) + b"\n"


def from_line(line: bytes, cls: type[T]) -> T:
    """The dataclass that `to_line` wrote. Raises FrameError."""
    try:
        return msgspec.json.decode(line, type=cls)
    except msgspec.DecodeError as problem:
        raise FrameError(f"a line cannot be read: {problem}") from None
