"""Uploaded files that are not in the index yet. They stay on the disk when the process ends.

    <directory>/<id>.begun   the order of a file that is being stored; it reserves the file's bytes
    <directory>/<id>.data    the file
    <directory>/<id>.json    the order, which tells how to read the file; it is written last
    <directory>/<id>.note    why the document waits for its model
    <directory>/<id>.total   the number of chunks, once the file is split

An id is a digest of the table and the content, so equal files are stored once. The process that works on a
file holds a lock on it. The lock ends with the process.
"""

import errno
import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from antiphon.domain.values import Struct, asdict, replace
from antiphon.errors import KnowledgeLimitReached, KnowledgeUnavailable
from antiphon.retrieval.base import DocumentInput, IndexLimits, IndexUsage, SizeUnit
from antiphon.retrieval.knowledge import ChunkSizes

UPLOADS = "uploads"
"""The folder of uploaded files in the knowledge directory."""

DATA, ORDER, NOTE, TOTAL, BEGUN, PARTIAL = ".data", ".json", ".note", ".total", ".begun", ".part"

LONGEST_NOTE = 1000
"""The most characters of a note. Longer notes are cut."""

STALE_S = 3600.0
"""Seconds after which a file without an order is removed: its process died."""

SPLIT_VERSION = 1
"""The version of the rules that split files into chunks. Increment it when you change the rules."""


class Uploader(Struct, frozen=True):
    """The caller who uploaded a file. Its job runs with the current rights of this caller."""

    kind: str
    key: str
    project: str
    user: str | None


class UploadOrder(Struct, frozen=True):
    """The job to put one uploaded file into a knowledge table: the table, the file, and how to split it."""

    id: str
    table: str
    name: str
    media_type: str
    bytes: int
    digest: str
    """A digest of the content and of everything that changes its chunks."""
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
    """Returns a digest of the content and of everything that changes its chunks."""
    split_rules = json.dumps([SPLIT_VERSION, name, media_type, sizes.size, sizes.overlap, sizes.unit])
    return sha256(split_rules.encode() + b"\n" + sha256(content).digest()).hexdigest()


def make_id(project: str, table: str, digest: str) -> str:
    return sha256(json.dumps([project, table, digest]).encode()).hexdigest()[:32]


def _encode_order(order: UploadOrder) -> bytes:
    return json.dumps(asdict(order)).encode()


