"""The cache of fetched model files on this machine. It asks nobody, and keeps nothing in memory.

    OWNER/REPO/files/DIGEST/NAME.gguf            a file, under the checksum that the hub gives it
    OWNER/REPO/files/DIGEST/NAME.gguf.partial    the part of it that has arrived
    OWNER/REPO/files/DIGEST/lock                 held by the process that fetches it
    OWNER/REPO/refs/REVISION/FILE.gguf           one line: the commit and the checksum it means

Each file has its own reference, so a new version in the repository takes no fetched file away. The cache has
no symbolic links, and refuses one instead of following it.
"""

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import quote, unquote

from antiphon.errors import ModelFetchError
from antiphon.weights.hub.reference import ENDING, Reference

VARIABLE = "ANTIPHON_HUB_CACHE"
FILES, REFS, LOCK, PARTIAL = "files", "refs", "lock", ".partial"

DIGEST = re.compile(r"[0-9a-f]{64}|[0-9a-f]{40}")
"""SHA-256 of a large file, or git's SHA-1 of a small one."""

RECORD = re.compile(rf"([0-9a-f]{{40}}) ({DIGEST.pattern})\n")


def default_directory(environ: Mapping[str, str], home: Path, platform: str) -> Path:
    """Returns `models` in ANTIPHON_HOME, or in the platform's cache directory."""
    if chosen := environ.get("ANTIPHON_HOME"):
        return Path(chosen) / "models"
    caches = home / ("Library/Caches" if platform == "darwin" else ".cache")
    if platform != "darwin" and os.path.isabs(xdg := environ.get("XDG_CACHE_HOME", "")):
        caches = Path(xdg)
    return caches / "antiphon" / "models"


@dataclass(frozen=True, slots=True)
class CachedFile:
    """A complete file in the cache."""

    reference: Reference
    commit: str
    digest: str
    path: Path
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """A file without a reference: a download that was cut, or an old version."""

    repository: str
    path: Path
    size: int

    @property
    def is_partial(self) -> bool:
        return self.path.suffix == PARTIAL


