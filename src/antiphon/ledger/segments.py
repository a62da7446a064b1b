"""A segment: one file of the spool. Contains its writer, and its reader in the drain.

A file is created at its full size and written by `pwrite`. Both records of a generation are in the same file:
the intent reserves the space of the completion. The writer holds a lock (flock), which ends when the writer
closes the file or dies. If another process gets the lock, the file is final.

The drain reads files while they grow. It reads an unreadable record again later, because the record may be
half written. The record counts as damaged if a complete record follows, or if the writer has ended. Damaged
bytes are skipped and logged; all other records are kept.
"""

import errno
import fcntl
import logging
import os
import secrets
import time
from pathlib import Path

from antiphon.domain.events import UsageSource
from antiphon.domain.ledger import ABORTED, Entry
from antiphon.domain.values import changed
from antiphon.ledger.records import (
    HEADER,
    MAX_PAYLOAD,
    RecordKind,
    SpoolRecord,
    decode_entry,
    find_record,
    frame_record,
    parse_record,
)
from antiphon.telemetry.logs import record

SIZE = 1024 * 1024
"""Bytes of a file."""

SUFFIX = ".seg"
UNFINISHED = ".new"
"""Suffix of a file that is being created. The drain must not read such a file, because it is not locked at
first."""


class SegmentWriter:
    """A file that this process writes. One thread writes; another one syncs and closes."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self.path = path
        self.is_unsynced = False
        """Whether the file has bytes that may not be on disk yet."""
        self._descriptor = descriptor
        self._position = 0
        self._reserved = 0
        self._number = 0
        self._pending = 0

    @property
    def is_settled(self) -> bool:
        """Whether every intent has its completion."""
        return self._pending == 0

    def has_room(self, size: int) -> bool:
        """Whether `size` more bytes fit, besides the reserved ones."""
        return self._position + self._reserved + size <= SIZE

    def begin(self, payload: bytes, reserved: int) -> int:
        """Writes an intent, reserves `reserved` bytes for its completion, and returns its number. Raises
        OSError."""
        self._write(frame_record(RecordKind.INTENT, self._number, payload))
        number = self._number
        self._number += 1
        self._reserved += reserved
        self._pending += 1
        return number

    def complete(self, number: int, payload: bytes, reserved: int) -> None:
        """Writes the completion of an intent and releases its reservation, even if it raises OSError."""
        self._reserved -= reserved
        self._pending -= 1
        self._write(frame_record(RecordKind.COMPLETION, number, payload))

    def _write(self, record: bytes) -> None:
        """Writes a record at the position. Raises OSError if the record does not fit the disk."""
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


def frame_size(payload: int) -> int:
    """Returns the bytes of a record with a payload of this size."""
    return HEADER + payload


def create_segment(directory: Path) -> SegmentWriter:
    """Creates a file, locks it and allocates its full size. Raises OSError, and then removes the file."""
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
        os.posix_fallocate(descriptor, 0, SIZE)
        return
    bytes_left = SIZE  # macOS
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


INTENT = int(RecordKind.INTENT)

CHUNK = 4 * (HEADER + MAX_PAYLOAD)
"""Bytes per read: several of the largest records."""


class SegmentReader:
    """Reads one file for the drain. Stores the position in the file, and the intents without completion."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self.path = path
        self.is_done = False
        """Whether the file is final and was read to its end."""
        self._descriptor = os.open(path, os.O_RDONLY)
        self._position = 0
        self._intents: dict[int, bytes] = {}
        self._is_final = False

    def read(self, max_entries: int) -> list[Entry]:
        """Returns about `max_entries` entries that ended since the last call. Raises OSError."""
        entries: list[Entry] = []
        if self.is_done:
            return entries
        # Try the lock before reading: then the read sees everything that a dead writer wrote.
        self._is_final = self._is_final or try_lock(self._descriptor)
        while len(entries) < max_entries:
            if self._read_chunk(entries):
                continue
            if self._skip_damage():
                continue
            if self._is_final:
                entries.extend(self._build_aborted())
                self.is_done = True
            break
        return entries

    def close(self) -> None:
        """Closes the file."""
        os.close(self._descriptor)

    def _read_chunk(self, entries: list[Entry]) -> bool:
        """Reads the complete records at the position. Returns whether it found a record."""
        data = os.pread(self._descriptor, CHUNK, self._position)
        offset = 0
        while (spool_record := parse_record(data, offset)) is not None:
            offset += spool_record.size
            if spool_record.kind == INTENT:
                self._intents[spool_record.number] = spool_record.payload
            elif (entry := self._decode_completion(spool_record)) is not None:
                entries.append(entry)
        self._position += offset
        return offset > 0

    def _decode_completion(self, completion: SpoolRecord) -> Entry | None:
        """Returns the entry of a completion, and removes its intent. Logs and returns None if this version
        cannot read the completion."""
        entry = decode_entry(completion.payload)
        if entry is None:
            self._log_damage("a record has another version", completion.size)
        else:
            self._intents.pop(completion.number, None)
        return entry

    def _build_aborted(self) -> list[Entry]:
        """Returns the entries for the intents that a dead writer did not complete."""
        aborted = []
        for payload in self._intents.values():
            entry = decode_entry(payload)
            if entry is None:
                self._log_damage("a record has another version", len(payload))
            else:
                aborted.append(changed(entry, status=ABORTED, source=UsageSource.ESTIMATED))
        self._intents.clear()
        return aborted

    def _skip_damage(self) -> bool:
        """Skips bytes that cannot be read, up to the next complete record. Returns whether there is one, so
        that reading can continue."""
        if not self._is_final and os.pread(self._descriptor, 1, self._position) in (b"", b"\0"):
            return False  # not written yet
        unread = self._read_unread()
        next_record = find_record(unread, 0)
        if next_record is None:
            damaged_length = len(unread.rstrip(b"\0"))
            if self._is_final and damaged_length:
                self._log_damage("its writer ended in a record", damaged_length)
            return False
        # A half-written record can be visible before a complete one. So read again: damage is certain only if
        # the record is still unreadable.
        if parse_record(self._read_unread(), 0) is None:
            self._log_damage("a record is damaged", next_record)
            self._position += next_record
        return True

    def _read_unread(self) -> bytes:
        """Returns all bytes after the position."""
        size = os.fstat(self._descriptor).st_size
        return os.pread(self._descriptor, max(0, size - self._position), self._position)

    def _log_damage(self, problem: str, size: int) -> None:
        """Logs bytes of the file that cannot be read."""
        record(
            "spool_damaged",
            logging.WARNING,
            segment=self.path.name,
            at=self._position,
            bytes=size,
            problem=problem,
        )
