"""A Redis of the tests' own: Debian's program, a socket in a temporary directory, no port, nothing on disk.
The fixtures are imported by each conftest.py whose tests need them.

A machine without `redis-server` or `valkey-server` skips what asks for it: tests/support/no_skips.py.
Debian's package redis-tools suffices, which starts no service: its redis-check-rdb is the server under
another name.
"""

import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.waiting import wait_until

__all__ = ["own_redis", "redis_server"]

PROGRAMS = ("redis-server", "valkey-server", "redis-check-rdb")
NAME = "redis-server"
"""What the program is told that it is."""
DEADLINE = 40.0
"""Seconds; a start takes a few hundredths."""


@dataclass
class Server:
    """One server, whose data ends with it."""

    program: str
    folder: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.path}"

    @property
    def path(self) -> Path:
        return self.folder / "redis.sock"

    def start(self) -> None:
        """Returns when it takes connections."""
        said = {"port": "0", "unixsocket": self.path, "dir": self.folder, "save": "", "appendonly": "no"}
        options = [str(each) for name, value in said.items() for each in (f"--{name}", value)]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen([NAME, *options], executable=self.program, stdout=log, stderr=log)
        process = self.process
        wait_until(lambda: self._ready() or process.poll() is not None, DEADLINE, self.folder)
        assert process.poll() is None, (self.folder / "log").read_text()

    def stop(self) -> None:
        """At once: connections are cut, and all data is gone."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(DEADLINE)

    def _ready(self) -> bool:
        try:
            with socket.socket(socket.AF_UNIX) as asking:
                asking.connect(str(self.path))
                asking.sendall(b"PING\r\n")
                return asking.recv(7) == b"+PONG\r\n"
        except OSError:
            return False


def running() -> Iterator[Server]:
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip(f"Redis is not installed: none of {', '.join(PROGRAMS)} is on the path")
    # A socket's path has to be short.
    with tempfile.TemporaryDirectory(prefix="antiphon-redis-", ignore_cleanup_errors=True) as folder:
        made = Server(program, Path(folder))
        try:
            made.start()
            yield made
        finally:
            made.stop()


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Server]:
    """A running server that several tests share: each has a prefix of its own."""
    yield from running()


@pytest.fixture
def own_redis() -> Iterator[Server]:
    """One that a test may stop."""
    yield from running()
