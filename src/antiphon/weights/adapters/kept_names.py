"""The names of adapters that last over a restart. They are in a file of the registry, next to the adapters'
files.

Servers that share a registry share the names: each change reads the file under a lock, changes one name, and
replaces the file. Under the lock, a name is added only if its file exists, and a file is removed only if no
name refers to it. A name contains a fingerprint of the base model, because an adapter is useless with other
weights of the same shapes."""

import asyncio
import errno
import fcntl
import glob
import hashlib
import logging
import os
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from antiphon.domain.models import Adapter, KeptName, NameChange
from antiphon.domain.values import Struct, replace
from antiphon.processes.ipc import FrameError, from_line, to_line
from antiphon.telemetry.logs import record
from antiphon.weights.adapters.adapter_store import GGUF_SUFFIX, PEFT_SUFFIX

NAMES, LOCK, DAMAGED = "names.json", "names.lock", "names.damaged"
CHANGES_LOCK = "changes.lock"
"""Files of the registry. `names.lock` is locked while `names.json` or an adapter's file changes,
`changes.lock` during a whole load or unload."""

LOCK_PAUSE_S = 0.02
"""Seconds between attempts to lock `changes.lock`. The attempts do not block, so that a waiting caller can be
cancelled."""

SAMPLES = 16
SAMPLE_BYTES = 1 << 16
"""The number and size of the samples of a model's file for its fingerprint. Further training of a model
changes them."""


SPLIT = re.compile(r"(.+)-\d{5}-of-(\d{5})\.gguf")
"""The name of one part of a split model."""


class KeptNamesFile(Struct, frozen=True):
    """The stored names of a registry. Every method blocks, except `hold_changes`."""

    registry: Path
    stores_names: bool = True
    """Whether names are stored. If not, only files are removed."""

    def read(self) -> tuple[KeptName, ...]:
        """Returns the names, the oldest first. Logs a file that cannot be read, and returns no names."""
        try:
            return self._load() if self.stores_names else ()
        except (OSError, FrameError) as problem:
            record("adapter_names_unreadable", logging.WARNING, problem=str(problem))
            return ()

    def _load(self) -> tuple[KeptName, ...]:
        """Returns the names. Raises OSError and FrameError."""
        try:
            content = (self.registry / NAMES).read_bytes()
        except FileNotFoundError:
            return ()
        return from_line(content, tuple[KeptName, ...])

    def apply(self, change: NameChange) -> None:
        """Adds or removes one name. Replaces a names file that cannot be decoded, and renames the old one.
        Raises OSError, also if the adapter's file is missing."""
        with self._hold_lock():
            if change.kept is not None and not self._build_file_path(change.kept.entry.adapter).exists():
                raise FileNotFoundError(errno.ENOENT, "the adapter's file is gone; load it again")
            if not self.stores_names:
                return
            path = self.registry / NAMES
            try:
                names = self._load()
            except FrameError:
                path.replace(self.registry / DAMAGED)
                names = ()
            names_by_key = {name.entry.key: name for name in names}
            names_by_key.pop(change.key, None)
            if change.kept is not None:
                names_by_key[change.key] = change.kept
            elif len(names_by_key) == len(names):
                return
            _replace_file(path, to_line(tuple(names_by_key.values())))

    def find_obstacle(self, adapter: Adapter) -> str | None:
        """Returns why the adapter's file cannot be used; None if it can be used."""
        path = self._build_file_path(adapter)
        try:
            size = path.stat().st_size
        except OSError as problem:
            return f"its file {path.name} is not in the registry: {problem.strerror}"
        if size != adapter.size:
            return f"its file {path.name} in the registry has {size:,} bytes instead of {adapter.size:,}"
        return None

    def locate(self, adapter: Adapter) -> Adapter:
        """Returns the adapter with the path of its file in this registry. The registry can have moved since
        the name was stored."""
        return replace(adapter, path=str(self._build_file_path(adapter)))

    def remove_file(self, digest: str) -> None:
        """Removes an adapter's file unless a stored name refers to it. Names of other servers count even if
        this server stores none. The lock prevents other servers from adding a name meanwhile."""
        with suppress(OSError, FrameError), self._hold_lock():
            if all(kept_name.entry.adapter.digest != digest for kept_name in self._load()):
                for suffix in (GGUF_SUFFIX, PEFT_SUFFIX):
                    (self.registry / f"{digest}{suffix}").unlink(missing_ok=True)

    def _build_file_path(self, adapter: Adapter) -> Path:
        suffix = PEFT_SUFFIX if adapter.path.endswith(PEFT_SUFFIX) else GGUF_SUFFIX
        return self.registry / f"{adapter.digest}{suffix}"

    @asynccontextmanager
    async def hold_changes(self) -> AsyncIterator[None]:
        """Prevents changes by other processes of the registry until the block ends. The system releases the
        lock of a process that dies. Raises OSError."""
        lock = self._open_lock(CHANGES_LOCK)
        try:
            while True:
                with suppress(BlockingIOError):
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                await asyncio.sleep(LOCK_PAUSE_S)
            yield
        finally:
            os.close(lock)

    @contextmanager
    def _hold_lock(self) -> Iterator[None]:
        """Prevents changes of the names and files by other servers until the block ends. Raises OSError."""
        lock = self._open_lock(LOCK)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _open_lock(self, name: str) -> int:
        """Opens a lock file of the registry. Raises OSError."""
        self.registry.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(self.registry / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _replace_file(path: Path, content: bytes) -> None:
    """Replaces a file atomically, and waits until it is on the disk. Raises OSError."""
    new_file = path.with_suffix(".new")
    with os.fdopen(os.open(new_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new_file.replace(path)


def compute_fingerprint(path: Path) -> str:
    """Returns a digest of a model: of the size and samples of each of its files. A model is a file, all parts
    of a split file, or all files of a directory. Returns an empty string if a file cannot be read."""
    digest = hashlib.sha256()
    try:
        for file in _list_files(path):
            _add_samples(file, digest)
    except OSError:
        return ""
    return digest.hexdigest()


def _list_files(path: Path) -> list[Path]:
    """Returns the files of a model. Raises OSError."""
    if path.is_dir():
        return sorted(file for file in path.iterdir() if file.is_file())
    if (split := SPLIT.fullmatch(path.name)) is None:
        return [path]
    return sorted(path.parent.glob(f"{glob.escape(split[1])}-?????-of-{split[2]}.gguf"))


def _add_samples(path: Path, digest: "hashlib._Hash") -> None:
    """Adds the size and samples of a file to the digest. Raises OSError."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        digest.update(b"%d" % size)
        for sample in range(SAMPLES):
            file.seek(max(0, size - SAMPLE_BYTES) * sample // (SAMPLES - 1))
            digest.update(file.read(SAMPLE_BYTES))
