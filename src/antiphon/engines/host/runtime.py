"""The short directory that contains the sockets of one running server.

The supervisor owns the directory and keeps a lock in it while the supervisor lives. Any process that can take
the lock may remove the directory: the last child that ends after the supervisor was killed, or the next
supervisor at its start.
"""

import fcntl
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from antiphon.errors import SettingsError

PREFIX = "antiphon-"
NAME = re.compile(re.escape(PREFIX) + "[0-9a-f]{8}")
LOCK = "lock"

PATIENCE = 1.0
PAUSE = 0.01
"""Seconds that a leaving child waits for the lock. A killed process closes its pipes before its files, and
other children leave at the same moment."""

SHORTEST = "/tmp"  # noqa: S108 - what is made there is made 0700
"""Where to go when the configured places have long names."""

LONGEST_PATH = 100
"""The most bytes of a socket's path: the kernel allows 108 (104 on other systems), including the final
zero."""


@contextmanager
def create_runtime_directory(base: Path | None = None) -> Iterator[Path]:
    """Makes a new directory with mode 0700, locked while the context lasts and removed afterwards. It removes
    stale ones first."""
    base = base or find_usable_base([os.environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), SHORTEST])
    remove_stale_directories(base)
    path = base / f"{PREFIX}{secrets.token_hex(4)}"
    lock = _create(path)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def build_socket_path(runtime: Path, index: int) -> str:
    """The socket path of the engine host for the model with this index. Model names may be too long for
    paths, or contain slashes."""
    return str(runtime / f"{index}.sock")


def build_coordinator_path(runtime: Path) -> str:
    """The path of the coordinator's socket. Its name differs from the names of other sockets, because other
    processes may remove the directory while this socket exists."""
    return str(runtime / "coordinator")


def build_knowledge_path(runtime: Path) -> str:
    """The path of the knowledge process's socket, named as the coordinator's is."""
    return str(runtime / "knowledge")


def remove_stale_directories(base: Path) -> None:
    """Removes the directories of dead supervisors."""
    for path in base.glob(f"{PREFIX}*"):
        with suppress(OSError):
            if NAME.fullmatch(path.name) and path.lstat().st_uid == os.getuid():
                _remove(path, whole=True, patience=0)


def leave_directory(runtime: Path) -> None:
    """Removes the directory if no socket is left in it. A child whose supervisor is gone calls this after the
    child removed its own socket."""
    with suppress(OSError):
        _remove(runtime, whole=False, patience=PATIENCE)


def find_usable_base(places: Sequence[str]) -> Path:
    """The first writable directory in which socket paths are short enough. Raises SettingsError."""
    for directory in filter(None, places):
        longest = Path(directory) / f"{PREFIX}{'0' * 8}" / "0000.sock"
        if len(os.fsencode(longest)) <= LONGEST_PATH and os.access(directory, os.W_OK | os.X_OK):
            return Path(directory)
    raise SettingsError(
        f"no place for the engine's sockets: none of {', '.join(filter(None, places))} will do; "
        "set XDG_RUNTIME_DIR to a writable directory with a short path"
    )


def _create(path: Path) -> int:
    """Makes the directory and locks it before it gets its final name, so that no cleanup finds an unlocked
    directory. Returns the descriptor of the lock."""
    nascent = path.with_name(f".{path.name}")
    nascent.mkdir(mode=0o700)
    lock = os.open(nascent / LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    nascent.rename(path)
    return lock


def _remove(path: Path, *, whole: bool, patience: float) -> None:
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
