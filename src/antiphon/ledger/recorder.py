"""Stores the texts of requests and answers in the background, for projects that turned recording on.

The queue is bounded. If the store is unavailable for long, new records are dropped and counted. Requests
never wait for the store and never fail because of it. Accounting uses the ledger, not these records.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from antiphon.domain.tenancy import RecordedRequest, RecordingPolicy
from antiphon.domain.values import replace
from antiphon.errors import StoreUnavailable
from antiphon.store.base import Directory, RecordStore
from antiphon.telemetry.logs import record as log
from antiphon.telemetry.redaction import redact_json

MAX_QUEUED_CHARACTERS = 32 << 20
"""The most characters in the queue."""
MAX_TEXT_LENGTH = 256 << 10
"""The most characters of a request or an answer that are stored."""
BATCH = 50
"""Records per transaction."""
PAUSE_S = 0.5
"""Seconds between two rounds."""
EXPIRY_S = 60.0
"""Seconds between two deletions of expired records."""
RETRY_S = 2.0
"""Seconds until the next try after the store failed."""
DAY_S = 86_400


class StoreRecorder:
    """A `Recorder` with a thread that writes to the store."""

    def __init__(self, store: RecordStore, clock: Callable[[], float]) -> None:
        """`clock`: Unix seconds."""
        self._store = store
        self._clock = clock
        self._projects: dict[str, RecordingPolicy] = {}
        self._queue: deque[tuple[RecordedRequest, RecordingPolicy]] = deque()
        self._queued_characters = 0
        self._lock = threading.Lock()
        self._stop_requested = threading.Event()
        self._thread = threading.Thread(target=self._run, name="antiphon-recorder", daemon=True)
        self.dropped = 0
        """Number of records that were dropped because the queue was full."""

    def update_projects(self, directory: Directory) -> None:
        """Replaces the set of projects whose requests are recorded."""
        self._projects = {
            project.id: project.recording for project in directory.projects if project.recording is not None
        }

    def is_recorded(self, project: str) -> bool:
        """Whether a project's requests are recorded."""
        return project in self._projects

    def record(self, id_: str, project: str, started_ms: int, request: str, answer: str) -> None:
        """Queues a request and its answer, without waiting. `started_ms`: the start of the request in Unix
        milliseconds."""
        policy = self._projects.get(project)
        if policy is None:
            return
        expires = started_ms // 1000 + policy.days * DAY_S
        request_record = RecordedRequest(id_, project, started_ms, expires, request, answer)
        with self._lock:
            if self._queued_characters + count_characters(request_record) > MAX_QUEUED_CHARACTERS:
                self.dropped += 1
                if self.dropped.bit_count() == 1:  # logs only powers of two, so that the log stays short
                    log("record_dropped", logging.WARNING, dropped=self.dropped)
                return
            self._queued_characters += count_characters(request_record)
            self._queue.append((request_record, policy))

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """Stores the queued records, for at most `timeout` seconds, and ends the thread."""
        self._stop_requested.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        """Stores queued records and deletes expired ones, until stopped."""
        next_expiry = 0.0
        while True:
            is_last_round = self._stop_requested.is_set()
            try:
                if time.monotonic() >= next_expiry:
                    next_expiry = time.monotonic() + EXPIRY_S
                    self._store.expire(int(self._clock()))
                while self._store_batch():
                    pass
            except StoreUnavailable:
                self._stop_requested.wait(RETRY_S)
            if is_last_round:
                return
            self._stop_requested.wait(PAUSE_S)

    def _store_batch(self) -> bool:
        """Stores the oldest queued records, redacted and cut, and removes them from the queue. Returns False
        if the queue is empty."""
        with self._lock:
            batch = [self._queue[index] for index in range(min(BATCH, len(self._queue)))]
        if not batch:
            return False
        # Redacts before it cuts: half a secret is not recognised.
        redacted = [
            replace(
                record,
                request=redact_json(record.request, policy.redact, MAX_TEXT_LENGTH),
                answer=redact_json(record.answer, policy.redact, MAX_TEXT_LENGTH),
            )
            for record, policy in batch
        ]
        self._store.add(redacted)
        with self._lock:
            for record, _ in batch:
                self._queue.popleft()
                self._queued_characters -= count_characters(record)
        return True


def count_characters(record: RecordedRequest) -> int:
    """Returns the number of characters in the request and the answer."""
    return len(record.request) + len(record.answer)
