"""Backups of a server's own files. The server can run during a backup. A restore overwrites nothing.

    <backup>/manifest.json       format, version, revision of the database, digest of each file
    <backup>/database.db         SQLite's database
    <backup>/antiphon.dump       PostgreSQL's database, as pg_dump writes it; only if it was asked for
    <backup>/<name>/...          the files of each directory: home, spool, knowledge, adapters

SQLite's backup function copies each database, so a copy is consistent. The spool is copied before the
database. So a ledger entry that the server moves from the spool to the database during the backup is in both
copies, and is not lost. After a restore, the database adds it only once. The manifest is written last, so an
interrupted backup has none. Then the file LAST_BACKUP in the home directory gets the current time.
"""

import json
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from hashlib import file_digest
from pathlib import Path

import msgspec

import antiphon
from antiphon.domain.values import Struct, asdict
from antiphon.errors import StoreRefused
from antiphon.regular_files import open_regular
from antiphon.store.base import LAST_BACKUP

FORMAT = 1
MANIFEST = "manifest.json"
DATABASE = "database.db"
DUMP = "antiphon.dump"
SPOOL = "spool"
SQLITE_HEAD = b"SQLite format 3\0"
LOCK_SUFFIX = ".lock"
ADAPTERS = "adapters"
OWNER_ONLY = 0o600
"""The mode of restored files, and of incomplete copies. Their content can be secret."""
READABLE = 0o644
"""The most rights of a restored adapter: the user of the engines can have to read it."""
JOURNAL_SUFFIXES = ("-wal", "-shm", "-journal")
HOME_FILES = frozenset({"pepper", "admin.key", "antiphon.toml"})
"""The files of the home that are copied. Models can be downloaded again; the other files belong to a
running server."""


class BackupSources(Struct, frozen=True):
    """The paths of a server's own files. The settings determine them."""

    database: Path | None
    """SQLite's file; None for PostgreSQL."""
    revision: str | None
    """The revision of the database's schema."""
    home: Path
    directories: Mapping[str, Path]
    """Maps names in the backup to the other directories: spool, knowledge and adapters."""
    dump: Callable[[Path], None] | None = None
    """Writes a dump of PostgreSQL's database to a new file, and raises StoreRefused. None: no dump."""


class ManifestHead(Struct, frozen=True):
    """What every format of a manifest has."""

    format: int
    version: str


class Manifest(Struct, frozen=True):
    """The list of a backup's files, and the version that wrote them."""

    format: int
    version: str
    has_database: bool
    revision: str | None
    files: Mapping[str, str]
    """Maps each file's path in the backup to its SHA-256."""


class DatedManifest(Manifest, frozen=True):
    """A manifest with its time."""

    made: int
    """When the backup was complete, in Unix seconds."""


def write_backup(sources: BackupSources, folder: Path) -> Manifest:
    """Copies the files of a server into a new folder that only its owner can read. Raises StoreRefused."""
    try:
        folder.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        raise StoreRefused(f"{folder} exists already: name a new folder") from None
    except OSError as problem:
        raise StoreRefused(f"{folder} cannot be created: {problem.strerror}") from None
    try:
        names = sorted(sources.directories, key=lambda name: name != SPOOL)
        for name in names:
            _copy_directory(sources.directories[name], folder / name)
        has_database = sources.database is not None and sources.database.exists()
        if sources.database is not None and has_database:
            copy_database(sources.database, folder / DATABASE)
        if sources.dump is not None:
            sources.dump(folder / DUMP)
        for name in sorted(HOME_FILES):
            if (sources.home / name).is_file():
                copy_file(sources.home / name, folder / "home" / name)
        files = {str(path.relative_to(folder)): _digest(path) for path in _list_files(folder)}
        manifest = Manifest(FORMAT, antiphon.__version__, has_database, sources.revision, files)
        _write_manifest(folder, manifest)
    except (OSError, sqlite3.Error) as problem:
        raise StoreRefused(f"{folder} is incomplete, remove it: {problem}") from None
    mark = sources.home / LAST_BACKUP
    with suppress(OSError):  # a backup does not fail because its age is not shown
        mark.unlink(missing_ok=True)  # another user can have made it
        mark.touch(0o644)
    return manifest


def remove_old_backups(folder: Path, kept: int) -> list[Path]:
    """Removes the oldest complete backups in a folder, so that `kept` are left. Leaves everything else there.
    Returns the removed folders. Raises StoreRefused."""
    times: dict[Path, int] = {}
    for path in folder.glob(f"*/{MANIFEST}"):
        with suppress(OSError, ValueError, RecursionError, msgspec.DecodeError), open_regular(path) as file:
            times[path.parent] = msgspec.json.decode(file.read(), type=DatedManifest).made
    old = sorted(times, key=lambda path: (times[path], path.name))[: -kept or None]
    for path in old:
        try:
            shutil.rmtree(path)
        except OSError as problem:
            raise StoreRefused(f"the old backup {path} cannot be removed: {problem.strerror}") from None
    return old


