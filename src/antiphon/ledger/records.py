"""How an entry stands in a file: a header, a checksum, and the entry as compact JSON.

    FF A7 4C 31 | kind, 1 byte | number, 4 | length, 4 | CRC-32 of all that and the payload, 4 | payload

Numbers are big-endian. Every record begins with the byte FF, which no JSON holds, as it is UTF-8: nothing
that a caller sends can look like a record, and the next whole record is found behind a damaged one. No
payload holds a zero byte either, so the zeros of a file made ahead are what was not written yet. This module
does no input or output.
"""

import json
import struct
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple
from zlib import crc32

import msgspec

from antiphon.domain.ledger import Entry

MARK = b"\xff\xa7L1"
"""How every record begins; its last digit is raised whenever the format changes."""

_HEAD = struct.Struct(">4sBII")
_CHECK = struct.Struct(">I")

HEADER = _HEAD.size + _CHECK.size
"""Bytes before each payload."""

MAX_PAYLOAD = 64 * 1024
"""Bytes of the largest payload: sixteen tags of OpenAI's largest size, however they are escaped."""


class RecordKind(IntEnum):
    """What a record says of a generation."""

    INTENT = 1
    """It is about to begin."""
    COMPLETION = 2
    """It ended."""


class SpoolRecord(NamedTuple):
    """One record as it was read."""

    kind: int
    number: int
    """Within its file the same for the two records of a generation."""
    payload: bytes
    size: int
    """Bytes of all of it."""


def frame_record(kind: RecordKind, number: int, payload: bytes) -> bytes:
    """The bytes of a record."""
    head = _HEAD.pack(MARK, kind, number, len(payload))
    return head + _CHECK.pack(crc32(payload, crc32(head))) + payload


def parse_record(data: bytes, at: int) -> SpoolRecord | None:
    """The whole record that begins there; None where there is none, or not all of it."""
    if len(data) - at < HEADER:
        return None
    mark, kind, number, length = _HEAD.unpack_from(data, at)
    begin = at + HEADER
    if mark != MARK or length > MAX_PAYLOAD or begin + length > len(data):
        return None
    payload = data[begin : begin + length]
    (check,) = _CHECK.unpack_from(data, at + _HEAD.size)
    if check != crc32(payload, crc32(data[at : at + _HEAD.size])):
        return None
    return SpoolRecord(kind, number, payload, HEADER + length)


def find_record(data: bytes, at: int) -> int | None:
    """Where the first whole record begins, there or later."""
    while (at := data.find(MARK, at)) >= 0:
        if parse_record(data, at) is not None:
            return at
        at += 1
    return None


def _encode_mapping(value: object) -> object:
    """What the encoder does not know by itself."""
    if isinstance(value, MappingProxyType):
        return dict(value)
    raise NotImplementedError


_ENCODER = msgspec.json.Encoder(enc_hook=_encode_mapping)
_DECODER = msgspec.json.Decoder(Entry)


def encode_entry(entry: Entry) -> bytes:
    """The payload. Half a character of UTF-16, which is no text, is written as a question mark."""
    try:
        return _ENCODER.encode(entry)
    except UnicodeEncodeError:
        values = {name: getattr(entry, name) for name in Entry.__struct_fields__}
        return json.dumps(values, default=dict, ensure_ascii=False).encode("utf-8", "replace")


def decode_entry(payload: bytes) -> Entry | None:
    """The entry of a payload; None for what this version cannot read."""
    try:
        return _DECODER.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
