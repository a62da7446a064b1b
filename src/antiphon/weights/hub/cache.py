"""The cache of downloaded model files on this machine. It sends no request, and stores nothing in memory.

    OWNER/REPO/files/DIGEST/NAME.gguf            a file; the digest is the hub's checksum
    OWNER/REPO/files/DIGEST/NAME.gguf.partial    an incomplete download
    OWNER/REPO/files/DIGEST/lock                 locked by the process that downloads the file
    OWNER/REPO/refs/REVISION/FILE.gguf           one line: the commit and the checksum

Each file has its own reference, so a new version in the repository removes no downloaded file. The cache has
no symbolic links, and refuses to follow one.
"""

import fcntl
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from urllib.parse import quote, unquote

from antiphon.domain.values import Struct
from antiphon.errors import ModelFetchError
from antiphon.weights.hub.reference import ENDING, Reference

VARIABLE = "ANTIPHON_HUB_CACHE"
FILES, REFS, LOCK, PARTIAL = "files", "refs", "lock", ".partial"

DIGEST = re.compile(r"[0-9a-f]{64}|[0-9a-f]{40}")
"""SHA-256 of a large file, or git's SHA-1 of a small one."""

RECORD = re.compile(rf"([0-9a-f]{{40}}) ({DIGEST.pattern})\n")


def get_default_directory(environ: Mapping[str, str], home: Path, platform: str) -> Path:
    """Returns `models` in ANTIPHON_HOME, or in the platform's cache directory."""
    if home_directory := environ.get("ANTIPHON_HOME"):
        return Path(home_directory) / "models"
    caches = home / ("Library/Caches" if platform == "darwin" else ".cache")
    if platform != "darwin" and os.path.isabs(xdg := environ.get("XDG_CACHE_HOME", "")):
        caches = Path(xdg)
    return caches / "antiphon" / "models"


def find_cache(configured: str | None) -> "HubCache":
    """Returns the cache of fetched models: the configured directory, or the default one."""
    if configured:
        return HubCache(Path(configured).expanduser().absolute())
    return HubCache(get_default_directory(os.environ, Path.home(), sys.platform).absolute())


class CachedFile(Struct, frozen=True):
    """A complete file in the cache."""

    reference: Reference
    commit: str
    digest: str
    path: Path
    size: int
    """Bytes."""


class Leftover(Struct, frozen=True):
    """A file without a reference: an incomplete download or an old version."""

    repository: str
    path: Path
    size: int

    @property
    def is_partial(self) -> bool:
        return self.path.suffix == PARTIAL