class HubCache:
    """One directory of fetched files."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def find(self, reference: Reference) -> CachedFile | None:
        """Returns the file that the reference named when it was last fetched; None if it was never fetched.
        Raises ModelFetchError if the cache cannot be read."""
        with self._readable():
            record = self._record(reference)
            match = RECORD.fullmatch(record.read_text("ascii", "replace")) if record.is_file() else None
            path = self.place(reference, match[2]) if match else None
            if match is None or path is None or not path.is_file():
                return None
            return CachedFile(reference, match[1], match[2], path, path.stat().st_size)

    def place(self, reference: Reference, digest: str) -> Path:
        """Returns the path of the file with that checksum."""
        name = PurePosixPath(reference.file).name
        return self._path(*reference.repository.split("/"), FILES, digest, name)

    def partial(self, reference: Reference, digest: str) -> Path:
        """Returns the path at which the file is written until it is complete and checked."""
        path = self.place(reference, digest)
        return self._path(*path.parent.relative_to(self.root).parts, path.name + PARTIAL)

    def keep(self, reference: Reference, commit: str, digest: str) -> CachedFile:
        """Records that the reference and the commit resolve to this file. The file must exist at its
        `place`."""
        for revision in {reference.revision, commit}:
            record = self._record(Reference(reference.repository, reference.file, revision))
            record.parent.mkdir(parents=True, exist_ok=True)
            _write(record, f"{commit} {digest}\n")
        path = self.place(reference, digest)
        return CachedFile(reference, commit, digest, path, path.stat().st_size)

    def free(self) -> int:
        """Returns the bytes that can still be written."""
        parent = next(parent for parent in (self.root, *self.root.parents) if parent.exists())
        return shutil.disk_usage(parent).free

    @contextmanager
    def lock(self, reference: Reference, digest: str) -> Iterator[None]:
        """Makes the file's folder and locks it; other processes wait."""
        folder = self.place(reference, digest).parent
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def entries(self) -> list[CachedFile]:
        """Lists complete files by reference. A file is listed by its commit only if no branch or tag names
        it."""
        entries = [entry for reference in self._references() if (entry := self.find(reference))]
        by_path = {
            (entry.reference.repository, entry.reference.file, entry.commit)
            for entry in entries
            if not entry.reference.is_pinned
        }
        return [
            entry
            for entry in entries
            if not entry.reference.is_pinned
            or (entry.reference.repository, entry.reference.file, entry.commit) not in by_path
        ]

    def leftovers(self) -> list[Leftover]:
        """Lists files that no reference names."""
        finished_paths = {entry.path for reference in self._references() if (entry := self.find(reference))}
        with self._readable():
            unfinished = [
                self._path(*path.relative_to(self.root).parts)
                for path in sorted(self.root.glob(f"*/*/{FILES}/*/*"))
                if path.name != LOCK and path not in finished_paths
            ]
            return [
                Leftover("/".join(path.relative_to(self.root).parts[:2]), path, path.stat().st_size)
                for path in unfinished
            ]

    def remove(self, entry: CachedFile) -> None:
        """Forgets the reference and its commit, and removes the file unless another reference names it."""
        for revision in (entry.reference.revision, entry.commit):
            record = self._record(Reference(entry.reference.repository, entry.reference.file, revision))
            record.unlink(missing_ok=True)
            self._prune(record.parent)
        if not any(other.path == entry.path for other in map(self.find, self._references()) if other):
            self._drop(entry.path)

    def clear(self, repository: str) -> int:
        """Removes the repository's files that no reference names and no process is fetching. Returns the
        number of removed bytes."""
        gone = [leftover for leftover in self.leftovers() if leftover.repository == repository]
        return sum(leftover.size for leftover in gone if self._drop_idle(leftover.path))

    def _record(self, reference: Reference) -> Path:
        """Returns the path of the small file that says which file a reference names."""
        revision = quote(reference.revision, safe="")
        return self._path(*reference.repository.split("/"), REFS, revision, *reference.file.split("/"))

    def _references(self) -> Iterator[Reference]:
        """Yields all references in the cache."""
        for folder in sorted(self.root.glob(f"*/*/{REFS}/*")):
            owner, name, _, revision = folder.relative_to(self.root).parts
            records = (path for path in folder.rglob("*") if path.suffix.lower() == ENDING and path.is_file())
            for record in sorted(records):
                yield Reference(f"{owner}/{name}", record.relative_to(folder).as_posix(), unquote(revision))

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """Turns the system's errors inside the block into a ModelFetchError."""
        try:
            yield
        except OSError as problem:
            raise ModelFetchError(
                f"cannot read the model cache {self.root}: {os.strerror(problem.errno or 0)}; mend its "
                f"permissions, or set {VARIABLE} to another directory"
            ) from None

    def _path(self, *parts: str) -> Path:
        """Returns a path below the root. Raises ModelFetchError if a part of the path is a link."""
        path = self.root
        for part in parts:
            path /= part
            if path.is_symlink():
                raise ModelFetchError(
                    f"{path} is a symbolic link, and the model cache has none of its own; remove it, or set "
                    f"{VARIABLE} to another directory"
                )
        return path

    def _drop(self, path: Path) -> None:
        """Removes a file, and its folder if the folder contains no other file."""
        path.unlink(missing_ok=True)
        if not any(other.name != LOCK for other in path.parent.iterdir()):
            (path.parent / LOCK).unlink(missing_ok=True)
            self._prune(path.parent)

    def _drop_idle(self, path: Path) -> bool:
        """Removes the file unless a process is fetching it. Returns whether the file was removed."""
        descriptor = os.open(path.parent / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._drop(path)
        except BlockingIOError:
            return False
        finally:
            os.close(descriptor)
        return True

    def _prune(self, folder: Path) -> None:
        """Removes empty folders upwards, except the root."""
        while folder != self.root and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
            folder = folder.parent


def _write(path: Path, text: str) -> None:
    """Writes a small file atomically."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, suffix=".new")
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(text)
    os.replace(name, path)
