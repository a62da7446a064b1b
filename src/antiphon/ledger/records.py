"""The format of a spool record: a header, a checksum, and the entry as compact JSON.

    FF A7 4C 31 | kind, 1 byte | number, 4 | length, 4 | CRC-32 of all other fields, 4 | payload

Numbers are big-endian. Every record begins with the byte FF, which never occurs in UTF-8, so not in JSON. So
no text of a caller looks like a record, and a reader finds the next record after a damaged one. No payload
contains a zero byte, so zeros mark the unwritten rest of a file. This module does no I/O.
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
"""The first bytes of every record. The last digit increases when the format changes."""

_HEAD = struct.Struct(">4sBII")
_CHECK = struct.Struct(">I")

HEADER = _HEAD.size + _CHECK.size
"""The size of a header in bytes: everything before the payload."""

MAX_PAYLOAD = 64 * 1024
"""The most bytes of a payload: enough for 16 tags of OpenAI's maximum size, even if JSON escapes all
characters."""


class RecordKind(IntEnum):
    """The kinds of records. A generation has one of each."""

    INTENT = 1
    """The generation is about to begin."""
    COMPLETION = 2
    """The generation has ended."""


class SpoolRecord(NamedTuple):
    """A parsed record."""

    kind: int
    number: int
    """The same number for both records of a generation. No other generation in the file has it."""
    payload: bytes
    size: int
    """Bytes of the whole record."""


def frame_record(kind: RecordKind, number: int, payload: bytes) -> bytes:
    """Builds a record: the header with its checksum, and the payload."""
    head = _HEAD.pack(MARK, kind, number, len(payload))
    return head + _CHECK.pack(crc32(payload, crc32(head))) + payload


def parse_record(data: bytes, offset: int) -> SpoolRecord | None:
    """Returns the record at an offset; None if there is no complete and undamaged record."""
    if len(data) - offset < HEADER:
        return None
    mark, kind, number, length = _HEAD.unpack_from(data, offset)
    begin = offset + HEADER
    if mark != MARK or length > MAX_PAYLOAD or begin + length > len(data):
        return None
    payload = data[begin : begin + length]
    (checksum,) = _CHECK.unpack_from(data, offset + _HEAD.size)
    if checksum != crc32(payload, crc32(data[offset : offset + _HEAD.size])):
        return None
    return SpoolRecord(kind, number, payload, HEADER + length)


def find_record(data: bytes, offset: int) -> int | None:
    """Returns the offset of the first complete record at or after `offset`; None if there is none."""
    while (offset := data.find(MARK, offset)) >= 0:
        if parse_record(data, offset) is not None:
            return offset
        offset += 1
    return None


def _encode_mapping(value: object) -> object:
    """Encodes read-only mappings, which msgspec cannot encode."""
    if isinstance(value, MappingProxyType):
        return dict(value)
    raise NotImplementedError


_ENCODER = msgspec.json.Encoder(enc_hook=_encode_mapping)
_DECODER = msgspec.json.Decoder(Entry)


def encode_entry(entry: Entry) -> bytes:
    """Returns the payload of an entry. A lone surrogate, which UTF-8 cannot hold, becomes a question mark."""
    try:
        return _ENCODER.encode(entry)
    except UnicodeEncodeError:
        values = {name: getattr(entry, name) for name in Entry.__struct_fields__}
        return json.dumps(values, default=dict, ensure_ascii=False).encode("utf-8", "replace")


def decode_entry(payload: bytes) -> Entry | None:
    """Returns the entry of a payload; None if this version of Antiphon cannot read it."""
    try:
        return _DECODER.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
