"""One file of the spool as its writer sees it: made ahead at its full size, written by `pwrite`, locked while
somebody writes.

Both records of a generation stand in the same file, and the first sets room aside for the second, so a file
is complete by itself. The lock (flock) goes when the writer closes the file, or dies: whoever gets it then
knows that nothing will be added.
"""

import errno
import fcntl
import logging
import os
import secrets
import time
from pathlib import Path

from antiphon.domain.ledger import ABORTED, Entry
from antiphon.domain.usage import UsageSource
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
"""Of a file that is being made; it has no lock for a moment, so it has no name either that a drain reads."""


class SegmentWriter:
    """A file that this process writes. One thread writes; another syncs and closes."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self.path = path
        self.unsynced = False
        """Whether something was written that may not be on the disk."""
        self._descriptor = descriptor
        self._position = 0
        self._reserved = 0
        self._number = 0
        self._pending = 0

    @property
    def is_settled(self) -> bool:
        """Whether every intent in it has its completion."""
        return self._pending == 0

    def has_room(self, size: int) -> bool:
        """Whether so many bytes can be taken beyond what is set aside."""
        return self._position + self._reserved + size <= SIZE

    def begin(self, payload: bytes, room: int) -> int:
        """Writes an intent and sets `room` bytes aside for its end; returns its number. Raises OSError."""
        self._write(frame_record(RecordKind.INTENT, self._number, payload))
        number = self._number
        self._number += 1
        self._reserved += room
        self._pending += 1
        return number

    def complete(self, number: int, payload: bytes, room: int) -> None:
        """Writes the completion of an intent and frees what was set aside for it, also where it raises
        OSError."""
        self._reserved -= room
        self._pending -= 1
        self._write(frame_record(RecordKind.COMPLETION, number, payload))

    def _write(self, record: bytes) -> None:
        written = os.pwrite(self._descriptor, record, self._position)
        if written != len(record):  # the next record is written over what came of this one
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._position += written

    def sync(self) -> None:
        """Waits until the disk has what was written, if the file is not closed. Raises OSError."""
        self.unsynced = False
        if self._descriptor >= 0:
            _sync(self._descriptor)

    def close(self) -> None:
        """Ends the writing: a drain may have the file now."""
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)


def frame_size(payload: int) -> int:
    """Bytes of the record that holds so many of payload."""
    return HEADER + payload


def create_segment(directory: Path) -> SegmentWriter:
    """A new file, locked and at its full size. Raises OSError, with nothing left behind."""
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
    """Takes the file's space from the disk now, so that no later write can want for it."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, SIZE)
        return
    left = SIZE  # macOS
    while left:
        left -= os.write(descriptor, bytes(left))


def _sync(descriptor: int) -> None:
    if hasattr(os, "fdatasync"):
        os.fdatasync(descriptor)
    else:
        os.fsync(descriptor)  # macOS


def sync_directory(directory: Path) -> None:
    """Waits until the disk has the directory's names. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def try_lock(descriptor: int) -> bool:
    """Whether the file's lock is this descriptor's now; it is nobody else's then."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def list_segments(directory: Path) -> list[Path]:
    """The spool's files, the oldest first. Raises OSError."""
    return sorted(path for path in directory.iterdir() if path.suffix == SUFFIX)


INTENT = int(RecordKind.INTENT)

CHUNK = 4 * (HEADER + MAX_PAYLOAD)
"""Bytes that are read at once: several of the largest records."""


class SegmentReader:
    """The position in a file, and the intents that wait for their completion."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self.path = path
        self.is_done = False
        """Whether all of it was read, and nothing more will be written."""
        self._descriptor = os.open(path, os.O_RDONLY)
        self._at = 0
        self._intents: dict[int, bytes] = {}
        self._abandoned = False

    def read(self, most: int) -> list[Entry]:
        """Up to about so many entries that ended since the last time. Raises OSError."""
        found: list[Entry] = []
        if self.is_done:
            return found
        # Asked first: whatever a writer wrote before it went is seen by what is read afterwards.
        self._abandoned = self._abandoned or try_lock(self._descriptor)
        while len(found) < most:
            if self._read_chunk(found):
                continue
            if self._skip_damage():
                continue
            if self._abandoned:
                found.extend(self._build_aborted())
                self.is_done = True
            break
        return found

    def close(self) -> None:
        """Lets go of the file."""
        os.close(self._descriptor)

    def _read_chunk(self, found: list[Entry]) -> bool:
        """Takes the whole records that stand at the position; whether there were any."""
        data = os.pread(self._descriptor, CHUNK, self._at)
        at = 0
        while (read := parse_record(data, at)) is not None:
            at += read.size
            if read.kind == INTENT:
                self._intents[read.number] = read.payload
            elif (entry := self._decode_completion(read)) is not None:
                found.append(entry)
        self._at += at
        return at > 0

    def _decode_completion(self, read: SpoolRecord) -> Entry | None:
        """The entry of a generation's end; None where it cannot be read."""
        entry = decode_entry(read.payload)
        if entry is None:
            self._log_damage("a record is of another version", read.size)
        else:
            self._intents.pop(read.number, None)
        return entry

    def _build_aborted(self) -> list[Entry]:
        """What is left of a writer that is gone: what it had begun."""
        found = []
        for payload in self._intents.values():
            entry = decode_entry(payload)
            if entry is None:
                self._log_damage("a record is of another version", len(payload))
            else:
                found.append(changed(entry, status=ABORTED, source=UsageSource.ESTIMATED))
        self._intents.clear()
        return found

    def _skip_damage(self) -> bool:
        """Goes on to the next whole record, if there is one behind what cannot be read."""
        if not self._abandoned and os.pread(self._descriptor, 1, self._at) in (b"", b"\0"):
            return False  # not written yet
        rest = self._read_rest()
        behind = find_record(rest, 0)
        if behind is None:
            cut = len(rest.rstrip(b"\0"))
            if self._abandoned and cut:
                self._log_damage("its writer was cut", cut)
            return False
        # A reader beside a writer may see a record half and the one behind it whole: the second look decides.
        if parse_record(self._read_rest(), 0) is None:
            self._log_damage("a record is damaged", behind)
            self._at += behind
        return True

    def _read_rest(self) -> bytes:
        """Everything from the position on."""
        size = os.fstat(self._descriptor).st_size
        return os.pread(self._descriptor, max(0, size - self._at), self._at)

    def _log_damage(self, problem: str, size: int) -> None:
        record(
            "spool_damaged",
            logging.WARNING,
            segment=self.path.name,
            at=self._at,
            bytes=size,
            problem=problem,
        )
