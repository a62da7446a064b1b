"""The files of all knowledge tables: which there are, which are open, and what each project keeps.

    <directory>/lock                        held by the one process that uses the directory
    <directory>/<project>/<random>.db       one table; its name is inside
    <directory>/<project>/<random>.json     its settings again, to name the table where its file is damaged

A name of a table or project never is a part of a path: a table's file is named at random, and a project's
folder by its digest. So a table is renamed by one write inside its file. A file with another ending is
incomplete, left by a crash, and is removed when its project is opened.
"""

import fcntl
import logging
import os
import re
import secrets
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from antiphon.errors import (
    AntiphonError,
    Conflict,
    KnowledgeTableDamaged,
    KnowledgeUnavailable,
    NotFound,
)
from antiphon.retrieval.base import LONGEST_NAME, IndexLimits, IndexUsage, TableInfo, TableSettings
from antiphon.retrieval.checks import add_usage, make_missing, require_room
from antiphon.retrieval.sqlite.documents import delete_unready
from antiphon.retrieval.sqlite.schema import (
    create_file,
    require_full_text_index,
    sync_directory,
    translate_errors,
    write_marks,
)
from antiphon.retrieval.sqlite.table import ForeignFile, TableChange, TableFile
from antiphon.retrieval.table_settings import decode_table, encode_table
from antiphon.telemetry.logs import record

ENDING = ".db"
COMPANIONS = ("-wal", "-shm", "-journal")
"""What SQLite appends to a file's name for its own files beside it."""

NOTE = ".json"
"""The ending of the file with a table's settings."""

PART = ".part"
"""The ending of an incomplete file."""

LOCK = "lock"

MOST_OPEN = 24
"""Tables that stay open while nobody uses them. Each takes up to 15 descriptors."""

SWEEP_PAUSE_S = 0.005
"""Seconds between two steps of a sweep, in which writes go on."""

EXACT_PART = 2
"""One table's exact vectors take at most one in so many parts of the memory of all."""


@dataclass(slots=True, eq=False)
class TableEntry:
    """One table of a project, open or not."""

    path: Path
    info: TableInfo
    """Its latest state; newer where the file is open."""
    file: TableFile | None = None
    users: int = 0
    is_gone: bool = False
    is_swept_now: bool = False

    @property
    def note(self) -> Path:
        """Where the settings are kept beside the file."""
        return self.path.with_suffix(NOTE)

    def refresh(self) -> TableInfo:
        """Returns the table as it is now."""
        if (file := self.file) is not None:
            self.info = file.info
        return self.info


