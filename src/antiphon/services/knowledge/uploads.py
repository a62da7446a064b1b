"""Files that were uploaded and are not read yet. They outlive the process, so that another one goes on.

    <directory>/<id>.data    the file
    <directory>/<id>.json    what to do with it; written last, so it is there once the file is complete
    <directory>/<id>.note    why it waits, for callers that look at its document

An id is a digest of the table and the content, so the same file is kept once. The process that works on a
file holds a lock on it, which ends with the process.
"""

import errno
import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path

from antiphon.errors import KnowledgeUnavailable
from antiphon.retrieval.base import DocumentInput, SizeUnit
from antiphon.retrieval.knowledge import ChunkSizes

UPLOADS = "uploads"
"""The folder of uploaded files in the knowledge directory."""

DATA, ORDER, NOTE, PARTIAL = ".data", ".json", ".note", ".part"

LONGEST_NOTE = 1000
"""Characters of a note that are kept."""

STALE_S = 3600.0
"""Seconds after which a file without its order is left over from a process that died."""

VERSION = 1
"""The number of the rules that make chunks of a file. Change it with the rules."""


@dataclass(frozen=True, slots=True)
class Uploader:
    """Whoever uploaded a file, as far as it must be known to go on as the same."""

    kind: str
    key: str
    project: str
    user: str | None


@dataclass(frozen=True, slots=True)
class UploadOrder:
    """What to do with an uploaded file."""

    id: str
    table: str
    name: str
    media_type: str
    bytes: int
    digest: str
    """Names the content and everything that changes its chunks."""
    size: int
    overlap: int
    unit: str
    uploader: Uploader
    request_id: str

    @property
    def project(self) -> str:
        return self.uploader.project

    @property
    def sizes(self) -> ChunkSizes:
        return ChunkSizes(self.size, self.overlap, SizeUnit(self.unit))

    @property
    def document(self) -> DocumentInput:
        return DocumentInput(self.name, self.digest, self.media_type, self.bytes)


def digest_upload(content: bytes, name: str, media_type: str, sizes: ChunkSizes) -> str:
    """Returns the name of a content and of everything that changes its chunks."""
    rules = json.dumps([VERSION, name, media_type, sizes.size, sizes.overlap, sizes.unit])
    return sha256(rules.encode() + b"\n" + sha256(content).digest()).hexdigest()


def make_id(project: str, table: str, digest: str) -> str:
    """Returns the id of an upload."""
    return sha256(json.dumps([project, table, digest]).encode()).hexdigest()[:32]


class UploadFolder:
    """The folder of all uploads. Its methods block."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def get_path(self, upload: str) -> Path:
        """The path of an upload's file."""
        return self._directory / (upload + DATA)

    def keep(self, order: UploadOrder, content: bytes) -> None:
        """Writes a file and its order to the disk. Changes nothing where they are there. Raises
        KnowledgeUnavailable."""
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._write(self.get_path(order.id), content)
            self._write(self._directory / (order.id + ORDER), json.dumps(asdict(order)).encode())
        except OSError as problem:
            reason = "is full" if problem.errno in (errno.ENOSPC, errno.EDQUOT) else "cannot be written"
            raise KnowledgeUnavailable(
                f"the disk of the knowledge tables {reason}, and nothing was kept: tell the operator",
                cause=problem.strerror,
            ) from None

    def _write(self, path: Path, content: bytes) -> None:
        """Makes a file with its whole content, unless it is there."""
        partial = path.with_name(f"{path.name}.{secrets.token_hex(8)}{PARTIAL}")
        try:
            with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            with suppress(FileExistsError):
                os.link(partial, path)
        finally:
            partial.unlink(missing_ok=True)
        folder = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def has(self, upload: str) -> bool:
        """Whether an upload is there, complete."""
        return (self._directory / (upload + ORDER)).exists()

    def list_orders(self) -> list[UploadOrder]:
        """Returns the orders of complete uploads, the oldest first, and removes what dead processes left."""
        try:
            found = sorted(self._directory.iterdir(), key=lambda path: path.name)
        except FileNotFoundError:
            return []
        self._sweep(found)
        dated = [(self._get_age(path), path.stem) for path in found if path.suffix == ORDER]
        orders = [self.read(id_) for _, id_ in sorted(dated, reverse=True)]
        return [order for order in orders if order is not None]

    def read(self, upload: str) -> UploadOrder | None:
        """Returns an order; None where it is gone or cannot be read."""
        try:
            fields = json.loads((self._directory / (upload + ORDER)).read_bytes())
            return replace(UploadOrder(**fields), uploader=Uploader(**fields["uploader"]))
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def write_note(self, upload: str, text: str) -> None:
        """Keeps why an upload waits; an empty text removes the note. A failure is no error."""
        path = self._directory / (upload + NOTE)
        with suppress(OSError):
            if text and self.has(upload):
                path.write_text(text[:LONGEST_NOTE], "utf-8")
            else:
                path.unlink(missing_ok=True)

    def read_note(self, upload: str) -> str | None:
        """Returns why an upload waits; None where it does not."""
        try:
            return (self._directory / (upload + NOTE)).read_text("utf-8") or None
        except (OSError, ValueError):
            return None

    def remove(self, upload: str) -> None:
        """Removes an upload, its order first."""
        with suppress(OSError):
            (self._directory / (upload + ORDER)).unlink(missing_ok=True)
            (self._directory / (upload + NOTE)).unlink(missing_ok=True)
            self.get_path(upload).unlink(missing_ok=True)

    @contextmanager
    def lock(self, upload: str) -> Iterator[UploadOrder | None]:
        """Yields the order while this process alone works on it; None if another one does, or if it is
        done."""
        try:
            fd = os.open(self.get_path(upload), os.O_RDONLY)
        except OSError:
            yield None
            return
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                yield None
                return
            yield self.read(upload)
        finally:
            os.close(fd)

    def _sweep(self, found: list[Path]) -> None:
        """Removes incomplete files that nobody writes any more."""
        orders = {path.stem for path in found if path.suffix == ORDER}
        for path in found:
            is_whole = path.suffix == ORDER or (path.suffix in (DATA, NOTE) and path.stem in orders)
            if not is_whole and self._get_age(path) > STALE_S:
                with suppress(OSError):
                    path.unlink(missing_ok=True)

    def _get_age(self, path: Path) -> float:
        """Returns the seconds since a file was written; 0 for one that is gone."""
        try:
            return time.time() - path.stat().st_mtime
        except OSError:
            return 0.0
