"""Moves entries from the spool into the database. One thread of one process on each node does this.

A file of the spool is deleted once all its entries are in the database. After a restart the drain reads the
files again. An entry that is already in the database is not inserted twice.
"""

import logging
import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from antiphon.domain.ledger import Entry
from antiphon.domain.values import Struct
from antiphon.errors import InvalidValue, StartupError, StoreUnavailable
from antiphon.ledger.segments import UNFINISHED, SegmentReader, encode_entry, list_segments, try_lock
from antiphon.ledger.spool import UNAVAILABLE_FILE, prepare_directory
from antiphon.store.base import EntryStore
from antiphon.telemetry.logs import describe_exception, record

LOCK_FILE = "drain.lock"
REFUSED_FILE = "refused.jsonl"
"""The file for entries that the database refuses, one JSON object per line. No such entry is expected,
because the store replaces values that the database cannot hold."""

PAUSE_S = 0.25
"""Seconds between two rounds. An entry is inserted into the database about this long after its generation
ended."""

MAX_PAUSE_S = 5.0
"""The longest pause in seconds between two rounds while the database is unavailable."""

DRAIN_S = 5.0
"""Default seconds that `drain_now` waits for the database."""

OTHER_DRAIN_S = 1.0
"""Seconds that `drain_now` waits if another process drains the spool. The other process needs one pause and
one transaction for it, and does not report that it has finished."""

BATCH = 500
"""Entries per transaction."""

STALE_S = 60.0
"""Age in seconds of an unfinished file that is deleted."""


class DrainStatus(Struct, frozen=True):
    """The state of the drain."""

    is_draining: bool
    """Whether this process drains the spool. If not, another process does, and this process waits to take
    over."""
    unavailable_reason: str = ""
    """Why the database is unavailable; empty if it is available."""
    waiting: int = 0
    """The number of entries that were read but not inserted yet. The spool can contain more."""
    other_is_draining: bool = False
    """Whether another process drains the spool."""