def read_manifest(folder: Path) -> Manifest:
    """Reads a backup's manifest and compares every file with it. Raises StoreRefused."""
    try:
        with open_regular(folder / MANIFEST) as file:
            content = file.read()
        head = msgspec.json.decode(content, type=ManifestHead)
        if head.format != FORMAT:
            raise StoreRefused(
                f"{folder} was made by another version of Antiphon ({head.version}), in format {head.format} "
                f"instead of {FORMAT}; restore it with that version"
            )
        manifest = msgspec.json.decode(content, type=Manifest)
        damaged = [name for name, digest in manifest.files.items() if _digest(folder / name) != digest]
    except (OSError, ValueError, RecursionError, msgspec.DecodeError) as problem:
        raise StoreRefused(f"{folder} is not a complete backup: {problem}") from None
    if damaged:
        raise StoreRefused(f"{folder} is damaged: {', '.join(damaged)}")
    return manifest


def restore_backup(folder: Path, manifest: Manifest, targets: BackupSources) -> None:
    """Copies every file to its target. Only the owner can read them, whatever their modes in the backup.
    Adapters are no secrets and can stay readable. Raises StoreRefused if a target exists, before anything is
    copied, or if a file cannot be written."""
    targets_by_name = {name: _find_target(name, targets) for name in manifest.files if name != DUMP}
    if existing := sorted(str(target) for target in targets_by_name.values() if target.exists()):
        raise StoreRefused(f"nothing was restored: {existing[0]} exists already; move it elsewhere")
    try:
        for name, target in targets_by_name.items():
            copy_file(folder / name, target)
            is_adapter = Path(name).parts[0] == ADAPTERS
            target.chmod(target.stat().st_mode & READABLE if is_adapter else OWNER_ONLY)
    except OSError as problem:
        written = ", ".join(str(target) for target in targets_by_name.values() if target.exists())
        raise StoreRefused(
            f"the backup is only partly restored: {problem}. Before you restore it again, remove what was "
            f"written: {written or 'no file'}"
        ) from None


def copy_database(source: Path, target: Path) -> None:
    """Copies a SQLite file to a new one; other processes can write during the copy. Until the copy is
    complete, only the owner can read it. Raises OSError and sqlite3.Error."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    address = f"{source.absolute().as_uri()}?mode=rw"
    with closing(sqlite3.connect(address, uri=True)) as database:
        target.touch(mode=OWNER_ONLY, exist_ok=False)
        with closing(sqlite3.connect(target)) as copy:
            database.backup(copy)
            copy.execute("PRAGMA journal_mode=DELETE")
    shutil.copymode(source, target)


def _copy_directory(source: Path, target: Path) -> None:
    """Copies a directory's files. Skips a file that the server removes meanwhile."""
    for path in _list_files(source):
        copy = target / path.relative_to(source)
        with suppress(FileNotFoundError):
            if _is_database(path):
                copy_database(path, copy)
            else:
                copy_file(path, copy)


def copy_file(source: Path, target: Path) -> None:
    """Copies a file to a new one. Until the copy is complete, only the owner can read it."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with source.open("rb") as original:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_ONLY)
        with os.fdopen(descriptor, "wb") as copy:
            shutil.copyfileobj(original, copy)
    shutil.copymode(source, target)


def _list_files(folder: Path) -> Iterator[Path]:
    """Yields the regular files, without the lock files and journals of running processes."""
    for top, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        paths = (Path(top) / name for name in sorted(names) if not f".{name}".endswith(LOCK_SUFFIX))
        yield from (path for path in paths if path.is_file() and not path.name.endswith(JOURNAL_SUFFIXES))


def _is_database(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(SQLITE_HEAD)) == SQLITE_HEAD


def _digest(path: Path) -> str:
    with open_regular(path) as file:
        return file_digest(file, "sha256").hexdigest()


def _find_target(name: str, targets: BackupSources) -> Path:
    """Returns the path to which a file of a backup is restored. Raises StoreRefused if this server has no
    such directory, or if the path leads out of it."""
    top, *inner = Path(name).parts or ("",)
    if name == DATABASE and targets.database is not None:
        return targets.database
    if top == "home" and len(inner) == 1 and inner[0] in HOME_FILES:
        return targets.home / inner[0]
    if top in targets.directories and inner and ".." not in inner:
        return targets.directories[top].joinpath(*inner)
    raise StoreRefused(f"the backup has a file that belongs to no directory of this server: {name}")


def _write_manifest(folder: Path, manifest: Manifest) -> None:
    """Writes the manifest after all other files are on the disk."""
    values = {**asdict(manifest), "made": int(time.time())}
    for name in manifest.files:
        with (folder / name).open("rb") as copy:
            os.fsync(copy.fileno())
    with (folder / MANIFEST).open("x", encoding="utf-8") as file:
        json.dump(values, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
