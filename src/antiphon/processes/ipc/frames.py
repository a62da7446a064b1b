"""Encodes and decodes the messages between two processes of one server.

A frame is a 4-byte big-endian length and a msgpack array `[sequence, [message, ...]]`. The sequence counts
the frames of one direction from 0, so a lost or repeated frame is detected. The first message of each
direction is `Hello`. Both ends must have the same protocol and release, since dataclasses are encoded as they
are.

All messages of one turn of the event loop are in one frame. This module does no input or output.
"""

from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

import msgspec

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
        """Yields the messages in order; read it to the end. Raises FrameError after the messages before a
        fault; the reader cannot be used after that."""
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
