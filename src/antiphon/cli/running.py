"""How commands find a running server: by a file in its home, which it holds a lock on for as long as it
lives, and in which it says how its last rolling restart went."""

import fcntl
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from antiphon.cli.processes import Process, this_process

PREFIX, SUFFIX = "server-", ".json"
UNLOCKED = ".new"
"""What a file's name ends with until its lock is held: nobody looks for it yet."""
SIZE = 2_048
"""Bytes of the file: it is always written whole, in one go."""
LONGEST = 500
"""Characters of a reason."""


@dataclass(frozen=True, slots=True)
class Running:
    """A server that serves."""

    process: Process
    """Its supervisor."""
    url: str
    workers: int
    rounds: int = 0
    """Rolling restarts that ended since its start."""
    problem: str | None = None
    """Why the last of them failed; None, where it did not."""


class Notice:
    """The file of this process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._said: Running | None = None

    def serves(self, url: str, workers: int) -> None:
        """The server is ready."""
        with suppress(OSError):  # who cannot say which process it is, is not found
            self._say(Running(this_process(), url, workers))

    def replaced(self, problem: str | None) -> None:
        """A rolling restart has ended; `problem`: why it failed."""
        if self._said is not None:
            said = problem and problem[:LONGEST]
            self._say(replace(self._said, rounds=self._said.rounds + 1, problem=said))

    def _say(self, running: Running) -> None:
        self._said = running
        with suppress(OSError):  # as on a full disk: the server goes on
            os.pwrite(self._descriptor, json.dumps(asdict(running)).encode().ljust(SIZE), 0)


@contextmanager
def noticed(home: Path) -> Iterator[Notice]:
    """This process's file while the context lasts. Where none can be made it is not found, and serves all the
    same."""
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        _sweep(home)
        path, descriptor = _locked(home)
    except OSError:
        yield Notice(-1)
        return
    try:
        yield Notice(descriptor)
    finally:
        with suppress(OSError):
            path.unlink()
        os.close(descriptor)


def running_of(home: Path) -> Mapping[Path, Running]:
    """The servers of a home that serve now, by their files."""
    found = ((path, running_at(path)) for path in _files(home))
    return {path: running for path, running in found if running is not None}


def running_at(path: Path) -> Running | None:
    """That of a file; None where it does not serve, yet or any longer."""
    try:
        with path.open("rb") as file:
            if not _held(file.fileno()):
                return None
            said = json.loads(file.read())
            return Running(**{**said, "process": Process(**said["process"])})
    except (OSError, ValueError, TypeError, LookupError):
        return None


def _locked(home: Path) -> tuple[Path, int]:
    """A new file, and its descriptor, which holds its lock. Two servers may have one number, in two
    containers, and whoever finds the file finds it locked. Raises OSError."""
    path = home / f"{PREFIX}{os.getpid()}-{secrets.token_hex(8)}{SUFFIX}"
    unlocked = path.with_name(path.name + UNLOCKED)
    descriptor = os.open(unlocked, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unlocked.rename(path)
    except OSError:
        os.close(descriptor)
        with suppress(OSError):
            unlocked.unlink()
        raise
    return path, descriptor


def _files(home: Path) -> list[Path]:
    return sorted(home.glob(f"{PREFIX}*{SUFFIX}"))


def _held(descriptor: int) -> bool:
    """Whether a process lives that holds the file's lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False


def _sweep(home: Path) -> None:
    """Removes what servers left that were killed: no file without a lock will ever get one."""
    for path in _files(home):
        with suppress(OSError), path.open("rb") as file:
            if not _held(file.fileno()):
                path.unlink(missing_ok=True)
