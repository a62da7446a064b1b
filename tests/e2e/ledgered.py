"""A server with keys under load, for tests that break it: which requests got a whole answer, and what stands
in the ledger afterwards."""

import json
import random
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import httpx2
import sqlalchemy as sa

from antiphon.engines.host.child import WINDOW
from tests.support.server import Server, read_event
from tests.support.waiting import PATIENCE, wait_until

CLIENTS = 4
PAUSE_S = 0.05
"""Before a client that was refused, or cut off, tries again."""

Row = tuple[str, str, str]
"""Request id, status, source."""


@dataclass
class Asked:
    """What clients asked for under one home, over all starts of the server."""

    home: Path
    store: str
    key: str = ""
    whole: set[str] = field(default_factory=set)
    """Ids of requests whose answer came to its very end, with 200."""
    cut: set[str] = field(default_factory=set)
    """Of those whose answer did not."""
    refused: Counter[str] = field(default_factory=Counter)
    """Errors that were answered, by their code."""
    metadata: dict[str, str] = field(default_factory=dict)
    """What each request carries."""
    pause_s: float = 0.1
    """Between an answer and the next request of a client: while a test waits, four that never pause take all
    of the machine."""
    _numbers: Iterator[int] = field(default_factory=count)

    @property
    def env(self) -> dict[str, str]:
        return {"ANTIPHON_KEYS": "true", "ANTIPHON_HOME": str(self.home), "ANTIPHON_STORE": self.store}

    def make_key(self, server: Server) -> None:
        admin = (self.home / "admin.key").read_text().strip()
        with server.client(headers={"authorization": f"Bearer {admin}"}) as client:
            made = client.post("/admin/v1/keys", json={"kind": "service", "project": "default"})
            self.key = made.json()["secret"]

    @contextmanager
    def load(self, server: Server) -> Iterator[None]:
        """Several clients ask, one request after the other, while the context lasts."""
        over = threading.Event()
        problems: list[Exception] = []

        def asking() -> None:
            try:
                while not over.is_set():
                    self.ask(server, over)
            except Exception as problem:  # noqa: BLE001 - who waits for the threads raises it
                problems.append(problem)

        threads = [threading.Thread(target=asking) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join()
            assert problems == [], server.records("internal_error")

    @contextmanager
    def stream_held(self, server: Server) -> Iterator[None]:
        """A long answer has begun, and is read no further while the context lasts; then it is left."""
        id_ = f"asked-{next(self._numbers)}"
        body = {
            "model": "cantor",
            "prompt": "The hen saw",
            "max_tokens": 1000,
            "ignore_eos": True,
            "stream": True,
        }
        body |= {"metadata": self.metadata} if self.metadata else {}
        headers = {"authorization": f"Bearer {self.key}", "x-request-id": id_}
        self.cut.add(id_)
        with (
            server.client(headers=headers) as client,
            client.stream("POST", "/v1/completions", json=body) as answer,
        ):
            assert answer.status_code == 200
            assert read_event(answer.iter_lines())
            yield

    def ask(self, server: Server, over: threading.Event) -> None:
        """Asks on one connection, by turns for a stream and for a whole answer, until it is cut."""
        headers = {"authorization": f"Bearer {self.key}"}
        try:
            with server.client(headers=headers) as client:
                while not over.is_set():
                    over.wait(self.pause_s if self._one(client) else PAUSE_S)
        except httpx2.TransportError:
            over.wait(PAUSE_S)

    def _one(self, client: httpx2.Client) -> bool:
        number = next(self._numbers)
        id_ = f"asked-{number}"
        body = {"model": "cantor", "prompt": "The hen saw", "max_tokens": 1 + number % 24, "seed": number}
        body |= {"metadata": self.metadata} if self.metadata else {}
        ask = self._streamed if number % 2 else self._buffered
        try:
            return ask(client, id_, body)
        except httpx2.TransportError:
            self.cut.add(id_)
            raise

    def _buffered(self, client: httpx2.Client, id_: str, body: dict[str, object]) -> bool:
        answer = client.post("/v1/completions", json=body, headers={"x-request-id": id_})
        if answer.status_code != 200:
            return self._refused(answer.status_code, answer.json())
        assert answer.json()["usage"]["completion_tokens"] > 0
        self.whole.add(id_)
        return True

    def _streamed(self, client: httpx2.Client, id_: str, body: dict[str, object]) -> bool:
        streaming = body | {"stream": True}
        with client.stream(
            "POST", "/v1/completions", json=streaming, headers={"x-request-id": id_}
        ) as answer:
            if answer.status_code != 200:
                return self._refused(answer.status_code, json.loads(answer.read()))
            last = [line for line in answer.iter_lines() if line][-1]
        if last == "data: [DONE]":
            self.whole.add(id_)
            return True
        self.cut.add(id_)
        return self._refused(200, json.loads(last.removeprefix("data: ")))

    def _refused(self, status: int, body: dict[str, dict[str, str]]) -> bool:
        self.refused[body["error"]["code"]] += 1
        assert status in (200, 503), (status, body)
        return False

    # --- the ledger -----------------------------------------------------------------------------------------

    def rows(self) -> list[Row]:
        """What stands in the ledger, read beside the server."""
        engine = sa.create_engine(self.store.replace("postgresql://", "postgresql+psycopg://"))
        try:
            with engine.connect() as connection:
                found = connection.execute(sa.text("SELECT request_id, status, source FROM ledger"))
                return [(id_, status, source) for id_, status, source in found]
        finally:
            engine.dispose()

    def wait_for_rows(self, within: float = 20) -> float:
        """Seconds until every request that has a whole answer by now is in the ledger."""
        whole = set(self.whole)
        return wait_until(lambda: whole <= {row[0] for row in self.rows()}, within, "rows of all answers")

    def check(self) -> None:
        """Every whole answer has exactly one row, which says so; no request has two; no row is of nobody."""
        self.wait_for_rows(WINDOW + PATIENCE)  # a process that was killed three times rests
        rows = self.rows()
        times = Counter(row[0] for row in rows)
        assert [id_ for id_, often in times.items() if often > 1] == []
        assert all(id_.startswith("asked-") for id_ in times)
        of = {row[0]: row for row in rows}
        assert {of[id_][1:] for id_ in self.whole} == {("ok", "engine")}
        assert {source for _, status, source in rows if status == "aborted"} <= {"estimated"}

    def check_file(self) -> None:
        """SQLite itself finds nothing wrong with its file."""
        path = self.home / "antiphon.db"
        if path.exists():
            engine = sa.create_engine(f"sqlite:///{path}")
            with engine.connect() as connection:
                assert connection.execute(sa.text("PRAGMA integrity_check")).scalar() == "ok"
            engine.dispose()


def kill_gateway(server: Server) -> None:
    """A process that answers and writes a spool, and drains it where it is alone; it is started again."""
    killed = random.choice(server.children("antiphon.assembly"))
    killed.kill()
    killed.wait(PATIENCE)


def mount_tmpfs(path: Path, size: str) -> Callable[[], None] | None:
    """Mounts a small file system in memory and gives what unmounts it; None where that is not allowed."""
    path.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "antiphon-test", str(path)],
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        return None

    def unmount() -> None:
        subprocess.run(["umount", "-l", str(path)], check=True)

    return unmount
