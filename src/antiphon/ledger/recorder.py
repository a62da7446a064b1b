"""Stores the requests and answers of projects that keep them, in the background.

The queue is bounded. If the store is unavailable for long, new records are dropped and counted. Requests
never wait for the store and never fail because of it. Accounting uses the ledger, not these records.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from antiphon.domain.tenancy import RecordedRequest, RecordingPolicy
from antiphon.errors import StoreUnavailable
from antiphon.store.base import Directory, RecordStore
from antiphon.telemetry.logs import record as log
from antiphon.telemetry.redaction import redact_json

MAX_QUEUED = 32 << 20
"""Characters that can wait for the store."""
MAX_TEXT = 256 << 10
"""The most characters that are kept of a request or an answer."""
BATCH = 50
PAUSE_S = 0.5
"""Seconds between two rounds."""
EXPIRY_S = 60.0
"""Seconds between two deletions of expired records."""
RETRY_S = 2.0
DAY_S = 86_400


class StoreRecorder:
    """A `Recorder` with a thread that writes to the store."""

    def __init__(self, store: RecordStore, wall: Callable[[], float]) -> None:
        """`wall`: returns Unix seconds."""
        self._store = store
        self._wall = wall
        self._projects: dict[str, RecordingPolicy] = {}
        self._queue: deque[tuple[RecordedRequest, RecordingPolicy]] = deque()
        self._queued_length = 0
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="antiphon-recorder", daemon=True)
        self.dropped = 0
        """Number of records that were dropped because the queue was full."""

    def update_projects(self, directory: Directory) -> None:
        """Replaces the set of projects that keep their requests."""
        self._projects = {
            project.id: project.recording for project in directory.projects if project.recording is not None
        }

    def wants(self, project: str) -> bool:
        """Whether a project keeps its requests."""
        return project in self._projects

    def keep(self, id_: str, project: str, at: int, request: str, answer: str) -> None:
        """Queues a request and its answer, without waiting. `at`: Unix milliseconds."""
        recording = self._projects.get(project)
        if recording is None:
            return
        expires = at // 1000 + recording.days * DAY_S
        recorded = RecordedRequest(id_, project, at, expires, request, answer)
        with self._lock:
            if self._queued_length + text_length(recorded) > MAX_QUEUED:
                self.dropped += 1
                if self.dropped.bit_count() == 1:  # logs the 1st, 2nd, 4th, 8th, ...: the log stays short
                    log("record_dropped", logging.WARNING, dropped=self.dropped)
                return
            self._queued_length += text_length(recorded)
            self._queue.append((recorded, recording))

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self, within: float) -> None:
        """Stores the queued records, for at most `within` seconds, and ends the thread."""
        self._stopping.set()
        self._thread.join(within)

    def _run(self) -> None:
        """Stores queued records and deletes expired ones, until stopped."""
        expiry = 0.0
        while True:
            is_last_round = self._stopping.is_set()
            try:
                if time.monotonic() >= expiry:
                    expiry = time.monotonic() + EXPIRY_S
                    self._store.expire(int(self._wall()))
                while self._store_batch():
                    pass
            except StoreUnavailable:
                self._stopping.wait(RETRY_S)
            if is_last_round:
                return
            self._stopping.wait(PAUSE_S)

    def _store_batch(self) -> bool:
        """Stores the oldest queued records. Returns False if the queue is empty."""
        with self._lock:
            batch = [self._queue[at] for at in range(min(BATCH, len(self._queue)))]
        if not batch:
            return False
        self._store.add([_redact_record(record, recording) for record, recording in batch])
        with self._lock:
            for record, _ in batch:
                self._queue.popleft()
                self._queued_length -= text_length(record)
        return True


def text_length(record: RecordedRequest) -> int:
    """Returns the number of characters in the request and the answer."""
    return len(record.request) + len(record.answer)


def _redact_record(record: RecordedRequest, recording: RecordingPolicy) -> RecordedRequest:
    """Redacts the texts of a record, then cuts them. So the cut cannot hide a secret from the redaction."""
    return replace(
        record,
        request=redact_json(record.request, recording.redact, MAX_TEXT),
        answer=redact_json(record.answer, recording.redact, MAX_TEXT),
    )
