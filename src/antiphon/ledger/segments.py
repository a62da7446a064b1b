"""A segment is one file of the spool. `SegmentWriter` writes it, and `SegmentReader` reads it for the drain.

A file is created at its full size and written by `pwrite`. Both records of a generation are in the same file:
the intent reserves the space of the completion. The writer holds a lock (flock), which ends when the writer
closes the file or dies. If another process gets the lock, the file is final.

A record is a header, a checksum, and the entry as compact JSON. Numbers are big-endian:

    FF A7 4C 31 | kind, 1 byte | number, 4 | length, 4 | CRC-32 of all other fields, 4 | payload

Every record begins with the byte FF, which never occurs in UTF-8, so not in JSON. So no text of a caller
looks like a record, and a reader finds the next record after a damaged one. No payload contains a zero byte,
so zeros mark the unwritten rest of a file.

The drain reads files while they grow. It reads an unreadable record again later, because the record may be
half written. The record counts as damaged if a complete record follows, or if the writer has ended. Damaged
bytes are skipped and logged; all other records are read.
"""

import errno
import fcntl
import json
import logging
import os
import secrets
import struct
import time
from enum import IntEnum
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple
from zlib import crc32

import msgspec

from antiphon.domain.events import UsageSource
from antiphon.domain.ledger import ABORTED, Entry
from antiphon.domain.values import replace
from antiphon.telemetry.logs import record

MAGIC = b"\xff\xa7L1"
"""The magic number at the beginning of every record. The last digit increases when the format changes."""

_HEAD = struct.Struct(">4sBII")
"""The header without its checksum."""
_HEADER = struct.Struct(">4sBIII")

HEADER_BYTES = _HEADER.size
"""The size of a header in bytes: everything before the payload."""

MAX_PAYLOAD = 64 * 1024
"""The most bytes of a payload: enough for 16 tags of OpenAI's maximum size, even if JSON escapes all
characters."""

_DECODER = msgspec.json.Decoder(Entry)

SEGMENT_SIZE = 1024 * 1024
"""The size of a segment in bytes."""

SUFFIX = ".seg"

UNFINISHED = ".new"
"""Suffix of a file that is being created. The drain must not read such a file, because it is not locked at
first."""

OTHER_VERSION = "another version of Antiphon wrote a record"
"""The damage of a complete record that this version cannot decode."""

READ_BYTES = 4 * (HEADER_BYTES + MAX_PAYLOAD)
"""The most bytes of one read. Several of the largest records fit."""


class RecordKind(IntEnum):
    """The kinds of records. A generation has one of each."""

    INTENT = 1
    """The generation is about to begin."""
    COMPLETION = 2
    """The generation has ended."""


class SpoolRecord(NamedTuple):
    """A parsed record in the bytes of a file."""

    kind: int
    number: int
    """The same number for both records of a generation. No other generation in the file has it."""
    payload: bytes
    end: int
    """The offset after the record."""


def frame_record(kind: RecordKind, number: int, payload: bytes) -> bytes:
    """Builds a record: the header with its checksum, and the payload."""
    length = len(payload)
    checksum = crc32(payload, crc32(_HEAD.pack(MAGIC, kind, number, length)))
    return _HEADER.pack(MAGIC, kind, number, length, checksum) + payload


def parse_record(data: bytes, offset: int) -> SpoolRecord | None:
    """Returns the record at an offset; None if there is no complete and undamaged record."""
    begin = offset + HEADER_BYTES
    if begin > len(data):
        return None
    magic, kind, number, length, checksum = _HEADER.unpack_from(data, offset)
    end = begin + length
    if magic != MAGIC or length > MAX_PAYLOAD or end > len(data):
        return None
    payload = data[begin:end]
    if checksum != crc32(payload, crc32(data[offset : offset + _HEAD.size])):
        return None
    return SpoolRecord(kind, number, payload, end)


def find_record(data: bytes, offset: int) -> int | None:
    """Returns the offset of the first complete record at or after `offset`; None if there is none."""
    while (offset := data.find(MAGIC, offset)) >= 0:
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


def encode_entry(entry: Entry) -> bytes:
    """Returns the payload of an entry. A lone surrogate, which UTF-8 cannot hold, becomes a question mark."""
    try:
        return _ENCODER.encode(entry)
    except UnicodeEncodeError:
        values = {name: getattr(entry, name) for name in Entry.__struct_fields__}
        return json.dumps(values, default=dict, ensure_ascii=False).encode("utf-8", "replace")