class UploadFolder:
    """The folder of all uploads. Methods take the id of an upload. They block."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._waiting: dict[str, UploadOrder] = {}
        """The orders that the last count found, by id. They do not change, so each is read once."""

    def get_path(self, upload_id: str) -> Path:
        return self._directory / (upload_id + DATA)

    def store(self, order: UploadOrder, content: bytes, stored_bytes: int, limits: IndexLimits) -> bool:
        """Reserves the bytes of a file, writes it to the disk, and completes its order. Does not overwrite
        files that exist. `stored_bytes`: what the project stores besides waiting files. Returns whether this
        call completed the order: if not, an earlier request did. Raises KnowledgeLimitReached if the project
        has no room, and KnowledgeUnavailable."""
        begun, complete = (self._directory / (order.id + suffix) for suffix in (BEGUN, ORDER))
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._reserve(order, stored_bytes, limits)
            try:
                self._write(self.get_path(order.id), content)
                return self._write(complete, _encode_order(order))
            finally:
                begun.unlink(missing_ok=True)
        except OSError as problem:
            reason = "is full" if problem.errno in (errno.ENOSPC, errno.EDQUOT) else "cannot be written"
            raise KnowledgeUnavailable(
                f"the disk of the knowledge tables {reason}, and the file was not stored: tell the operator",
                cause=problem.strerror,
            ) from None

    def _reserve(self, order: UploadOrder, stored_bytes: int, limits: IndexLimits) -> None:
        """Writes the order of a file that is being stored, so that it counts from now on, for every process.
        Raises KnowledgeLimitReached if the project has no room for the file."""
        folder = os.open(self._directory, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)  # excludes other reservations, also of other processes
            orders = self._list_waiting(order.project)
            if any(other.id == order.id for other in orders):
                return
            if len(orders) >= limits.waiting_files:
                raise KnowledgeLimitReached(
                    f"{limits.waiting_files:,} files of this project wait to be read, which is the most: "
                    "wait until some are ready, or remove some documents",
                    param="file",
                )
            waiting_bytes = sum(other.bytes for other in orders)
            if stored_bytes + waiting_bytes + order.bytes > limits.bytes:
                raise KnowledgeLimitReached(
                    f"the file has {order.bytes:,} bytes, and this project can keep {limits.bytes:,}: its "
                    f"tables have {stored_bytes:,}, and files that wait to be read {waiting_bytes:,}. Wait "
                    "until they are ready, remove some documents, or ask the operator for a higher limit",
                    param="file",
                )
            self._write(self._directory / (order.id + BEGUN), _encode_order(order))
        finally:
            os.close(folder)

    def count_waiting(self, project: str) -> IndexUsage:
        """Returns the number and the bytes of the files of a project that are stored or being stored."""
        sizes = [order.bytes for order in self._list_waiting(project)]
        return IndexUsage(bytes=sum(sizes), waiting_files=len(sizes))

    def _list_waiting(self, project: str) -> list[UploadOrder]:
        """Returns the orders of a project's files that are stored or being stored."""
        known = self._waiting
        waiting: dict[str, UploadOrder] = {}
        with suppress(FileNotFoundError):
            for name in os.listdir(self._directory):
                id_, suffix = os.path.splitext(name)
                if suffix in (ORDER, BEGUN):
                    order = known.get(id_) or self.read_order(id_) or self.read_order(id_, BEGUN)
                    if order is not None:
                        waiting[id_] = order
        self._waiting = waiting
        return [order for order in waiting.values() if order.project == project]

    def _write(self, path: Path, content: bytes) -> bool:
        """Creates a file with its complete content, unless it exists. Returns whether it did not exist."""
        is_new = False
        partial = path.with_name(f"{path.name}.{secrets.token_hex(8)}{PARTIAL}")
        try:
            with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            with suppress(FileExistsError):
                os.link(partial, path)
                is_new = True
        finally:
            partial.unlink(missing_ok=True)
        folder = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return is_new

    def is_complete(self, upload_id: str) -> bool:
        """Whether the file and the order of an upload exist."""
        return (self._directory / (upload_id + ORDER)).exists()

    def list_orders(self) -> list[UploadOrder]:
        """Returns the orders of complete uploads, the oldest first. Also removes incomplete uploads that are
        older than STALE_S."""
        try:
            paths = sorted(self._directory.iterdir(), key=lambda path: path.name)
        except FileNotFoundError:
            return []
        complete_ids = {path.stem for path in paths if path.suffix == ORDER}
        for path in paths:
            is_complete = path.stem in complete_ids and path.suffix in (ORDER, DATA, NOTE, TOTAL)
            if not is_complete and self._get_age(path) > STALE_S:
                with suppress(OSError):
                    path.unlink(missing_ok=True)
        dated = [(self._get_age(path), path.stem) for path in paths if path.suffix == ORDER]
        orders = [self.read_order(id_) for _, id_ in sorted(dated, reverse=True)]
        return [order for order in orders if order is not None]

    def read_order(self, upload_id: str, suffix: str = ORDER) -> UploadOrder | None:
        """Returns an order; None if it is missing or unreadable."""
        try:
            fields = json.loads((self._directory / (upload_id + suffix)).read_bytes())
            return replace(UploadOrder(**fields), uploader=Uploader(**fields["uploader"]))
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def write_note(self, upload_id: str, text: str) -> None:
        """Stores why a document waits. An empty text removes the note. Ignores errors of the disk."""
        path = self._directory / (upload_id + NOTE)
        with suppress(OSError):
            if text and self.is_complete(upload_id):
                path.write_text(text[:LONGEST_NOTE], "utf-8")
            else:
                path.unlink(missing_ok=True)

    def read_note(self, upload_id: str) -> str | None:
        """Returns why a document waits; None if there is no note."""
        try:
            return (self._directory / (upload_id + NOTE)).read_text("utf-8") or None
        except (OSError, ValueError):
            return None

    def write_total(self, upload_id: str, chunks: int) -> None:
        """Stores the number of chunks of a split file. Ignores errors of the disk."""
        with suppress(OSError):
            if self.is_complete(upload_id):
                (self._directory / (upload_id + TOTAL)).write_text(str(chunks), "ascii")

    def read_total(self, upload_id: str) -> int | None:
        """Returns the number of chunks of a file; None before the file is split."""
        try:
            return int((self._directory / (upload_id + TOTAL)).read_text("ascii"))
        except (OSError, ValueError):
            return None

    def remove(self, upload_id: str) -> None:
        """Removes the order, the notes and the file of an upload. The order is removed first, so that an
        interrupted removal leaves no order without a file. Ignores errors of the disk."""
        with suppress(OSError):
            (self._directory / (upload_id + ORDER)).unlink(missing_ok=True)
            (self._directory / (upload_id + NOTE)).unlink(missing_ok=True)
            (self._directory / (upload_id + TOTAL)).unlink(missing_ok=True)
            self.get_path(upload_id).unlink(missing_ok=True)

    @contextmanager
    def lock(self, upload_id: str) -> Iterator[UploadOrder | None]:
        """Locks an upload for this process and yields its order. Yields None if another process holds the
        lock, or if the upload is missing."""
        try:
            fd = os.open(self.get_path(upload_id), os.O_RDONLY)
        except OSError:
            yield None
            return
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                yield None
                return
            yield self.read_order(upload_id)
        finally:
            os.close(fd)

    def _get_age(self, path: Path) -> float:
        """Returns the seconds since a file was written; 0 if it is missing."""
        try:
            return time.time() - path.stat().st_mtime
        except OSError:
            return 0.0
