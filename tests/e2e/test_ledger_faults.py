"""The ledger of a server whose disk is full, or whose database is away, under load: every answer that came
whole has exactly one row."""

import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.e2e.ledgered import Asked, kill_gateway, mount_tmpfs
from tests.support.databases import Cluster, running
from tests.support.server import Server, serving
from tests.support.waiting import wait_until

LARGE = {f"{number:02}": "\U0001f0cf" * 512 for number in range(16)}
"""Metadata of OpenAI's largest size: a few requests with it fill a file of the spool."""


def ledger_of(server: Server) -> tuple[int, str | None]:
    """What readiness says of it."""
    with server.client() as client:
        answer = client.get("/health/ready")
    return answer.status_code, answer.json().get("ledger")


# --- a full disk --------------------------------------------------------------------------------------------


class Disk:
    """Where the home is: a small file system of its own where mounting one is allowed; else the limit on the
    size of files that the kernel sets the gateway, under which every write of its fails."""

    def __init__(self, path: Path) -> None:
        # Each answer takes 70 kB of it, and a slow machine gives hundreds of answers until the test goes on.
        self._unmount = mount_tmpfs(path, "128m")
        self._filler = path / "filler"
        self.kind = "tmpfs" if self._unmount else "RLIMIT_FSIZE"

    def fill(self, server: Server) -> None:
        if self._unmount is None:
            resource.prlimit(gateway(server).pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
            return
        with self._filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                return

    def free(self, server: Server) -> None:
        if self._unmount is None:
            no = resource.RLIM_INFINITY
            resource.prlimit(gateway(server).pid, resource.RLIMIT_FSIZE, (no, no))
        self.free_for_successor()

    def free_for_successor(self) -> None:
        """A new process has no limit of its own."""
        self._filler.unlink(missing_ok=True)

    def close(self) -> None:
        if self._unmount is not None:
            self._unmount()


def gateway(server: Server) -> psutil.Process:
    """The only HTTP process."""
    (only,) = server.children("antiphon.assembly")
    return only


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """An empty one."""
    made = Disk(tmp_path / "disk")
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_full_disk_refuses_requests_and_loses_no_row(tmp_path: Path, disk: Disk) -> None:
    folder = tmp_path / "disk" / "home"
    asked = Asked(folder, f"sqlite:///{folder / 'antiphon.db'}", metadata=LARGE)
    with serving(env=asked.env) as server:
        asked.make_key(server)
        with asked.load(server):
            wait_until(lambda: len(asked.whole) >= 8, what="answers")
            disk.fill(server)
            wait_until(
                lambda: asked.refused["ledger_full"] >= 8, 60, f"refusals on a full disk ({disk.kind})"
            )
            full = lambda: disk.kind != "tmpfs" or ledger_of(server) == (503, "full")  # noqa: E731
            wait_until(full, what="readiness says so")
            disk.free(server)
            again = len(asked.whole)
            wait_until(lambda: len(asked.whole) >= again + 20, 60, "answers on a disk with room")
            disk.fill(server)
            wait_until(lambda: server.records("spool_full")[1:], 60, "a spool that is full again")
            kill_gateway(server)
            again = len(asked.whole)
            disk.free_for_successor()
            wait_until(lambda: len(asked.whole) >= again + 8, 60, "answers of its successor")
        assert set(asked.refused) <= {"ledger_full"}
        assert server.process.poll() is None
        asked.check()
    asked.check_file()
    assert list((folder / "spool").glob("*.seg")) == []


# --- PostgreSQL is away -------------------------------------------------------------------------------------


@pytest.fixture
def own_cluster() -> Iterator[Cluster]:
    """A PostgreSQL that others do not use."""
    with running() as made:
        yield made


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_postgresql_stops_and_starts_under_load_among_kills(tmp_path: Path, own_cluster: Cluster) -> None:
    asked = Asked(tmp_path / "home", own_cluster.database())
    with serving(env=asked.env) as server:
        asked.make_key(server)
        with asked.load(server):
            wait_until(lambda: len(asked.whole) >= 8, what="answers")
            own_cluster.stop()
            during = len(asked.whole)
            wait_until(lambda: len(asked.whole) >= during + 20, what="answers without a database")
            wait_until(lambda: server.records("ledger_store_away"), what="a line about the database")
            wait_until(lambda: ledger_of(server) == (200, "waiting"), what="a ledger that waits")
            own_cluster.start()
            asked.wait_for_rows()
            wait_until(lambda: ledger_of(server) == (200, None), what="a ledger that is well")
            kill_gateway(server)
            again = len(asked.whole)
            wait_until(lambda: len(asked.whole) >= again + 8, what="answers of its successor")
        assert asked.refused == {}
        asked.check()
        own_cluster.stop()
        during = len(asked.whole)
        with asked.load(server):
            wait_until(lambda: len(asked.whole) >= during + 8, what="answers without a database")
        assert server.stop(signal.SIGTERM) == 0
    # What is not in the database stays there; test_kills_of_several_processes has a start that drains it.
    assert list((asked.home / "spool").glob("*.seg")) != []
