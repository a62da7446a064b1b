"""Directories that one process owns, with a lock in each. Any process that can take the lock can remove the
directory, because its owner is dead."""

import fcntl
import os
import re
import secrets
import shutil
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

LOCK = "lock"

PAUSE = 0.01
"""Seconds between two attempts to take a lock."""


def create_locked_directory(base: Path, prefix: str) -> tuple[Path, int]:
    """Makes a new directory with mode 0700, and removes those of the same prefix whose owners are dead.
    Returns it with the descriptor of its lock, which the owner keeps open while it lives."""
    remove_stale_directories(base, prefix)
    path = base / f"{prefix}{secrets.token_hex(4)}"
    return path, _create(path)


def remove_stale_directories(base: Path, prefix: str) -> None:
    """Removes the directories of dead owners."""
    name = re.compile(re.escape(prefix) + "[0-9a-f]{8}")
    for path in base.glob(f"{prefix}*"):
        with suppress(OSError):
            if name.fullmatch(path.name) and path.lstat().st_uid == os.getuid():
                remove_unlocked(path, whole=True, patience=0)


def end_with_owner(path: Path) -> None:
    """Ends this process, at once and by SIGKILL, when the owner of the directory is gone. A thread waits for
    the lock."""

    def wait() -> None:
        with suppress(OSError):  # the directory is removed only after its owner is gone
            lock = os.open(path / LOCK, os.O_RDWR | os.O_NOFOLLOW)
            fcntl.flock(lock, fcntl.LOCK_SH)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, name="owner", daemon=True).start()


def _create(path: Path) -> int:
    """Makes the directory and locks it before it gets its final name, so that no cleanup finds an unlocked
    directory. Returns the descriptor of the lock."""
    nascent = path.with_name(f".{path.name}")
    nascent.mkdir(mode=0o700)
    lock = os.open(nascent / LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    nascent.rename(path)
    return lock


def remove_unlocked(path: Path, *, whole: bool, patience: float) -> None:
    """Removes a directory if its lock becomes free within `patience` seconds. Unless `whole` is set, removes
    it only if no socket is left in it."""
    lock = os.open(path / LOCK, os.O_RDWR | os.O_NOFOLLOW)
    try:
        if _acquire_lock(lock, patience) and (whole or not any(path.glob("*.sock"))):
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(lock)


def _acquire_lock(lock: int, patience: float) -> bool:
    """Tries to take the lock for `patience` seconds. Returns whether it succeeded."""
    until = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(PAUSE)
        else:
            return True
