"""The names of adapters that last over a restart, in a file of the registry beside the adapters' files.

Servers that share a registry share the names: each change reads the file under a lock, changes one name, and
replaces the file. A name is kept only while its file is there, and a file is removed only if no kept name has
it; both are checked under that lock. A name is kept with a fingerprint of its base model, since an adapter
computes nonsense with other weights of the same shapes.
"""

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
from dataclasses import dataclass, replace
from pathlib import Path

from antiphon.domain.models import Adapter, KeptName, NameChange
from antiphon.processes.ipc import FrameError, from_line, to_line
from antiphon.telemetry.logs import record
from antiphon.weights.adapters.registry import GGUF_SUFFIX, PEFT_SUFFIX

NAMES, LOCK, DAMAGED = "names.json", "names.lock", "names.damaged"
CHANGES_LOCK = "changes.lock"
"""Files of the registry. The first lock is held while `names.json` or a file changes, the second one during a
whole load or unload."""

LOCK_PAUSE_S = 0.02
"""Seconds between attempts to take the lock of changes, so that a caller who leaves stops waiting."""

SAMPLES = 16
SAMPLE_BYTES = 1 << 16
"""Parts of a model's file that its fingerprint covers: any other training of a model changes them."""


SPLIT = re.compile(r"(.+)-\d{5}-of-(\d{5})\.gguf")
"""The name of one part of a split model."""


@dataclass(frozen=True, slots=True)
class KeptNamesFile:
    """The names of a registry. Every method blocks, except `hold_changes`."""

    registry: Path
    is_on: bool = True
    """Whether names are kept. If not, only files are removed."""

    def read(self) -> tuple[KeptName, ...]:
        """Returns the names, the oldest first. A file that cannot be read is logged, and counts as empty."""
        try:
            return self._load() if self.is_on else ()
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
        """Keeps or removes one name. A file that cannot be decoded is set aside first. Raises OSError, also
        if the adapter's file is gone."""
        with self._hold_lock():
            if change.kept is not None and not self._find_file(change.kept.entry.adapter).exists():
                raise FileNotFoundError(errno.ENOENT, "the adapter's file is gone; load it again")
            if not self.is_on:
                return
            path = self.registry / NAMES
            try:
                names = self._load()
            except FrameError:
                path.replace(self.registry / DAMAGED)
                names = ()
            by_key = {each.entry.key: each for each in names}
            by_key.pop(change.key, None)
            if change.kept is not None:
                by_key[change.key] = change.kept
            elif len(by_key) == len(names):
                return
            _replace_file(path, to_line(tuple(by_key.values())))

    def find_obstacle(self, adapter: Adapter) -> str | None:
        """Says why the adapter's file cannot be used; None if it can."""
        path = self._find_file(adapter)
        try:
            size = path.stat().st_size
        except OSError as problem:
            return f"its file {path.name} is not in the registry: {problem.strerror}"
        if size != adapter.size:
            return f"its file {path.name} in the registry has {size:,} bytes instead of {adapter.size:,}"
        return None

    def locate(self, adapter: Adapter) -> Adapter:
        """Returns the adapter with the path of its file in this registry, which may have moved."""
        return replace(adapter, path=str(self._find_file(adapter)))

    def remove_file(self, digest: str) -> None:
        """Removes the file of an adapter that no kept name has. Names of other servers count even if this
        one keeps none. They are locked meanwhile, so no server of the registry begins to use the file."""
        with suppress(OSError, FrameError), self._hold_lock():
            if all(kept.entry.adapter.digest != digest for kept in self._load()):
                for suffix in (GGUF_SUFFIX, PEFT_SUFFIX):
                    (self.registry / f"{digest}{suffix}").unlink(missing_ok=True)

    def _find_file(self, adapter: Adapter) -> Path:
        suffix = PEFT_SUFFIX if adapter.path.endswith(PEFT_SUFFIX) else GGUF_SUFFIX
        return self.registry / f"{adapter.digest}{suffix}"

    @asynccontextmanager
    async def hold_changes(self) -> AsyncIterator[None]:
        """Excludes changes of every other process of the registry until the block ends. The system frees the
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
        """Excludes other servers of the registry until the block ends. Raises OSError."""
        lock = self._open_lock(LOCK)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _open_lock(self, name: str) -> int:
        """Opens a lock's file in the registry. Raises OSError."""
        self.registry.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(self.registry / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _replace_file(path: Path, content: bytes) -> None:
    """Replaces a file in one step that survives a power failure. Raises OSError."""
    new = path.with_suffix(".new")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def compute_fingerprint(path: Path) -> str:
    """Returns a digest of a model: of the size of each of its files, and of parts all over them. A model is a
    file, all parts of a split file, or all files of a directory. Returns an empty text if one cannot be
    read."""
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
        return sorted(each for each in path.iterdir() if each.is_file())
    if (split := SPLIT.fullmatch(path.name)) is None:
        return [path]
    return sorted(path.parent.glob(f"{glob.escape(split[1])}-?????-of-{split[2]}.gguf"))


def _add_samples(path: Path, digest: "hashlib._Hash") -> None:
    """Adds a file's size and samples of its content. Raises OSError."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        digest.update(b"%d" % size)
        for sample in range(SAMPLES):
            file.seek(max(0, size - SAMPLE_BYTES) * sample // (SAMPLES - 1))
            digest.update(file.read(SAMPLE_BYTES))
