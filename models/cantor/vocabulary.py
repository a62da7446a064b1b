"""Reads the tokenizer's pieces from SentencePiece's file without its library.

The file is a protocol-buffer message: field 1, repeated, is a piece with text (1), score (2) and type (3).
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6


@dataclass(frozen=True, slots=True)
class Piece:
    """A token: its text, its score, its type (1 normal, 2 unknown, 3 control, 6 byte, as in GGUF)."""

    text: str
    score: float
    type: int


def read_pieces(path: Path) -> list[Piece]:
    """Returns all pieces in the order of ids."""
    return parse_pieces(path.read_bytes())


def parse_pieces(content: bytes) -> list[Piece]:
    """Returns all pieces of a SentencePiece file's content."""
    return [
        _parse_piece(value)
        for field, value in _read_fields(content)
        if field == 1 and isinstance(value, bytes)
    ]


def _parse_piece(message: bytes) -> Piece:
    text, score, kind = "", 0.0, NORMAL
    for field, value in _read_fields(message):
        if field == 1 and isinstance(value, bytes):
            text = value.decode()
        elif field == 2 and isinstance(value, bytes):
            score = struct.unpack("<f", value)[0]
        elif field == 3 and isinstance(value, int):
            kind = value
    return Piece(text, score, kind)


def _read_fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    offset = 0
    while offset < len(message):
        key, offset = _read_varint(message, offset)
        value: int | bytes
        if key & 7 == VARINT:
            value, offset = _read_varint(message, offset)
        else:
            size, offset = (
                _read_varint(message, offset)
                if key & 7 == BYTES
                else ({FIXED32: 4, FIXED64: 8}[key & 7], offset)
            )
            value, offset = message[offset : offset + size], offset + size
        yield key >> 3, value


def _read_varint(message: bytes, offset: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[offset]
        value, shift, offset = value | (byte & 0x7F) << shift, shift + 7, offset + 1
        if byte < 0x80:
            return value, offset