class HubCache:
    """A directory of downloaded files."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def find(self, reference: Reference) -> CachedFile | None:
        """Returns the file to which the reference resolved at its last download; None if it was never
        downloaded. Raises ModelFetchError if the cache cannot be read."""
        with self._translate_errors():
            record = self._get_record_path(reference)
            match = RECORD.fullmatch(record.read_text("ascii", "replace")) if record.is_file() else None
            path = self.build_file_path(reference, match[2]) if match else None
            if match is None or path is None or not path.is_file():
                return None
            return CachedFile(reference, match[1], match[2], path, path.stat().st_size)

    def build_file_path(self, reference: Reference, digest: str) -> Path:
        """Returns the path of the file with this checksum."""
        name = PurePosixPath(reference.file).name
        return self._join_path(*reference.repository.split("/"), FILES, digest, name)

    def build_partial_path(self, reference: Reference, digest: str) -> Path:
        """Returns the path of the incomplete file during its download."""
        path = self.build_file_path(reference, digest)
        return self._join_path(*path.parent.relative_to(self.root).parts, path.name + PARTIAL)

    def add_reference(self, reference: Reference, commit: str, digest: str) -> CachedFile:
        """Records that the reference and the commit resolve to this file. The file must exist at its path."""
        for revision in {reference.revision, commit}:
            record = self._get_record_path(Reference(reference.repository, reference.file, revision))
            record.parent.mkdir(parents=True, exist_ok=True)
            _write_atomically(record, f"{commit} {digest}\n")
        path = self.build_file_path(reference, digest)
        return CachedFile(reference, commit, digest, path, path.stat().st_size)

    def count_free_bytes(self) -> int:
        """Returns the free bytes on the cache's disk."""
        parent = next(parent for parent in (self.root, *self.root.parents) if parent.exists())
        return shutil.disk_usage(parent).free

    @contextmanager
    def lock(self, reference: Reference, digest: str) -> Iterator[None]:
        """Creates the file's folder, and locks it until the block ends. Other processes wait."""
        folder = self.build_file_path(reference, digest).parent
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def list_files(self) -> list[CachedFile]:
        """Lists complete files by reference. A file is listed by its commit only if no branch or tag refers
        to it."""
        entries = [entry for reference in self._list_references() if (entry := self.find(reference))]
        unpinned = {
            (entry.reference.repository, entry.reference.file, entry.commit)
            for entry in entries
            if not entry.reference.is_pinned
        }
        return [
            entry
            for entry in entries
            if not entry.reference.is_pinned
            or (entry.reference.repository, entry.reference.file, entry.commit) not in unpinned
        ]

    def list_leftovers(self) -> list[Leftover]:
        """Lists the files to which no reference resolves."""
        finished_paths = {
            entry.path for reference in self._list_references() if (entry := self.find(reference))
        }
        with self._translate_errors():
            unfinished = [
                self._join_path(*path.relative_to(self.root).parts)
                for path in sorted(self.root.glob(f"*/*/{FILES}/*/*"))
                if path.name != LOCK and path not in finished_paths
            ]
            return [
                Leftover("/".join(path.relative_to(self.root).parts[:2]), path, path.stat().st_size)
                for path in unfinished
            ]

    def remove(self, entry: CachedFile) -> None:
        """Removes the reference and its commit. Removes the file unless another reference resolves to it."""
        for revision in (entry.reference.revision, entry.commit):
            record = self._get_record_path(
                Reference(entry.reference.repository, entry.reference.file, revision)
            )
            record.unlink(missing_ok=True)
            self._remove_empty_folders(record.parent)
        if not any(other.path == entry.path for other in map(self.find, self._list_references()) if other):
            self._remove_file(entry.path)

    def clear(self, repository: str) -> int:
        """Removes the leftovers of a repository, except files that a process downloads now. Returns the
        number of removed bytes."""
        leftovers = [leftover for leftover in self.list_leftovers() if leftover.repository == repository]
        return sum(leftover.size for leftover in leftovers if self._remove_idle_file(leftover.path))

    def _get_record_path(self, reference: Reference) -> Path:
        """Returns the path of the small file with the commit and checksum of a reference."""
        revision = quote(reference.revision, safe="")
        return self._join_path(*reference.repository.split("/"), REFS, revision, *reference.file.split("/"))

    def _list_references(self) -> Iterator[Reference]:
        """Yields all references in the cache."""
        for folder in sorted(self.root.glob(f"*/*/{REFS}/*")):
            owner, name, _, revision = folder.relative_to(self.root).parts
            records = (path for path in folder.rglob("*") if path.suffix.lower() == ENDING and path.is_file())
            for record in sorted(records):
                yield Reference(f"{owner}/{name}", record.relative_to(folder).as_posix(), unquote(revision))

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Translates the system's errors to a ModelFetchError."""
        try:
            yield
        except OSError as problem:
            raise ModelFetchError(
                f"cannot read the model cache {self.root}: {os.strerror(problem.errno or 0)}; correct its "
                f"permissions, or set {VARIABLE} to another directory"
            ) from None

    def _join_path(self, *parts: str) -> Path:
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

    def _remove_file(self, path: Path) -> None:
        """Removes a file, and its folder if the folder contains no other file."""
        path.unlink(missing_ok=True)
        if not any(other.name != LOCK for other in path.parent.iterdir()):
            (path.parent / LOCK).unlink(missing_ok=True)
            self._remove_empty_folders(path.parent)

    def _remove_idle_file(self, path: Path) -> bool:
        """Removes the file unless a process downloads it. Returns whether the file was removed."""
        descriptor = os.open(path.parent / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._remove_file(path)
        except BlockingIOError:
            return False
        finally:
            os.close(descriptor)
        return True

    def _remove_empty_folders(self, folder: Path) -> None:
        """Removes empty folders, from this one up to the root."""
        while folder != self.root and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
            folder = folder.parent


def _write_atomically(path: Path, text: str) -> None:
    """Writes a small file atomically."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, suffix=".new")
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(text)
    os.replace(name, path)
