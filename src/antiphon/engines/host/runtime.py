"""The short directory that contains the sockets of one running server.

The supervisor owns the directory and keeps a lock in it while the supervisor lives. Any process that can take
the lock may remove the directory: the last child that ends after the supervisor was killed, or the next
supervisor at its start.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from antiphon.errors import SettingsError
from antiphon.locked_directory import create_locked_directory, remove_unlocked

DIRECTORY_PREFIX = "antiphon-"

LOCK_PATIENCE = 1.0
"""Seconds that an ending child waits for the lock. A killed supervisor closes its pipes before its files, and
other children end at the same moment."""

SHORT_DIRECTORY = "/tmp"  # noqa: S108 - the directory inside it has mode 0700
"""The directory to use if the paths of the configured ones are too long."""

LONGEST_PATH = 100
"""The most bytes of a socket's path: the kernel allows 108 (104 on other systems), including the final
zero."""


@contextmanager
def create_runtime_directory(base: Path | None = None) -> Iterator[Path]:
    """Makes a new directory with mode 0700, locked while the context lasts and removed afterwards. First
    removes the directories of supervisors that were killed."""
    base = base or find_usable_base(
        [os.environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), SHORT_DIRECTORY]
    )
    path, lock = create_locked_directory(base, DIRECTORY_PREFIX)
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
    """The path of the knowledge process's socket."""
    return str(runtime / "knowledge")


def remove_unused_directory(runtime: Path) -> None:
    """Removes the directory if no socket is left in it. A child whose supervisor is gone calls this after the
    child removed its own socket."""
    with suppress(OSError):
        remove_unlocked(runtime, keeps_sockets=True, timeout_s=LOCK_PATIENCE)


def find_usable_base(directories: Sequence[str]) -> Path:
    """The first writable directory in which socket paths are short enough. Raises SettingsError."""
    for directory in filter(None, directories):
        longest_path = Path(directory) / f"{DIRECTORY_PREFIX}{'0' * 8}" / "0000.sock"
        if len(os.fsencode(longest_path)) <= LONGEST_PATH and os.access(directory, os.W_OK | os.X_OK):
            return Path(directory)
    raise SettingsError(
        f"no directory for the engine's sockets: none of {', '.join(filter(None, directories))} can be used; "
        "set XDG_RUNTIME_DIR to a writable directory with a short path"
    )
