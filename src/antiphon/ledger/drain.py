"""What brings the spool into the database: one thread of one process of a node.

All that it must not forget lies in the spool: a file is deleted when every entry in it is in the database,
and what is read twice, after a restart, changes nothing there.
"""

import logging
import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from antiphon.domain.ledger import Entry
from antiphon.errors import InvalidValue, StartupError, StoreUnavailable
from antiphon.ledger.reading import SegmentReader
from antiphon.ledger.records import encoded
from antiphon.ledger.segments import UNFINISHED, segments_of, take_lock
from antiphon.ledger.spool import AWAY, ready
from antiphon.store.base import Entries
from antiphon.telemetry.logs import describe_exception, record

LOCK = "drain.lock"
REFUSED = "refused.jsonl"
"""Entries that the database refuses, a line of JSON each. None is known: the store replaces what it cannot
hold."""

PAUSE_S = 0.25
"""Seconds between two looks: an entry is in the database about so long after its end."""

MOST_PAUSE_S = 5.0
"""Seconds between two tries of a database that is away."""

DRAIN_S = 5.0
"""Seconds for which the database is waited for where nobody says how long."""

ELSEWHERE_S = 1.0
"""Seconds for which another process that drains is given time to bring in what ended by now. It tells nobody,
and needs a pause and a transaction."""

BATCH = 500
"""Entries of one transaction."""

STALE_S = 60.0
"""Age of a file that nobody finished making."""


@dataclass(frozen=True, slots=True)
class DrainStanding:
    """How the way into the database stands."""

    drains: bool
    """Whether this is the node's drain; else another process is, and this one waits to take its place."""
    away: str = ""
    """Why the database takes nothing now; empty where it does."""
    waiting: int = 0
    """Entries that were read and are not in the database; more may lie in the spool."""
    elsewhere: bool = False
    """Whether another process was seen to be the node's drain."""


