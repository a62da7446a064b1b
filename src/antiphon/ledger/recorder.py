"""Brings requests and answers of projects that keep them into the store, behind the requests.

What it holds is bounded: where the store is away for long, later ones are dropped and counted, and no request
waits or fails for that. They are no account; the ledger is.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from antiphon.domain.recording import Record, Recording
from antiphon.errors import StoreUnavailable
from antiphon.store.base import Directory, Records
from antiphon.telemetry.logs import record as log
from antiphon.telemetry.redaction import redact_json

MOST_BYTES = 32 << 20
"""Of texts that wait to be kept."""
LONGEST = 256 << 10
"""Characters of each text that are kept."""
BATCH = 50
PAUSE_S = 0.5
"""Seconds between two looks."""
EXPIRY_S = 60.0
"""Seconds between two times that what has expired is removed."""
RETRY_S = 2.0
DAY_S = 86_400


class StoreRecorder:
    """`ledger.base.Recorder` over the store, with a thread of its own."""

    def __init__(self, store: Records, wall: Callable[[], float]) -> None:
        """`wall`: Unix seconds."""
        self._store = store
        self._wall = wall
        self._projects: dict[str, Recording] = {}
        self._waiting: deque[tuple[Record, Recording]] = deque()
        self._bytes = 0
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="antiphon-recorder", daemon=True)
        self.dropped = 0
        """Records for which there was no room."""

    def learn(self, directory: Directory) -> None:
        """From now on these projects keep their requests."""
        self._projects = {
            project.id: project.recording for project in directory.projects if project.recording is not None
        }

    def wants(self, project: str) -> bool:
        """Whether a project keeps its requests."""
        return project in self._projects

    def keep(self, id_: str, project: str, at: int, request: str, answer: str) -> None:
        """Takes a request with its answer; waits for nothing. `at`: Unix milliseconds."""
        recording = self._projects.get(project)
        if recording is None:
            return
        expires = at // 1000 + recording.days * DAY_S
        kept = Record(id_, project, at, expires, request, answer)
        with self._lock:
            if self._bytes + size(kept) > MOST_BYTES:
                self.dropped += 1
                if self.dropped.bit_count() == 1:  # the first, the second, the fourth: no log is flooded
                    log("record_dropped", logging.WARNING, dropped=self.dropped)
                return
            self._bytes += size(kept)
            self._waiting.append((kept, recording))

    def start(self) -> None:
        """Begins to bring records into the store."""
        self._thread.start()

    def stop(self, within: float) -> None:
        """Keeps what still waits, for so many seconds, and ends."""
        self._over.set()
        self._thread.join(within)

    def _run(self) -> None:
        expiry = 0.0
        while True:
            over = self._over.is_set()
            try:
                if time.monotonic() >= expiry:
                    expiry = time.monotonic() + EXPIRY_S
                    self._store.expire(int(self._wall()))
                while self._bring():
                    pass
            except StoreUnavailable:
                self._over.wait(RETRY_S)
            if over:
                return
            self._over.wait(PAUSE_S)

    def _bring(self) -> bool:
        """Brings the first of what waits; whether there was something."""
        with self._lock:
            batch = [self._waiting[at] for at in range(min(BATCH, len(self._waiting)))]
        if not batch:
            return False
        self._store.add([_cleaned(record, recording) for record, recording in batch])
        with self._lock:
            for record, _ in batch:
                self._waiting.popleft()
                self._bytes -= size(record)
        return True


def size(record: Record) -> int:
    """Characters that a record holds."""
    return len(record.request) + len(record.answer)


def _cleaned(record: Record, recording: Recording) -> Record:
    """As it is kept: cut where nothing is cut into that is no longer found then."""
    return replace(
        record,
        request=redact_json(record.request, recording.redact, LONGEST),
        answer=redact_json(record.answer, recording.redact, LONGEST),
    )