class OpenTables:
    """The open files. It closes those that were not used for longest."""

    def __init__(self, memory: int, most_open: int = MOST_OPEN) -> None:
        """`memory`: bytes of vectors of all tables together."""
        self._memory = memory
        self._most_open = most_open
        self._lock = threading.Lock()
        self._open: OrderedDict[TableEntry, str] = OrderedDict()
        self._sweeper = ThreadPoolExecutor(1, "knowledge-sweep")
        self._is_closing = False

    @contextmanager
    def use(self, entry: TableEntry, project: str) -> Iterator[TableFile]:
        """Keeps a table open for a call. Raises NotFound for one that was deleted meanwhile, and
        KnowledgeTableDamaged, which names the table."""
        try:
            file = self._take(entry, project)
            try:
                yield file
            finally:
                self._release(entry)
        except KnowledgeTableDamaged:
            damage = describe_damage(entry)
            with self._lock:
                self._close_unused(entry)  # the next call opens the file anew: it may be restored
                entry.info = replace(entry.refresh(), documents=0, chunks=0, bytes=0, damage=damage)
            raise KnowledgeTableDamaged(damage) from None

    def _take(self, entry: TableEntry, project: str) -> TableFile:
        with self._lock:
            if entry.is_gone:
                raise make_missing(entry.info.settings.name)
            if entry.file is None:
                entry.file = TableFile(entry.path, project, self._memory // EXACT_PART)
                entry.refresh()
            entry.users += 1
            self._open[entry] = project
            self._open.move_to_end(entry)
            return entry.file

    def _release(self, entry: TableEntry) -> None:
        with self._lock:
            entry.users -= 1
            unused = [each for each in self._open if not each.users]
            memory = sum(each.file.memory.bytes for each in self._open if each.file is not None)
            for each in unused:
                is_over = len(self._open) > self._most_open or memory > self._memory
                if each.is_gone or (is_over and each is not entry):
                    memory -= self._close(each)
            file = entry.file
            if file is not None and file.is_unswept and not (entry.is_swept_now or self._is_closing):
                entry.is_swept_now = True
                self._sweeper.submit(self._sweep, entry, self._open[entry])

    def _sweep(self, entry: TableEntry, project: str) -> None:
        """Overwrites removed words of a table, in steps between which others write. What is left at the end
        of the process is done at the next use of the table."""
        try:
            with suppress(AntiphonError), self.use(entry, project) as file:
                while not self._is_closing and file.sweep():
                    time.sleep(SWEEP_PAUSE_S)
        finally:
            entry.is_swept_now = False

    def _close(self, entry: TableEntry) -> int:
        """Closes a table without users. Returns the bytes of vectors that it had."""
        del self._open[entry]
        file = entry.file
        if file is None:
            return 0
        entry.refresh()
        entry.file = None
        file.close()
        return file.memory.bytes

    def retire(self, entry: TableEntry) -> None:
        """Refuses any later use of a deleted table, and waits for its running write."""
        with self._lock:
            entry.is_gone = True
            file = entry.file
        if file is not None:
            file.forbid_writes()
        with self._lock:
            self._close_unused(entry)

    def _close_unused(self, entry: TableEntry) -> None:
        if entry in self._open and not entry.users:
            self._close(entry)

    def close(self) -> None:
        """Closes all tables. No call may be running."""
        self._is_closing = True
        self._sweeper.shutdown()
        with self._lock:
            for entry in list(self._open):
                self._close(entry)


class ProjectTables:
    """The tables of one project. Any thread may call it."""

    def __init__(self, folder: Path, project: str, limits: IndexLimits, tables: OpenTables) -> None:
        self._folder = folder
        self._project = project
        self._limits = limits
        self._open = tables
        self._names = threading.Lock()
        """Held while a table is made, renamed or removed."""
        self._counting = threading.Lock()
        self._pending: list[IndexUsage] = []
        """What running writes will add."""
        self._entries = dict(self._scan()) if folder.is_dir() else {}

    # --- files ----------------------------------------------------------------------------------------------

    def _scan(self) -> Iterator[tuple[str, TableEntry]]:
        """Reads what each file of the folder says of itself, and removes incomplete ones. A file that cannot
        be used becomes a table that can be listed and deleted."""
        for path in sorted(self._folder.iterdir()):
            if path.suffix != ENDING and not _has_owner(path):
                path.unlink(missing_ok=True)
        names, broken = set[str](), list[TableEntry]()
        for path in sorted(self._folder.glob(f"*{ENDING}")):
            if (entry := self._read_entry(path)) is None:
                continue
            if entry.info.damage is not None:
                broken.append(entry)
                continue
            names.add(entry.info.settings.name)
            yield entry.info.settings.name, entry
        for entry in broken:
            settings = entry.info.settings
            if settings.name in names:  # the file of an older time has the name of a newer table
                settings = replace(settings, name=f"{settings.name} ({entry.path.stem})"[-LONGEST_NAME:])
                entry.info = replace(entry.info, settings=settings)
            names.add(settings.name)
            yield settings.name, entry

    def _read_entry(self, path: Path) -> TableEntry | None:
        """Returns the table of a file, also of one that cannot be used; None for a file that is not of this
        project."""
        try:
            file = TableFile(path, self._project, 0)
        except AntiphonError as error:
            record("knowledge_file_unusable", logging.ERROR, file=path.name, problem=error.message)
            return None if isinstance(error, ForeignFile) else _build_broken(path, error)
        try:
            entry = TableEntry(path, file.info)
        finally:
            file.close()
        _write_note(entry)
        return entry

    def _new_part(self) -> Path:
        """Returns the path of an incomplete file, which no file has. Makes the folder where it is missing."""
        if not self._folder.is_dir():
            self._folder.mkdir(mode=0o700)
            sync_directory(self._folder.parent)
        return self._folder / f"{secrets.token_hex(8)}{PART}"

    # --- tables ---------------------------------------------------------------------------------------------

    @contextmanager
    def use(self, table: str) -> Iterator[TableFile]:
        """Keeps a table open for a call. Raises NotFound."""
        with self._open.use(self._find(table), self._project) as file:
            yield file

    @contextmanager
    def write(self, table: str, now: int) -> Iterator[TableChange]:
        """Runs one write of a table. Raises NotFound and KnowledgeLimitReached."""
        with self.use(table) as file, file.write(now, self.reserve) as change:
            yield change

    def _find(self, table: str) -> TableEntry:
        entry = self._entries.get(table)
        if entry is None:
            raise make_missing(table)
        return entry

    def list_tables(self) -> tuple[TableInfo, ...]:
        """Returns all tables by name."""
        entries = self._entries.copy()  # others may add and remove some meanwhile
        return tuple(entries[name].refresh() for name in sorted(entries))

    def get(self, table: str) -> TableInfo:
        """Raises NotFound."""
        return self._find(table).refresh()

    def create(self, settings: TableSettings, now: int) -> TableInfo:
        """Makes an empty table. Raises Conflict and KnowledgeLimitReached."""

        def make(part: Path) -> None:
            with translate_errors(part):
                create_file(part, self._project, settings, now)

        with self._names:
            self._require_free(settings.name)
            with self.reserve(IndexUsage(tables=1)):
                return self._add_entry(self._make_file(make), settings, now)

    def _make_file(self, make: Callable[[Path], None]) -> Path:
        """Makes a file, which gets its ending when it is complete and on the disk. Returns its path."""
        with translate_errors(self._folder):
            part = self._new_part()
        try:
            make(part)
            with translate_errors(part):
                path = part.with_suffix(ENDING)
                part.rename(path)
                sync_directory(self._folder)
        except BaseException:
            remove_file(part)
            raise
        return path

    def _add_entry(self, path: Path, settings: TableSettings, now: int) -> TableInfo:
        entry = TableEntry(path, TableInfo(settings, now, now, 0, 0, 0))
        with self._open.use(entry, self._project):
            info = entry.refresh()
        _write_note(entry)
        self._entries[settings.name] = entry
        return info

    def _require_free(self, name: str) -> None:
        if name in self._entries:
            raise Conflict(
                f"there is a knowledge table {name[:80]!r} already: choose another name", param="name"
            )

    def rename(self, table: str, new_name: str, now: int) -> TableInfo:
        """Raises NotFound and Conflict."""
        with self._names:
            entry = self._find(table)
            if new_name != table:
                self._require_free(new_name)
            with self._open.use(entry, self._project) as file:
                file.rename(replace(file.settings, name=new_name), now)
                entry.refresh()
            _write_note(entry)
            self._entries[new_name] = self._entries.pop(table)
            return entry.info

    def duplicate(self, table: str, new_name: str, now: int, *, with_documents: bool) -> TableInfo:
        """Copies a table with its ready documents. Raises NotFound, Conflict and KnowledgeLimitReached."""
        if not with_documents:
            return self.create(replace(self.get(table).settings, name=new_name), now)
        with self._names, self.use(table) as file:
            self._require_free(new_name)
            counts, settings = file.counts, replace(file.settings, name=new_name)
            with self.reserve(IndexUsage(1, counts.documents, counts.chunks, counts.bytes)):
                return self._add_entry(self._copy(file, settings, now), settings, now)

    def _copy(self, file: TableFile, settings: TableSettings, now: int) -> Path:
        """Copies a file without what is not ready, and returns the copy's path."""

        def prepare(connection: sqlite3.Connection) -> None:
            delete_unready(connection)
            write_marks(connection, settings=encode_table(settings), created_at=str(now), updated_at=str(now))

        return self._make_file(lambda part: file.copy_into(part, prepare))

    def delete(self, table: str) -> None:
        """Raises NotFound."""
        with self._names:
            entry = self._find(table)
            self._open.retire(entry)
            with translate_errors(entry.path):
                remove_file(entry.path)
                sync_directory(self._folder)
            del self._entries[table]

    def delete_all(self) -> int:
        """Removes all tables, damaged files too. Returns the number of tables."""
        names = list(self._entries)
        for name in names:
            with suppress(NotFound):  # another call removed it
                self.delete(name)
        with self._names, translate_errors(self._folder):
            if self._folder.is_dir() and not self._entries:
                for path in self._folder.iterdir():
                    path.unlink(missing_ok=True)
                self._folder.rmdir()
        return len(names)

    # --- what the project keeps -----------------------------------------------------------------------------

    def count_usage(self) -> IndexUsage:
        """Returns what the project keeps."""
        infos = self.list_tables()
        return IndexUsage(
            len(infos),
            sum(info.documents for info in infos),
            sum(info.chunks for info in infos),
            sum(info.bytes for info in infos),
        )

    @contextmanager
    def reserve(self, more: IndexUsage) -> Iterator[None]:
        """Keeps room for a write until it is done. Raises KnowledgeLimitReached."""
        with self._counting:
            require_room(self._limits, add_usage(self.count_usage(), *self._pending, more))
            self._pending.append(more)
        try:
            yield
        finally:
            with self._counting:
                self._pending.remove(more)


class TableCatalog:
    """All projects of one directory. One process at a time uses it."""

    def __init__(self, directory: Path, limits: IndexLimits, memory: int) -> None:
        """Takes the directory. Raises KnowledgeUnavailable where another process has it, or where it cannot
        be used."""
        require_full_text_index()
        self._directory = directory
        self._limits = limits
        self._open = OpenTables(memory)
        self._projects: dict[str, ProjectTables] = {}
        self._lock = threading.Lock()
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._held = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as problem:
            raise KnowledgeUnavailable(
                f"the directory {directory} of the knowledge tables cannot be used: {problem.strerror}"
            ) from None
        try:
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._held)
            raise KnowledgeUnavailable(
                f"another server uses the knowledge tables in {directory}: stop it, or set another directory"
            ) from None

    def get_project(self, project: str) -> ProjectTables:
        """Returns a project's tables."""
        with self._lock:
            if project not in self._projects:
                folder = self._directory / name_folder(project)
                self._projects[project] = ProjectTables(folder, project, self._limits, self._open)
            return self._projects[project]

    def close(self) -> None:
        """Closes all files, and leaves the directory to other processes."""
        self._open.close()
        os.close(self._held)


