"""One file of the spool as its writer sees it: made ahead at its full size, written by `pwrite`, locked while
somebody writes.

Both records of a generation stand in the same file, and the first sets room aside for the second, so a file
is complete by itself. The lock (flock) goes when the writer closes the file, or dies: whoever gets it then
knows that nothing will be added.
"""

import errno
import fcntl
import os
import secrets
import time
from pathlib import Path

from antiphon.ledger.records import HEADER, Kind, framed

SIZE = 1024 * 1024
"""Bytes of a file."""

SUFFIX = ".seg"
UNFINISHED = ".new"
"""Of a file that is being made; it has no lock for a moment, so it has no name either that a drain reads."""


class Segment:
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
        self._write(framed(Kind.INTENT, self._number, payload))
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
        self._write(framed(Kind.COMPLETION, number, payload))

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


def framed_size(payload: int) -> int:
    """Bytes of the record that holds so many of payload."""
    return HEADER + payload


def made(directory: Path) -> Segment:
    """A new file, locked and at its full size. Raises OSError, with nothing left behind."""
    path = directory / f"{time.time_ns():020d}-{secrets.token_hex(4)}{SUFFIX}"
    unfinished = path.with_suffix(UNFINISHED)
    descriptor = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        _fill(descriptor)
        os.fsync(descriptor)
        unfinished.rename(path)
        sync_directory(directory)
    except OSError:
        unfinished.unlink(missing_ok=True)
        os.close(descriptor)
        raise
    return Segment(descriptor, path)


def _fill(descriptor: int) -> None:
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


def take_lock(descriptor: int) -> bool:
    """Whether the file's lock is this descriptor's now; it is nobody else's then."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def segments_of(directory: Path) -> list[Path]:
    """The spool's files, the oldest first. Raises OSError."""
    return sorted(path for path in directory.iterdir() if path.suffix == SUFFIX)