class Drain:
    """Reads the spool's files while they grow, and inserts the entries of ended generations into the
    database."""

    def __init__(self, directory: Path, entries: EntryStore) -> None:
        self._directory = directory
        self._entries = entries
        self._readers: dict[Path, SegmentReader] = {}
        self._unreadable: set[Path] = set()
        self._batch: list[Entry] = []
        self._is_draining = False
        self._other_is_draining = False
        self._unavailable_reason = ""
        self._pause = PAUSE_S
        self._is_stopping = False
        self._wake = threading.Event()
        self._round_condition = threading.Condition()
        """Guards the round numbers, and is notified when `_caught_up_round` changes."""
        self._round_number = 0
        self._caught_up_round = 0
        """The latest round that left nothing behind: every generation that ended before the round began is in
        the database."""
        self._requested_round = 0
        """The round that `drain_now` waits for."""
        self._thread = threading.Thread(target=self._run, name="antiphon-drain", daemon=True)

    @property
    def status(self) -> DrainStatus:
        """The current state. Any thread can read it."""
        return DrainStatus(
            self._is_draining, self._unavailable_reason, len(self._batch), self._other_is_draining
        )

    def start(self) -> None:
        """Starts the thread. Raises StartupError if files cannot be locked in the directory."""
        prepare_directory(self._directory)
        _require_locks(self._directory / LOCK_FILE)
        self._thread.start()

    def drain_now(self, timeout: float = DRAIN_S) -> bool:
        """Blocks until all ended entries are in the database. Returns False if this takes longer than
        `timeout` seconds. If another process drains the spool, returns False after OTHER_DRAIN_S, unless this
        process has taken over."""
        with self._round_condition:
            round_number = self._requested_round = self._round_number + 1
            self._wake.set()
            if self._round_condition.wait_for(
                lambda: self._caught_up_round >= round_number, min(timeout, OTHER_DRAIN_S)
            ):
                return True
            if self._other_is_draining:
                return False
            return self._round_condition.wait_for(
                lambda: self._caught_up_round >= round_number, timeout - OTHER_DRAIN_S
            )

    def stop(self, timeout: float) -> bool:
        """Inserts the remaining entries and ends the thread; blocks. Returns False if this takes longer than
        `timeout` seconds; the entries are then still in the spool."""
        self._is_stopping = True
        self._wake.set()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    # --- the thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        """Waits until no other process drains the spool, then drains it until stopped."""
        lock = os.open(self._directory / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            while not try_lock(lock):
                if not self._other_is_draining:
                    self._other_is_draining = True
                    record("ledger_drained_elsewhere", logging.INFO, directory=str(self._directory))
                self._pause_or_wake()
                if self._is_stopping:
                    return
            if self._other_is_draining:
                record("ledger_drained_here", logging.INFO)
            self._is_draining, self._other_is_draining = True, False
            self._signal_unavailable(is_unavailable=False)
            self._drain()
        finally:
            self._is_draining = False
            os.close(lock)

    def _drain(self) -> None:
        """Runs rounds until the drain is stopped. The last round ends when everything is inserted, or when
        the database is unavailable."""
        while True:
            is_last_round = self._is_stopping
            with self._round_condition:
                self._round_number += 1
            is_caught_up = False
            try:
                is_caught_up = self._run_round()
            except StoreUnavailable as error:
                self._handle_failure(error.message)
            except Exception as error:  # noqa: BLE001 - a border: the spool keeps what was not inserted
                self._handle_failure(describe_exception(error))
                self._reset_readers()  # the next round reads the whole spool again, as after a restart
            if is_caught_up:
                with self._round_condition:
                    self._caught_up_round = self._round_number
                    self._round_condition.notify_all()
            if is_last_round and (is_caught_up or self._unavailable_reason):
                break
            if self._unavailable_reason or (is_caught_up and self._requested_round <= self._caught_up_round):
                self._pause_or_wake()
        self._reset_readers()

    def _pause_or_wake(self) -> None:
        """Waits until the thread is woken or the pause has passed. If the drain is stopping, returns at
        once."""
        self._wake.wait(self._pause)
        if not self._is_stopping:
            self._wake.clear()

    def _reset_readers(self) -> None:
        """Drops the readers and the entries that were read, so that the whole spool is read again."""
        self._batch = []
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()

    def _run_round(self) -> bool:
        """Reads one batch and inserts it. Returns whether all entries that had ended before this round are in
        the database."""
        is_caught_up = False
        if not self._batch:  # otherwise the last batch was not inserted
            self._open_new()
            for path, reader in self._readers.items():
                try:
                    self._batch += reader.read(BATCH - len(self._batch))
                except OSError as error:
                    self._log_unreadable(path, error)
                if len(self._batch) >= BATCH:
                    break
            is_caught_up = len(self._batch) < BATCH
        if self._batch:
            self._insert(self._batch)
        if self._unavailable_reason:
            record("ledger_store_back", logging.WARNING)
            self._signal_unavailable(is_unavailable=False)
        self._unavailable_reason, self._pause = "", PAUSE_S
        self._batch = []
        self._delete_done()
        return is_caught_up

    def _open_new(self) -> None:
        """Opens the files of the spool that are not open yet, and deletes stale unfinished files."""
        try:
            for path in self._directory.iterdir():
                with suppress(FileNotFoundError):  # its creator has just renamed it
                    if path.suffix == UNFINISHED and time.time() - path.stat().st_mtime > STALE_S:
                        path.unlink()  # a killed process left it
            paths = list_segments(self._directory)
        except OSError as error:
            self._log_unreadable(self._directory, error)
            paths = []
        for path in paths:
            if path not in self._readers:
                try:
                    self._readers[path] = SegmentReader(path)
                except OSError as error:
                    self._log_unreadable(path, error)

    def _log_unreadable(self, path: Path, error: OSError) -> None:
        """Logs once that a file or directory cannot be read. The next round tries again."""
        if path not in self._unreadable:
            self._unreadable.add(path)
            reason = os.strerror(error.errno or 0)
            record("spool_unreadable", logging.ERROR, segment=path.name, problem=reason)

    def _handle_failure(self, reason: str) -> None:
        """Logs that the database is unavailable, signals it to the other processes, and doubles the pause."""
        if not self._unavailable_reason:
            record("ledger_store_away", logging.ERROR, problem=reason, directory=str(self._directory))
            self._signal_unavailable(is_unavailable=True)
        self._unavailable_reason = reason
        self._pause = min(2 * self._pause, MAX_PAUSE_S)

    def _signal_unavailable(self, is_unavailable: bool) -> None:
        """Creates or deletes the file that tells the node's processes that the database is unavailable. If
        this fails, they only notice when the spool is full."""
        flag = self._directory / UNAVAILABLE_FILE
        with suppress(OSError):
            if is_unavailable:
                flag.touch(mode=0o600)
            else:
                flag.unlink(missing_ok=True)

    def _insert(self, entries: Sequence[Entry]) -> None:
        """Inserts all entries. If the database refuses some, inserts the others and saves the refused ones in
        a file."""
        try:
            self._entries.add(entries)
        except (InvalidValue, OverflowError):
            if len(entries) > 1:
                middle = len(entries) // 2
                self._insert(entries[:middle])
                self._insert(entries[middle:])
                return
            entry = entries[0]
            record("ledger_entry_refused", logging.ERROR, entry=entry.id, request_id=entry.request_id)
            path = self._directory / REFUSED_FILE
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as file:
                file.write(encode_entry(entry) + b"\n")

    def _delete_done(self) -> None:
        """Deletes the files that are complete and fully inserted."""
        for path, reader in list(self._readers.items()):
            if reader.is_done:
                try:
                    path.unlink(missing_ok=True)
                except OSError as error:
                    self._log_unreadable(path, error)
                    continue
                reader.close()
                del self._readers[path]
                self._unreadable.discard(path)


def _require_locks(path: Path) -> None:
    """Raises StartupError if the file system does not support locks. Without locks the drain would take
    running writers for dead ones, and two drains could run at once."""
    first_lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    second_lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        # The first attempt fails while a drain runs, which also shows that locks work.
        is_exclusive = not try_lock(first_lock) or not try_lock(second_lock)
    except OSError:
        is_exclusive = False
    finally:
        os.close(first_lock)
        os.close(second_lock)
    if not is_exclusive:
        raise StartupError(
            f"{path.parent} is on a file system without locks: set "
            "ANTIPHON_SPOOL to a directory on a local disk"
        )