class Drain:
    """Reads a spool's files as they grow, and inserts what ended."""

    def __init__(self, directory: Path, entries: Entries) -> None:
        self._directory = directory
        self._entries = entries
        self._readers: dict[Path, SegmentReader] = {}
        self._unreadable: set[Path] = set()
        self._found: list[Entry] = []
        self._drains = False
        self._elsewhere = False
        self._away = ""
        self._pause = PAUSE_S
        self._stopping = False
        self._awake = threading.Event()
        self._progress = threading.Condition()
        self._rounds = 0
        self._clean = 0
        self._wanted = 0
        self._thread = threading.Thread(target=self._run, name="antiphon-drain", daemon=True)

    @property
    def standing(self) -> DrainStanding:
        """As of now; may be asked from any thread."""
        return DrainStanding(self._drains, self._away, len(self._found), self._elsewhere)

    def start(self) -> None:
        """Begins; returns at once. Raises StartupError where files cannot be locked there."""
        ready(self._directory)
        _require_locks(self._directory / LOCK)
        self._thread.start()

    def drain_now(self, within: float = DRAIN_S) -> bool:
        """Blocks until everything that ended by now is in the database; false where it is not in so many
        seconds. Where another process drains, nobody knows; it is given `ELSEWHERE_S`, and the answer is
        false unless it left meanwhile."""
        with self._progress:
            wanted = self._wanted = self._rounds + 1
            self._awake.set()
            if self._progress.wait_for(lambda: self._clean >= wanted, min(within, ELSEWHERE_S)):
                return True
            if self._elsewhere:
                return False
            return self._progress.wait_for(lambda: self._clean >= wanted, within - ELSEWHERE_S)

    def stop(self, within: float) -> bool:
        """Inserts what is there, and ends; blocks. False where it is not done in so many seconds: the spool
        keeps the rest."""
        self._stopping = True
        self._awake.set()
        self._thread.join(within)
        return not self._thread.is_alive()

    # --- the thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        lock = os.open(self._directory / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            while not take_lock(lock):
                self._waits()
                self._rest()
                if self._stopping:
                    return
            if self._elsewhere:
                record("ledger_drained_here", logging.INFO)
            self._drains, self._elsewhere = True, False
            self._signal(away=False)
            self._drain()
        finally:
            self._drains = False
            os.close(lock)

    def _waits(self) -> None:
        """Says once that another process is the node's drain."""
        if not self._elsewhere:
            record("ledger_drained_elsewhere", logging.INFO, directory=str(self._directory))
        self._elsewhere = True

    def _drain(self) -> None:
        """Until it is told to stop, and what had ended by then is in the database, or cannot get there."""
        while True:
            last = self._stopping
            with self._progress:
                self._rounds += 1
            caught_up = self._guarded_round()
            if caught_up:
                with self._progress:
                    self._clean = self._rounds
                    self._progress.notify_all()
            if last and (caught_up or self._away):
                break
            if self._away or (caught_up and self._wanted <= self._clean):
                self._rest()
        self._forget()

    def _rest(self) -> None:
        """Until somebody wants something, or so long."""
        self._awake.wait(self._pause)
        if not self._stopping:
            self._awake.clear()

    def _guarded_round(self) -> bool:
        """As `_round`. The thread outlives whatever comes: it begins again with all that lies in the spool,
        as after a restart."""
        try:
            return self._round()
        except StoreUnavailable as problem:
            self._fails(problem.message)
        except Exception as problem:  # noqa: BLE001 - a border: the spool keeps what was not inserted
            self._fails(describe_exception(problem))
            self._forget()
        return False

    def _forget(self) -> None:
        self._found = []
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()

    def _round(self) -> bool:
        """Reads and inserts once; whether all that had ended when it began is in the database now."""
        caught_up = False
        if not self._found:  # else the database did not take what the last round read
            self._open_new()
            self._read_all()
            caught_up = len(self._found) < BATCH
        if self._found:
            self._add(self._found)
        if self._away:
            record("ledger_store_back", logging.WARNING)
            self._signal(away=False)
        self._away, self._pause = "", PAUSE_S
        self._found = []
        self._delete_done()
        return caught_up

    def _open_new(self) -> None:
        try:
            _remove_stale(self._directory)
            paths = segments_of(self._directory)
        except OSError as problem:
            self._unread(self._directory, problem)
            paths = []
        for path in paths:
            if path not in self._readers:
                self._open(path)

    def _open(self, path: Path) -> None:
        try:
            self._readers[path] = SegmentReader(path)
        except OSError as problem:
            self._unread(path, problem)

    def _read_all(self) -> None:
        for path, reader in self._readers.items():
            try:
                self._found += reader.read(BATCH - len(self._found))
            except OSError as problem:
                self._unread(path, problem)
            if len(self._found) >= BATCH:
                return

    def _unread(self, path: Path, problem: OSError) -> None:
        """Says once what cannot be read; it is tried again."""
        if path not in self._unreadable:
            self._unreadable.add(path)
            said = os.strerror(problem.errno or 0)
            record("spool_unreadable", logging.ERROR, segment=path.name, problem=said)

    def _fails(self, problem: str) -> None:
        if not self._away:
            record("ledger_store_away", logging.ERROR, problem=problem, directory=str(self._directory))
            self._signal(away=True)
        self._away = problem
        self._pause = min(2 * self._pause, MOST_PAUSE_S)

    def _signal(self, away: bool) -> None:
        """Tells those that are asked how the ledger stands; where even that cannot be written, they learn it
        when the spool is full."""
        flag = self._directory / AWAY
        with suppress(OSError):
            if away:
                flag.touch(mode=0o600)
            else:
                flag.unlink(missing_ok=True)

    def _add(self, entries: Sequence[Entry]) -> None:
        """Inserts all; where the database can hold one of them in no form, the others."""
        try:
            self._entries.add(entries)
        except (InvalidValue, OverflowError):
            if len(entries) == 1:
                return self._refuse(entries[0])
            middle = len(entries) // 2
            self._add(entries[:middle])
            self._add(entries[middle:])

    def _refuse(self, entry: Entry) -> None:
        record("ledger_entry_refused", logging.ERROR, entry=entry.id, request_id=entry.request_id)
        path = self._directory / REFUSED
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as file:
            file.write(encoded(entry) + b"\n")

    def _delete_done(self) -> None:
        """Everything that was read is in the database: files in which nothing can come are of no more use."""
        for path, reader in list(self._readers.items()):
            if reader.is_done:
                try:
                    path.unlink(missing_ok=True)
                except OSError as problem:
                    self._unread(path, problem)
                    continue
                reader.close()
                del self._readers[path]
                self._unreadable.discard(path)


def _remove_stale(directory: Path) -> None:
    """Deletes what somebody began to make and was killed at. Raises OSError."""
    for path in directory.iterdir():
        with suppress(FileNotFoundError):  # it was finished just now
            if path.suffix == UNFINISHED and time.time() - path.stat().st_mtime > STALE_S:
                path.unlink()


def _require_locks(path: Path) -> None:
    """Raises StartupError where a file's lock does not keep a second descriptor out: writers that live would
    be taken for dead, and two drains would work at once."""
    first, second = (os.open(path, os.O_RDWR | os.O_CREAT, 0o600) for _ in range(2))
    try:
        holds = not take_lock(first) or not take_lock(second)  # the first fails where a drain is at work
    except OSError:
        holds = False
    finally:
        os.close(first)
        os.close(second)
    if not holds:
        raise StartupError(
            f"{path.parent} is on a file system without locks: set ANTIPHON_SPOOL to a local one"
        )
