"""One file of the spool as the drain sees it: read as it grows, entries made of its pairs.

A live writer may be in the midst of a record, so what cannot be read yet is looked at again; what cannot be
read and has a whole record behind it, or a writer that is gone, is damaged: it is skipped with one line in
the log, and what stands before and behind it is kept.
"""

import logging
import os
from pathlib import Path

from antiphon.domain.ledger import ABORTED, Entry
from antiphon.domain.usage import UsageSource
from antiphon.domain.values import changed
from antiphon.ledger.records import HEADER, MOST, Kind, Record, decoded, next_record, record_at
from antiphon.ledger.segments import take_lock
from antiphon.telemetry.logs import record

INTENT = int(Kind.INTENT)

CHUNK = 4 * (HEADER + MOST)
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
        self._waiting: dict[int, bytes] = {}
        self._abandoned = False

    def read(self, most: int) -> list[Entry]:
        """Up to about so many entries that ended since the last time. Raises OSError."""
        found: list[Entry] = []
        if self.is_done:
            return found
        # Asked first: whatever a writer wrote before it went is seen by what is read afterwards.
        self._abandoned = self._abandoned or take_lock(self._descriptor)
        while len(found) < most:
            if self._read_chunk(found):
                continue
            if self._skip_damage():
                continue
            if self._abandoned:
                found.extend(self._aborted())
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
        while (read := record_at(data, at)) is not None:
            at += read.size
            if read.kind == INTENT:
                self._waiting[read.number] = read.payload
            elif (entry := self._completed(read)) is not None:
                found.append(entry)
        self._at += at
        return at > 0

    def _completed(self, read: Record) -> Entry | None:
        """The entry of a generation's end; None where it cannot be read."""
        entry = decoded(read.payload)
        if entry is None:
            self._damaged("a record is of another version", read.size)
        else:
            self._waiting.pop(read.number, None)
        return entry

    def _aborted(self) -> list[Entry]:
        """What is left of a writer that is gone: what it had begun."""
        found = []
        for payload in self._waiting.values():
            entry = decoded(payload)
            if entry is None:
                self._damaged("a record is of another version", len(payload))
            else:
                found.append(changed(entry, status=ABORTED, source=UsageSource.ESTIMATED))
        self._waiting.clear()
        return found

    def _skip_damage(self) -> bool:
        """Goes on to the next whole record, if there is one behind what cannot be read."""
        if not self._abandoned and os.pread(self._descriptor, 1, self._at) in (b"", b"\0"):
            return False  # not written yet
        rest = self._rest()
        behind = next_record(rest, 0)
        if behind is None:
            cut = len(rest.rstrip(b"\0"))
            if self._abandoned and cut:
                self._damaged("its writer was cut", cut)
            return False
        # A reader beside a writer may see a record half and the one behind it whole: the second look decides.
        if record_at(self._rest(), 0) is None:
            self._damaged("a record is damaged", behind)
            self._at += behind
        return True

    def _rest(self) -> bytes:
        """Everything from the position on."""
        size = os.fstat(self._descriptor).st_size
        return os.pread(self._descriptor, max(0, size - self._at), self._at)

    def _damaged(self, problem: str, size: int) -> None:
        record(
            "spool_damaged",
            logging.WARNING,
            segment=self.path.name,
            at=self._at,
            bytes=size,
            problem=problem,
        )
