"""Directories that one process owns. Each contains a lock file, which the owner keeps locked while it lives.
A process that can take the lock can remove the directory, because the owner is dead."""

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
"""The name of the lock file."""

PAUSE_S = 0.01
"""Seconds between two attempts to take a lock."""


def create_locked_directory(base: Path, prefix: str) -> tuple[Path, int]:
    """Makes a new directory with mode 0700, and removes directories with the same prefix whose owners are
    dead. Returns the new directory, and the descriptor of its lock, which the caller must keep open."""
    remove_stale_directories(base, prefix)
    path = base / f"{prefix}{secrets.token_hex(4)}"
    return path, _create(path)


def remove_stale_directories(base: Path, prefix: str) -> None:
    """Removes the directories with this prefix whose owners are dead."""
    name_pattern = re.compile(re.escape(prefix) + "[0-9a-f]{8}")
    for path in base.glob(f"{prefix}*"):
        with suppress(OSError):
            if name_pattern.fullmatch(path.name) and path.lstat().st_uid == os.getuid():
                remove_unlocked(path, keeps_sockets=False, timeout_s=0)


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
    temporary_path = path.with_name(f".{path.name}")
    temporary_path.mkdir(mode=0o700)
    lock = os.open(temporary_path / LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    temporary_path.rename(path)
    return lock


def remove_unlocked(path: Path, *, keeps_sockets: bool, timeout_s: float) -> None:
    """Removes a directory if its lock becomes free within `timeout_s` seconds. `keeps_sockets`: whether a
    directory that still contains a socket is not removed."""
    lock = os.open(path / LOCK, os.O_RDWR | os.O_NOFOLLOW)
    try:
        if _acquire_lock(lock, timeout_s) and not (keeps_sockets and any(path.glob("*.sock"))):
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(lock)


def _acquire_lock(lock: int, timeout_s: float) -> bool:
    """Tries to take the lock for `timeout_s` seconds. Returns whether it took the lock. `lock`: the
    descriptor of the lock file."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(PAUSE_S)
        else:
            return True
