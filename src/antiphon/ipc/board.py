"""What all processes of one server know alike: a small text in a file that any of them may change.

A number beside it, in memory that they share, moves with each change. So looking whether there is something
new costs a look into memory, whoever changes something needs nobody else's answer, and a process that starts
later knows what the others know.
"""

import asyncio
import fcntl
import mmap
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

MARK_BYTES = 8
PAUSE = 0.01
"""Seconds between two tries of the lock, which is held for as long as a change takes."""


class Board:
    """One text under a name in a directory of the server's own."""

    def __init__(self, directory: Path, name: str) -> None:
        self._text = directory / name
        self._mark = os.open(directory / f"{name}.revision", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._mark, MARK_BYTES)
        self._mapped = mmap.mmap(self._mark, MARK_BYTES)

    @property
    def revision(self) -> int:
        """How often it was written; 0 is never."""
        return int.from_bytes(self._mapped[:MARK_BYTES], "little")

    def read(self) -> bytes:
        """The text; nothing where it was never written."""
        return self._text.read_bytes() if self.revision else b""

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        """No other process changes it while the context lasts. Not to be entered twice in one process."""
        while not self._taken():  # noqa: ASYNC110 - another process has it, and tells nobody
            await asyncio.sleep(PAUSE)
        try:
            yield
        finally:
            fcntl.flock(self._mark, fcntl.LOCK_UN)

    def write(self, text: bytes) -> None:
        """Puts another text in its place; within `changing`."""
        new = self._text.with_suffix(".new")
        new.write_bytes(text)
        new.replace(self._text)
        self._mapped[:MARK_BYTES] = (self.revision + 1).to_bytes(MARK_BYTES, "little")

    def close(self) -> None:
        self._mapped.close()
        os.close(self._mark)

    def _taken(self) -> bool:
        try:
            fcntl.flock(self._mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
