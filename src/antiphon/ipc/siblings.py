"""The processes of one server that know the same directory of keys: which revision each of them knows, and a
word to all that there is a new one.

Each has two files in the server's runtime directory: a number, and a pipe by which it is woken, which ends
with its process. So nothing is sent where nothing changes, and who died is waited for by nobody.
"""

import asyncio
import errno
import logging
import os
import secrets
import select
from contextlib import suppress
from pathlib import Path

from antiphon.telemetry.logs import record

PREFIX = "knows-"
NUMBER, WAKE = ".number", ".wake"
NUMBER_BYTES = 8
PAUSE_S = 0.002
"""Seconds between two looks at the numbers of others."""
MOST_S = 1.0
"""Seconds for which they are waited for; one that hangs learns it later, as a server elsewhere does."""
WORDS = 4096
"""Bytes that are read at once; a word is one."""


class Siblings:
    """This process among those of its server. `wait` is for one thread, the others for any."""

    def __init__(self, directory: Path) -> None:
        """Where no file can be made, as on a full disk, nobody waits for this process; the log says so."""
        self._directory = directory
        self._name = PREFIX + secrets.token_hex(4)
        self._number = self._reads = self._writes = -1
        try:
            self._join()
        except OSError as problem:
            self.close()
            record("siblings_unknown", logging.WARNING, problem=os.strerror(problem.errno or 0))

    def knows(self, revision: int) -> None:
        """This process answers by that revision from now on."""
        if self._number >= 0:
            with suppress(OSError):
                os.pwrite(self._number, revision.to_bytes(NUMBER_BYTES, "little"), 0)

    def wait(self, seconds: float) -> None:
        """Blocks until another process says that there is something new, but no longer than so."""
        if select.select([self._reads] if self._reads >= 0 else [], [], [], seconds)[0]:
            with suppress(BlockingIOError):
                os.read(self._reads, WORDS)

    async def reached(self, revision: int) -> None:
        """Wakes the others, and waits until every one that lives knows the revision, `MOST_S` at most."""
        waiting = [path for path in self._others() if self._woken(path)]
        try:
            async with asyncio.timeout(MOST_S):
                while waiting := [path for path in waiting if _known(path) < revision]:  # noqa: ASYNC110 - others' files
                    await asyncio.sleep(PAUSE_S)
        except TimeoutError:
            late = [path for path in waiting if self._woken(path)]  # not those that died meanwhile
            if late:
                record("siblings_late", logging.WARNING, processes=len(late))

    def close(self) -> None:
        """Nobody waits for this process any more."""
        _remove(self._path(WAKE), self._path(NUMBER), self._path(".new"))
        held = (self._number, self._reads, self._writes)
        self._number = self._reads = self._writes = -1
        for descriptor in held:
            if descriptor >= 0:
                os.close(descriptor)

    def _path(self, suffix: str) -> Path:
        return self._directory / f"{self._name}{suffix}"

    def _join(self) -> None:
        """The pipe gets its name last: one that has a name and no reader is of the dead."""
        self._number = os.open(self._path(NUMBER), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.pwrite(self._number, bytes(NUMBER_BYTES), 0)
        new = self._path(".new")
        os.mkfifo(new, 0o600)
        self._reads = os.open(new, os.O_RDONLY | os.O_NONBLOCK)
        self._writes = os.open(new, os.O_WRONLY | os.O_NONBLOCK)  # else it reads as ended after each word
        new.rename(self._path(WAKE))

    def _others(self) -> list[Path]:
        own = self._path(WAKE)
        return [path for path in self._directory.glob(f"{PREFIX}*{WAKE}") if path != own]

    @staticmethod
    def _woken(path: Path) -> bool:
        """Whether its process lives. What a dead one left is removed."""
        try:
            pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as problem:
            if problem.errno == errno.ENXIO:  # nobody reads it
                _remove(path, path.with_suffix(NUMBER))
            return False
        try:
            with suppress(BlockingIOError):  # it has words enough that it has not read yet
                os.write(pipe, b"!")
        except BrokenPipeError:
            return False
        finally:
            os.close(pipe)
        return True


def _remove(*paths: Path) -> None:
    for path in paths:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _known(path: Path) -> float:
    """The revision that a process knows; one that has left knows all."""
    try:
        number = path.with_suffix(NUMBER).read_bytes()
    except OSError:
        return float("inf")
    return int.from_bytes(number, "little")