def name_folder(project: str) -> str:
    """Returns the name of a project's folder: readable, and different for each project on any file system."""
    readable = re.sub("[^a-z0-9]+", "-", project.lower())[:40].strip("-")
    return f"{readable}-{sha256(project.encode()).hexdigest()[:16]}".lstrip("-")


def remove_file(path: Path) -> None:
    """Removes a table's file, and then what is beside it."""
    path.unlink(missing_ok=True)
    path.with_suffix(NOTE).unlink(missing_ok=True)
    for ending in COMPANIONS:
        _companion(path, ending).unlink(missing_ok=True)


def _companion(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def _has_owner(path: Path) -> bool:
    """Whether a file belongs to a table's file that is there."""
    if path.suffix == NOTE:
        return path.with_suffix(ENDING).exists()
    return any(
        path.name.endswith(ENDING + ending) and path.with_name(path.name.removesuffix(ending)).exists()
        for ending in COMPANIONS
    )


def _write_note(entry: TableEntry) -> None:
    """Keeps a table's settings beside its file, unless they are there. Only a damaged table needs them, so a
    failure is no error."""
    text = encode_table(entry.info.settings)
    part = entry.path.with_suffix(f".{secrets.token_hex(4)}{PART}")
    with suppress(OSError):
        if entry.note.exists() and entry.note.read_text("utf-8") == text:
            return
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
        part.rename(entry.note)


def _build_broken(path: Path, error: AntiphonError) -> TableEntry:
    """Returns the table of a file that cannot be used, by the settings beside it or by the file's name."""
    try:
        settings = decode_table(path.with_suffix(NOTE).read_text("utf-8"))
    except (OSError, KeyError, TypeError, ValueError):
        settings = TableSettings(path.stem)
    changed_at = int(path.stat().st_mtime * 1000)
    entry = TableEntry(path, TableInfo(settings, changed_at, changed_at, 0, 0, 0))
    damage = describe_damage(entry) if isinstance(error, KnowledgeTableDamaged) else error.message
    entry.info = replace(entry.info, damage=damage)
    return entry


def describe_damage(entry: TableEntry) -> str:
    """Returns what is wrong with a damaged table, and the remedy."""
    name, file = entry.info.settings.name[:80], entry.path.name
    return f"the knowledge table {name!r} is damaged: delete it, or restore its file {file} from a copy"
