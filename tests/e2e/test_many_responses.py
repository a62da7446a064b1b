"""A server with keys that stores 100,000 responses: its memory stays flat, and its table within its bounds.
Then it is killed while it writes, and what it has confirmed is there."""

import json
import logging
import os
import signal
import sqlite3
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.wire import Wire
from tests.support.server import Server, serving
from tests.support.waiting import wait_until

RESPONSES = int(os.environ.get("ANTIPHON_TEST_RESPONSES", "100000"))
"""A tenth of them come first, since what is made once is made then."""
AT_ONCE = 8
LINKS = 4
"""Responses of one conversation."""
ROOM = 4 << 20
"""Bytes of the responses that are kept: some thousands."""
MOST_GROWTH = 8 << 20
"""Bytes by which a process can grow. With 100 bytes of each response it would grow by more."""
SURELY_KEPT = 50
"""The latest responses, which have not given way yet."""
METADATA = {"ticket": "x" * 500}
"""Bytes that are stored, and that the model does not read."""


class Talk:
    """Conversations of one caller, one after the other."""

    def __init__(self, url: str, key: str) -> None:
        self._wire = Wire(url)
        self._headers = {"authorization": f"Bearer {key}"}
        self._previous: str | None = None
        self._links = 0

    def ask(self, number: int) -> str:
        """Sends the next request of a conversation. Returns the id of the stored response."""
        body: dict[str, Any] = {"model": "cantor", "max_output_tokens": 1, "input": f"{number}"}
        body["metadata"] = METADATA
        if self._links:
            body["previous_response_id"] = self._previous
        answer = self._wire.ask("POST", "/v1/responses", json.dumps(body).encode(), self._headers)
        if answer.status == 400 and b"previous_response_not_found" in answer.body:
            self._links = 0  # an earlier response gave way, or has expired
            return self.ask(number)
        assert answer.status == 200, answer.body
        response = json.loads(answer.body)
        assert response["store"] is True
        self._links = (self._links + 1) % LINKS
        self._previous = response["id"]
        return str(response["id"])


class Talks:
    """Several callers at once."""

    def __init__(self, url: str, key: str) -> None:
        self._talks = [Talk(url, key) for _ in range(AT_ONCE)]
        self._numbers = iter(range(1 << 62))
        self._lock = threading.Lock()
        self.confirmed: deque[str] = deque(maxlen=SURELY_KEPT)

    def ask(self, count: int) -> None:
        """Sends this many requests. Raises what a request raises."""
        left = iter(range(count))

        def run(talk: Talk) -> None:
            while True:
                with self._lock:
                    number = next(self._numbers)
                    if next(left, None) is None:
                        return
                id_ = talk.ask(number)
                with self._lock:
                    self.confirmed.append(id_)

        with ThreadPoolExecutor(AT_ONCE) as threads:
            for running in [threads.submit(run, talk) for talk in self._talks]:
                running.result()


@contextmanager
def storing(home: Path) -> Iterator[tuple[Server, str]]:
    env = {
        "ANTIPHON_KEYS": "true",
        "ANTIPHON_HOME": str(home),
        "ANTIPHON_RESPONSES_PROJECT_BYTES": str(ROOM),
    }
    with serving(env=env) as server, server.client() as client:
        admin = {"authorization": f"Bearer {(home / 'admin.key').read_text().strip()}"}
        answer = client.post("/admin/v1/keys", json={"kind": "service", "project": "default"}, headers=admin)
        yield server, answer.json()["secret"]


def read_row(database: Path, query: str) -> Any:
    with closing(sqlite3.connect(database, timeout=60)) as connection:
        return connection.execute(query).fetchone()


def require_bounded(database: Path) -> int:
    """Returns the number of kept responses."""
    query = (
        "SELECT count(*), sum(size), (SELECT bytes FROM response_totals), "
        "(SELECT count(*) FROM response_items) FROM responses"
    )
    count, size, total, items = read_row(database, query)
    assert size == total <= ROOM
    assert items == 2 * count
    return int(count)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_hundred_thousand_stored_responses_need_no_more_memory(tmp_path: Path) -> None:
    database = tmp_path / "antiphon.db"
    with storing(tmp_path) as (server, key):
        talks = Talks(server.url, key)
        talks.ask(RESPONSES // 10)
        processes = [*server.children("assembly"), *server.children("engines.host"), server.supervisor]
        before = [process.memory_info().rss for process in processes]
        for _ in range(5):
            talks.ask(RESPONSES // 10)
            assert require_bounded(database) > SURELY_KEPT
        with closing(sqlite3.connect(database, timeout=60)) as connection:
            connection.execute("UPDATE responses SET expires = 1")  # their days are over
            connection.commit()
        for _ in range(4):
            talks.ask(RESPONSES // 10)
        old = "SELECT count(*) FROM responses WHERE expires = 1"
        wait_until(lambda: read_row(database, old) == (0,), 150, "expired responses are removed")
        require_bounded(database)
        after = [process.memory_info().rss for process in processes]
        grown = [end - begin for begin, end in zip(before, after, strict=True)]
        logging.getLogger(__name__).info("%s responses: bytes %s, grown by %s", RESPONSES, after, grown)
        assert max(grown) < MOST_GROWTH
        kill_while_asking(server, talks)
        confirmed = list(talks.confirmed)
    require_bounded(database)
    assert read_row(database, "PRAGMA integrity_check") == ("ok",)
    with storing(tmp_path) as (server, key), server.client() as client:
        headers = {"authorization": f"Bearer {key}"}
        for id_ in confirmed:
            stored = client.get(f"/v1/responses/{id_}", headers=headers)
            assert stored.json()["status"] in ("completed", "incomplete"), id_


def kill_while_asking(server: Server, talks: Talks) -> None:
    """Kills all processes of the server during requests."""
    with ThreadPoolExecutor(1) as threads:
        asking = threads.submit(talks.ask, 100_000)
        first = talks.confirmed[0]
        wait_until(lambda: talks.confirmed[0] != first, 120, "requests are answered")
        for process in [server.supervisor, *server.supervisor.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        with pytest.raises(ConnectionError):
            asking.result()
