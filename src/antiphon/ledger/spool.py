"""Writes the ledger's files in a process. A drain moves their entries into the database.

Only the event loop's thread calls `begin` and `complete`. They write into the page cache, which survives the
process, and do not wait for a disk. A second thread creates files in advance, syncs several times per second,
and closes finished files.
"""

import logging
import os
import threading
from collections import deque
from pathlib import Path
from typing import NamedTuple

from antiphon.domain.ledger import Entry
from antiphon.domain.values import replace
from antiphon.errors import InternalError, InvalidValue, LedgerFull, StartupError
from antiphon.ledger.base import LedgerState
from antiphon.ledger.segments import (
    HEADER_BYTES,
    MAX_PAYLOAD,
    SEGMENT_SIZE,
    SegmentWriter,
    create_segment,
    encode_entry,
    list_segments,
)
from antiphon.telemetry.logs import record

COMPLETION_EXTRA_BYTES = 1024
"""Bytes by which a completion can be longer than its intent, because it also has counts, times and names."""

SPARE_FILES = 2
"""The number of files that are created in advance. One is not enough, because with large tags a file is full
after few requests."""

UNAVAILABLE_FILE = "away"
"""The drain creates this file while the database is unavailable. It tells this to all processes of the
node."""

MAX_STATUS_LENGTH = 64
"""The most characters of the status in a shortened completion."""

TOO_LARGE = "the spool has reached its largest size, which happens when the database is unavailable"

RETRY_S = 1.0
"""Seconds until a refused request should be sent again. While the database is available, the drain frees
space in less time."""


class _OpenEntry(NamedTuple):
    """An intent that was written and has no completion yet."""

    intent: Entry
    segment: SegmentWriter
    number: int
    """The number of the intent in the segment."""
    reserved: int
    """Bytes that are reserved for the completion."""


