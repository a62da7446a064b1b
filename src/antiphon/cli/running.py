"""How commands find a running server: by a file in its home, which it holds a lock on for as long as it
lives, and in which it says how its last rolling restart went."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

PREFIX, SUFFIX = "server-", ".json"
SIZE = 2_048
"""Bytes of the file: it is always written whole, in one go."""
LONGEST = 500
"""Characters of a reason."""


@dataclass(frozen=True, slots=True)
class Running:
    """A server that serves."""

    pid: int
    """Of its supervisor."""
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
        self._say(Running(os.getpid(), url, workers))

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
    path = home / f"{PREFIX}{os.getpid()}{SUFFIX}"
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        _sweep(home)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    except OSError:
        yield Notice(-1)
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield Notice(descriptor)
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def running_of(home: Path) -> list[Running]:
    """The servers of a home that serve now."""
    return [running for path in _files(home) if (running := running_at(path)) is not None]


def running_at(path: Path) -> Running | None:
    """That of a file; None where it does not serve, yet or any longer."""
    try:
        with path.open("rb") as file:
            if not _held(file.fileno()):
                return None
            return Running(**json.loads(file.read()))
    except (OSError, ValueError, TypeError):
        return None


def path_of(home: Path, pid: int) -> Path:
    """The file of a server."""
    return home / f"{PREFIX}{pid}{SUFFIX}"


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
    """Removes what servers left that were killed."""
    for path in _files(home):
        with suppress(OSError), path.open("rb") as file:
            if not _held(file.fileno()):
                path.unlink(missing_ok=True)