class SegmentWriter:
    """A file that this process writes. One thread writes records. A second thread syncs and closes the
    file."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self.path = path
        self.is_unsynced = False
        """Whether the file has bytes that may not be on disk yet."""
        self._descriptor = descriptor
        self._position = 0
        self._reserved = 0
        """Bytes that are reserved for completions."""
        self._next_number = 0
        self._incomplete = 0
        """The number of intents without completion."""

    @property
    def is_complete(self) -> bool:
        """Whether every intent in the file has its completion."""
        return self._incomplete == 0

    def has_room(self, size: int) -> bool:
        """Whether `size` more bytes fit into the file, besides the reserved bytes."""
        return self._position + self._reserved + size <= SEGMENT_SIZE

    def begin(self, payload: bytes, reserved: int) -> int:
        """Writes an intent, reserves `reserved` bytes for its completion, and returns its number. Raises
        OSError."""
        self._write(frame_record(RecordKind.INTENT, self._next_number, payload))
        number = self._next_number
        self._next_number += 1
        self._reserved += reserved
        self._incomplete += 1
        return number

    def complete(self, number: int, payload: bytes, reserved: int) -> None:
        """Writes the completion of an intent and releases its reservation, even if it raises OSError."""
        self._reserved -= reserved
        self._incomplete -= 1
        self._write(frame_record(RecordKind.COMPLETION, number, payload))

    def _write(self, record: bytes) -> None:
        """Writes a record at the current position. Raises OSError if the disk has no space for the whole
        record."""
        written = os.pwrite(self._descriptor, record, self._position)
        if written != len(record):  # the next record overwrites the partial one
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._position += written

    def sync(self) -> None:
        """Waits until the disk has all written bytes, unless the file is closed. Raises OSError."""
        self.is_unsynced = False
        if self._descriptor >= 0:
            _sync(self._descriptor)

    def close(self) -> None:
        """Closes the file, so the drain can lock it."""
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)


def create_segment(directory: Path) -> SegmentWriter:
    """Creates a file, locks it and allocates its full size. If this fails, removes the file and raises
    OSError."""
    path = directory / f"{time.time_ns():020d}-{secrets.token_hex(4)}{SUFFIX}"
    unfinished = path.with_suffix(UNFINISHED)
    descriptor = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        _allocate(descriptor)
        os.fsync(descriptor)
        unfinished.rename(path)
        sync_directory(directory)
    except OSError:
        unfinished.unlink(missing_ok=True)
        os.close(descriptor)
        raise
    return SegmentWriter(descriptor, path)


def _allocate(descriptor: int) -> None:
    """Allocates the disk space of the file, so that no later write fails for lack of space."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, SEGMENT_SIZE)
        return
    bytes_left = SEGMENT_SIZE  # macOS
    while bytes_left:
        bytes_left -= os.write(descriptor, bytes(bytes_left))


def _sync(descriptor: int) -> None:
    """Waits until the disk has the file's written bytes."""
    if hasattr(os, "fdatasync"):
        os.fdatasync(descriptor)
    else:
        os.fsync(descriptor)  # macOS


def sync_directory(directory: Path) -> None:
    """Waits until the disk has the directory's entries. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def try_lock(descriptor: int) -> bool:
    """Takes the lock if no process holds it. Returns whether it took the lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def list_segments(directory: Path) -> list[Path]:
    """Returns the spool's files, the oldest first. Raises OSError."""
    return sorted(path for path in directory.iterdir() if path.suffix == SUFFIX)


class SegmentReader:
    """Reads one file for the drain, in several steps. Remembers the position, and the intents without
    completion."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self.path = path
        self.is_done = False
        """Whether the file is final and was read to its end."""
        self._descriptor = os.open(path, os.O_RDONLY)
        self._position = 0
        self._intents: dict[int, bytes] = {}
        """The payloads of intents without completion, by number."""
        self._is_final = False
        """Whether the writer has closed the file or died."""

    def read(self, max_entries: int) -> list[Entry]:
        """Returns about `max_entries` entries that ended since the last call. Raises OSError."""
        entries: list[Entry] = []
        if self.is_done:
            return entries
        # Try the lock before reading: if it is free, the file no longer grows, and the read sees all of it.
        self._is_final = self._is_final or try_lock(self._descriptor)
        while len(entries) < max_entries:
            if self._read_chunk(entries):
                continue
            if self._skip_damage():
                continue
            if self._is_final:
                self._add_aborted(entries)
                self.is_done = True
            break
        return entries

    def close(self) -> None:
        """Closes the file."""
        os.close(self._descriptor)

    def _read_chunk(self, entries: list[Entry]) -> bool:
        """Reads complete records from the position on. Appends the entries of completions. Returns whether
        there was a record."""
        data, offset, intents = os.pread(self._descriptor, READ_BYTES, self._position), 0, self._intents
        while (spool_record := parse_record(data, offset)) is not None:
            kind, number, payload, end = spool_record
            if kind == RecordKind.INTENT:
                intents[number] = payload
            else:
                try:
                    entries.append(_DECODER.decode(payload))
                    intents.pop(number, None)
                except (msgspec.DecodeError, UnicodeDecodeError):
                    self._log_damage(OTHER_VERSION, end - offset)
            offset = end
        self._position += offset
        return offset > 0

    def _add_aborted(self, entries: list[Entry]) -> None:
        """Appends entries for the intents that a dead writer did not complete."""
        for payload in self._intents.values():
            try:
                entry = _DECODER.decode(payload)
            except (msgspec.DecodeError, UnicodeDecodeError):
                self._log_damage(OTHER_VERSION, len(payload))
            else:
                entries.append(replace(entry, status=ABORTED, source=UsageSource.ESTIMATED))
        self._intents.clear()

    def _skip_damage(self) -> bool:
        """Skips damaged bytes, up to the next complete record. Returns whether there is such a record, so
        that reading can continue."""
        if not self._is_final and os.pread(self._descriptor, 1, self._position) in (b"", b"\0"):
            return False  # not written yet
        unread = self._read_unread()
        next_offset = find_record(unread, 0)
        if next_offset is None:
            damaged_size = len(unread.rstrip(b"\0"))
            if self._is_final and damaged_size:
                self._log_damage("the writer ended while it wrote a record", damaged_size)
            return False
        # A half-written record can be visible before a later, complete record. So read again: the record is
        # damaged only if it is still unreadable.
        if parse_record(self._read_unread(), 0) is None:
            self._log_damage("a record is damaged", next_offset)
            self._position += next_offset
        return True

    def _read_unread(self) -> bytes:
        """Returns all bytes after the position."""
        size = os.fstat(self._descriptor).st_size
        return os.pread(self._descriptor, max(0, size - self._position), self._position)

    def _log_damage(self, problem: str, size: int) -> None:
        """Logs that `size` bytes of the file cannot be read."""
        record(
            "spool_damaged",
            logging.WARNING,
            segment=self.path.name,
            at=self._position,
            bytes=size,
            problem=problem,
        )