class Spool:
    """A `Ledger` in files. `max_bytes` limits the files of all processes together. Above this size `begin`
    raises LedgerFull until a drain has deleted files."""

    def __init__(self, directory: Path, max_bytes: int, sync_interval: float) -> None:
        """`sync_interval`: seconds between two syncs. A power failure can lose the entries since the last
        sync."""
        self._directory = directory
        self._max_files = max(1, max_bytes // SEGMENT_SIZE)
        self._sync_interval = sync_interval
        self._open: dict[str, _OpenEntry] = {}
        self._current: SegmentWriter | None = None
        self._retired: list[SegmentWriter] = []
        """Files that get no more intents, and still get completions."""
        self._spares: deque[SegmentWriter] = deque()
        self._unsynced: deque[SegmentWriter] = deque()
        self._finished: deque[SegmentWriter] = deque()
        """Files that get no more records, for the thread to close."""
        self._wake = threading.Event()
        self._is_stopping = False
        self._problem = ""
        self._thread = threading.Thread(target=self._run, name="antiphon-spool", daemon=True)

    @property
    def problem(self) -> str:
        """Why no file can be created; empty if files can be created."""
        return self._problem

    @property
    def state(self) -> LedgerState:
        """The current state. Every read checks whether the drain's file exists."""
        if self._problem and not self._spares:
            return LedgerState.FULL
        return LedgerState.WAITING if (self._directory / UNAVAILABLE_FILE).exists() else LedgerState.WELL

    def start(self) -> None:
        """Creates the first files; blocks. A full spool starts too, and accepts entries once it is drained.
        Raises StartupError if the directory cannot be used."""
        prepare_directory(self._directory)
        self._create_spares()
        self._thread.start()

    def close(self) -> None:
        """Stops writing; blocks until everything is on disk. Intents without completion become entries with
        the status `aborted`."""
        self._is_stopping = True
        self._wake.set()
        self._thread.join()
        current = [self._current] if self._current else []
        self._current = None
        self._finished.extend([*current, *self._retired, *self._spares])
        self._sync()
        self._close_finished()

    # --- the event loop -------------------------------------------------------------------------------------

    def begin(self, intent: Entry) -> None:
        """See `Ledger.begin`."""
        payload = encode_entry(intent)
        size = len(payload)
        if size > (max_size := MAX_PAYLOAD - COMPLETION_EXTRA_BYTES):
            raise InvalidValue(
                f"the ledger entry of this request takes {size} bytes, more than "
                f"the allowed {max_size}: send fewer or shorter tags",
                param="metadata" if intent.tags else None,
            )
        reserved = HEADER_BYTES + size + COMPLETION_EXTRA_BYTES
        segment = self._pick_segment(HEADER_BYTES + size + reserved)
        try:
            number = segment.begin(payload, reserved)
        except OSError as error:
            self._retire(segment)
            raise _build_full_error(os.strerror(error.errno or 0)) from None
        self._open[intent.id] = _OpenEntry(intent, segment, number, reserved)
        if not segment.is_unsynced:
            self._mark_unsynced(segment)

    def complete(self, entry: Entry) -> None:
        """See `Ledger.complete`."""
        open_entry = self._open.pop(entry.id, None)
        if open_entry is None:
            raise InternalError("the ledger has no intent of the generation that ended")
        payload = encode_entry(entry)
        if HEADER_BYTES + len(payload) > open_entry.reserved:
            payload = encode_entry(_shorten_entry(entry, open_entry.intent))
            record("ledger_entry_cut", logging.WARNING, entry=entry.id, request_id=entry.request_id)
        segment = open_entry.segment
        try:
            segment.complete(open_entry.number, payload, open_entry.reserved)
        except OSError as error:
            raise _build_full_error(os.strerror(error.errno or 0)) from None
        finally:
            if not segment.is_unsynced:
                self._mark_unsynced(segment)
            if segment is not self._current:
                self._finish_if_complete(segment)

    def _pick_segment(self, size: int) -> SegmentWriter:
        """Returns a file with room for `size` bytes, which is the current file or the next spare file. Raises
        LedgerFull if there is none."""
        current = self._current
        if current is not None:
            if current.has_room(size):
                return current
            self._retire(current)
        try:
            self._current = self._spares.popleft()
        except IndexError:
            raise _build_full_error(self._problem or "the next file is being created") from None
        finally:
            self._wake.set()
        return self._current

    def _retire(self, segment: SegmentWriter) -> None:
        """Stops writing intents into a file. It still gets the completions of its intents."""
        self._current = None
        self._retired.append(segment)
        self._finish_if_complete(segment)

    def _finish_if_complete(self, segment: SegmentWriter) -> None:
        """Passes a file to the thread, which closes it, if no more records will be written into the file."""
        if segment.is_complete and segment in self._retired:
            self._retired.remove(segment)
            self._finished.append(segment)

    def _mark_unsynced(self, segment: SegmentWriter) -> None:
        """Adds the file to those that the thread syncs next."""
        segment.is_unsynced = True
        self._unsynced.append(segment)

    # --- the thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        """Creates, syncs and closes files until stopped."""
        while not self._is_stopping:
            self._wake.wait(self._sync_interval)
            self._wake.clear()
            self._create_spares()
            self._sync()
            self._close_finished()

    def _create_spares(self) -> None:
        """Creates files in advance. Sets `problem` to the reason if not all can be created."""
        try:
            while len(self._spares) < SPARE_FILES and len(list_segments(self._directory)) < self._max_files:
                self._spares.append(create_segment(self._directory))
            problem = "" if len(self._spares) == SPARE_FILES else TOO_LARGE
        except OSError as error:
            problem = os.strerror(error.errno or 0)
        if problem != self._problem:
            level = logging.ERROR if problem else logging.WARNING
            event = "spool_full" if problem else "spool_has_room"
            record(event, level, directory=str(self._directory), problem=problem)
        self._problem = problem

    def _sync(self) -> None:
        """Syncs all files with unsynced bytes."""
        while self._unsynced:
            _sync_segment(self._unsynced.popleft())

    def _close_finished(self) -> None:
        """Syncs and closes the files that get no more records."""
        while self._finished:
            segment = self._finished.popleft()
            if segment.is_unsynced:  # written since the last sync
                _sync_segment(segment)
            segment.close()


def _sync_segment(segment: SegmentWriter) -> None:
    """Syncs one file, and logs a failure."""
    try:
        segment.sync()
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        record("spool_sync_failed", logging.ERROR, segment=segment.path.name, problem=reason)


def prepare_directory(directory: Path) -> None:
    """Creates the directory for the owner alone. Raises StartupError."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.chmod(0o700)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise StartupError(f"the ledger's spool {directory} cannot be written: {reason}") from None


def _build_full_error(problem: str) -> LedgerFull:
    """Returns the error for an entry that cannot be written."""
    return LedgerFull(f"the ledger has no room for the entry of this request: {problem}", retry_after=RETRY_S)


def _shorten_entry(entry: Entry, intent: Entry) -> Entry:
    """Returns a completion that fits into its reserved space: the counts and the status of `entry`, and the
    names of `intent`. It has no routes, because `intent` has none."""
    return replace(
        intent,
        attempts=entry.attempts,
        prompt_tokens=entry.prompt_tokens,
        cached_tokens=entry.cached_tokens,
        output_tokens=entry.output_tokens,
        reasoning_tokens=entry.reasoning_tokens,
        source=entry.source,
        cost=entry.cost,
        status=entry.status[:MAX_STATUS_LENGTH],
        queue_ms=entry.queue_ms,
        ttft_ms=entry.ttft_ms,
        total_ms=entry.total_ms,
        routes="",
    )
