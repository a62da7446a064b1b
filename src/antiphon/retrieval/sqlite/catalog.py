"""The files of all knowledge tables: lists them, opens them, and counts what each project stores.

    <directory>/lock                        held by the one process that uses the directory
    <directory>/<project>/<random>.db       one table; its name is inside
    <directory>/<project>/<random>.json     its settings, to name the table if its file is damaged

No path contains the name of a table. A table's file has a random name, and a project's folder has the
project's digest in its name. So a table is renamed by one write inside its file. A file with another ending
is incomplete: a crash left it. It is removed when its project is opened.
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
from hashlib import sha256
from pathlib import Path

from antiphon.domain.values import Struct, replace
from antiphon.errors import AntiphonError, Conflict, KnowledgeTableDamaged, KnowledgeUnavailable, NotFound
from antiphon.retrieval.base import (
    LONGEST_NAME,
    IndexLimits,
    IndexUsage,
    TableInfo,
    TableSettings,
    add_usage,
    build_missing_table_error,
    require_within_limits,
)
from antiphon.retrieval.sqlite.documents import delete_unready
from antiphon.retrieval.sqlite.schema import (
    create_file,
    require_full_text_index,
    sync_directory,
    translate_errors,
    write_marks,
)
from antiphon.retrieval.sqlite.table import ForeignFile, TableChange, TableFile
from antiphon.retrieval.stored_form import decode_table, encode_table
from antiphon.telemetry.logs import record

TABLE_ENDING = ".db"
COMPANIONS = ("-wal", "-shm", "-journal")
"""Endings that SQLite appends to the name of a database file, for its own files."""

SETTINGS_ENDING = ".json"
"""The ending of the file with a table's settings."""

INCOMPLETE_ENDING = ".part"
"""The ending of an incomplete file."""

LOCK_FILE = "lock"

MOST_OPEN = 24
"""The most tables that stay open while no call uses them. Each uses up to 15 file descriptors."""

SWEEP_PAUSE_S = 0.005
"""Seconds between two steps of a sweep, which overwrites removed words. Other writes run in this time."""

EXACT_DIVISOR = 2
"""The exact vectors of one table use at most half of the memory for all tables' vectors."""


class TableEntry(Struct, eq=False):
    """A table of a project, with its open file if calls use the table."""

    path: Path
    info: TableInfo
    """The state when the file was read last. Call `refresh` while the file is open."""
    file: TableFile | None = None
    """The open file; None while the table is closed."""
    user_count: int = 0
    """The number of running calls that use the table."""
    is_deleted: bool = False
    is_being_swept: bool = False

    @property
    def settings_file(self) -> Path:
        """The path of the copy of the settings."""
        return self.path.with_suffix(SETTINGS_ENDING)

    def refresh(self) -> TableInfo:
        """Returns the current state of the table."""
        if (file := self.file) is not None:
            self.info = file.info
        return self.info


class OpenTables:
    """The open tables of all projects. It closes the least recently used tables first."""

    def __init__(self, memory: int, most_open: int = MOST_OPEN) -> None:
        """`memory`: the most bytes of the vectors of all tables together. `most_open`: the most open tables
        that no call uses."""
        self._memory = memory
        self._most_open = most_open
        self._lock = threading.Lock()
        self._open: OrderedDict[TableEntry, str] = OrderedDict()
        self._sweeper = ThreadPoolExecutor(1, "knowledge-sweep")
        self._is_closing = False

    @contextmanager
    def use(self, entry: TableEntry, project: str) -> Iterator[TableFile]:
        """Opens a table if necessary, and keeps it open while the context lasts. Raises NotFound if the table
        was deleted meanwhile, and KnowledgeTableDamaged, which names the table."""
        try:
            file = self._open_table(entry, project)
            try:
                yield file
            finally:
                self._release(entry)
        except KnowledgeTableDamaged:
            damage = describe_damage(entry)
            with self._lock:
                self._close_unused(entry)  # an operator can restore the file before the next call opens it
                entry.info = replace(entry.refresh(), documents=0, chunks=0, bytes=0, damage=damage)
            raise KnowledgeTableDamaged(damage) from None

    def _open_table(self, entry: TableEntry, project: str) -> TableFile:
        with self._lock:
            if entry.is_deleted:
                raise build_missing_table_error(entry.info.settings.name)
            if entry.file is None:
                entry.file = TableFile(entry.path, project, self._memory // EXACT_DIVISOR)
                entry.refresh()
            entry.user_count += 1
            self._open[entry] = project
            self._open.move_to_end(entry)
            return entry.file

    def _release(self, entry: TableEntry) -> None:
        with self._lock:
            entry.user_count -= 1
            unused_entries = [other for other in self._open if not other.user_count]
            memory = sum(other.file.memory.bytes for other in self._open if other.file is not None)
            for unused in unused_entries:
                exceeds_limits = len(self._open) > self._most_open or memory > self._memory
                if unused.is_deleted or (exceeds_limits and unused is not entry):
                    memory -= self._close(unused)
            file = entry.file
            if file is not None and file.is_unswept and not (entry.is_being_swept or self._is_closing):
                entry.is_being_swept = True
                self._sweeper.submit(self._sweep, entry, self._open[entry])

    def _sweep(self, entry: TableEntry, project: str) -> None:
        """Overwrites removed words of a table, in steps. Other writes run between two steps. If the process
        ends before the sweep, the next use of the table continues the sweep."""
        has_ended = False
        try:
            with suppress(AntiphonError), self.use(entry, project) as file:
                while not self._is_closing and file.sweep():
                    time.sleep(SWEEP_PAUSE_S)
                # Before `_release`, which then sees what other calls removed after the last step.
                entry.is_being_swept, has_ended = False, True
        finally:
            if not has_ended:
                entry.is_being_swept = False

    def _close(self, entry: TableEntry) -> int:
        """Closes a table that no call uses. Returns the bytes that its vectors used in memory."""
        del self._open[entry]
        file = entry.file
        if file is None:
            return 0
        entry.refresh()
        entry.file = None
        file.close()
        return file.memory.bytes

    def prepare_deletion(self, entry: TableEntry) -> None:
        """Prepares a table for deletion: waits for its running write, and makes later calls raise
        NotFound."""
        with self._lock:
            entry.is_deleted = True
            file = entry.file
        if file is not None:
            file.forbid_writes()
        with self._lock:
            self._close_unused(entry)

    def _close_unused(self, entry: TableEntry) -> None:
        if entry in self._open and not entry.user_count:
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
        self._open_tables = tables
        self._names_lock = threading.Lock()
        """Held while a table is created, renamed or removed."""
        self._counting_lock = threading.Lock()
        self._pending: list[IndexUsage] = []
        """The usage that each running write has reserved."""
        self._entries = dict(self._scan()) if folder.is_dir() else {}

    # --- files ----------------------------------------------------------------------------------------------

    def _scan(self) -> Iterator[tuple[str, TableEntry]]:
        """Yields the names and tables of all files in the folder, and removes incomplete files. A file that
        cannot be used becomes a damaged table, which can be listed and deleted."""
        for path in sorted(self._folder.iterdir()):
            if path.suffix != TABLE_ENDING and not _has_owner(path):
                path.unlink(missing_ok=True)
        names, damaged_entries = set[str](), list[TableEntry]()
        for path in sorted(self._folder.glob(f"*{TABLE_ENDING}")):
            if (entry := self._read_entry(path)) is None:
                continue
            if entry.info.damage is not None:
                damaged_entries.append(entry)
                continue
            names.add(entry.info.settings.name)
            yield entry.info.settings.name, entry
        for entry in damaged_entries:
            settings = entry.info.settings
            if settings.name in names:  # the table was renamed, and a newer table has its old name
                settings = replace(settings, name=f"{settings.name} ({entry.path.stem})"[-LONGEST_NAME:])
                entry.info = replace(entry.info, settings=settings)
            names.add(settings.name)
            yield settings.name, entry

    def _read_entry(self, path: Path) -> TableEntry | None:
        """Returns the table of a file, also if the file cannot be used. Returns None if the file belongs to
        another project."""
        try:
            file = TableFile(path, self._project, 0)
        except AntiphonError as error:
            record("knowledge_file_unusable", logging.ERROR, file=path.name, problem=error.message)
            return None if isinstance(error, ForeignFile) else _build_damaged_entry(path, error)
        try:
            entry = TableEntry(path, file.info)
        finally:
            file.close()
        _write_settings_file(entry)
        return entry

    def _choose_incomplete_path(self) -> Path:
        """Returns an unused path for an incomplete file. Makes the folder if it is missing."""
        if not self._folder.is_dir():
            self._folder.mkdir(mode=0o700)
            sync_directory(self._folder.parent)
        return self._folder / f"{secrets.token_hex(8)}{INCOMPLETE_ENDING}"

    # --- tables ---------------------------------------------------------------------------------------------

    @contextmanager
    def use(self, table: str) -> Iterator[TableFile]:
        """Keeps a table open while the context lasts. Raises NotFound."""
        with self._open_tables.use(self._find_entry(table), self._project) as file:
            yield file

    @contextmanager
    def write(self, table: str, now: int) -> Iterator[TableChange]:
        """Runs one write in a table. Raises NotFound and KnowledgeLimitReached."""
        with self.use(table) as file, file.write(now, self.reserve) as change:
            yield change

    def _find_entry(self, table: str) -> TableEntry:
        entry = self._entries.get(table)
        if entry is None:
            raise build_missing_table_error(table)
        return entry

    def list_tables(self) -> tuple[TableInfo, ...]:
        """Returns all tables by name."""
        entries = self._entries.copy()  # other threads can add and remove tables meanwhile
        return tuple(entries[name].refresh() for name in sorted(entries))

    def get(self, table: str) -> TableInfo:
        """Returns one table. Raises NotFound."""
        return self._find_entry(table).refresh()

    def create(self, settings: TableSettings, now: int) -> TableInfo:
        """Creates an empty table. Raises Conflict and KnowledgeLimitReached."""

        def fill_file(path: Path) -> None:
            with translate_errors(path):
                create_file(path, self._project, settings, now)

        with self._names_lock:
            self._require_free_name(settings.name)
            with self.reserve(IndexUsage(tables=1)):
                return self._add_entry(self._make_file(fill_file), settings, now)

    def _make_file(self, fill_file: Callable[[Path], None]) -> Path:
        """Makes a table's file and returns its path. `fill_file`: writes the content to a path. The file gets
        its final name when it is complete."""
        with translate_errors(self._folder):
            incomplete_path = self._choose_incomplete_path()
        try:
            fill_file(incomplete_path)
            with translate_errors(incomplete_path):
                path = incomplete_path.with_suffix(TABLE_ENDING)
                incomplete_path.rename(path)
                sync_directory(self._folder)
        except BaseException:
            remove_file(incomplete_path)
            raise
        return path

    def _add_entry(self, path: Path, settings: TableSettings, now: int) -> TableInfo:
        entry = TableEntry(path, TableInfo(settings, now, now, 0, 0, 0))
        with self._open_tables.use(entry, self._project):
            info = entry.refresh()
        _write_settings_file(entry)
        self._entries[settings.name] = entry
        return info

    def _require_free_name(self, name: str) -> None:
        if name in self._entries:
            raise Conflict(
                f"there is a knowledge table {name[:80]!r} already: choose another name", param="name"
            )

    def rename(self, table: str, new_name: str, now: int) -> TableInfo:
        """Renames a table. Raises NotFound, and Conflict if the new name is taken."""
        with self._names_lock:
            entry = self._find_entry(table)
            if new_name != table:
                self._require_free_name(new_name)
            with self._open_tables.use(entry, self._project) as file:
                file.rename(replace(file.settings, name=new_name), now)
                entry.refresh()
            _write_settings_file(entry)
            self._entries[new_name] = self._entries.pop(table)
            return entry.info

    def duplicate(self, table: str, new_name: str, now: int, *, with_documents: bool) -> TableInfo:
        """Copies a table with its ready documents. Raises NotFound, Conflict and KnowledgeLimitReached."""
        if not with_documents:
            return self.create(replace(self.get(table).settings, name=new_name), now)
        with self._names_lock, self.use(table) as file:
            self._require_free_name(new_name)
            counts, settings = file.counts, replace(file.settings, name=new_name)
            with self.reserve(IndexUsage(1, counts.documents, counts.chunks, counts.bytes)):
                return self._add_entry(self._copy(file, settings, now), settings, now)

    def _copy(self, file: TableFile, settings: TableSettings, now: int) -> Path:
        """Copies the ready documents of a table into a new file, and returns its path."""

        def prepare(connection: sqlite3.Connection) -> None:
            delete_unready(connection)
            write_marks(connection, settings=encode_table(settings), created_at=str(now), updated_at=str(now))

        return self._make_file(lambda path: file.copy_into(path, prepare))

    def delete(self, table: str) -> None:
        """Removes a table with its files. Raises NotFound."""
        with self._names_lock:
            entry = self._find_entry(table)
            self._open_tables.prepare_deletion(entry)
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
        with self._names_lock, translate_errors(self._folder):
            if self._folder.is_dir() and not self._entries:
                for path in self._folder.iterdir():
                    path.unlink(missing_ok=True)
                self._folder.rmdir()
        return len(names)

    # --- usage -------------------------------------------------------------------------------------------

    def count_usage(self) -> IndexUsage:
        """Returns how much the project stores."""
        infos = self.list_tables()
        return IndexUsage(
            len(infos),
            sum(info.documents for info in infos),
            sum(info.chunks for info in infos),
            sum(info.bytes for info in infos),
        )

    @contextmanager
    def reserve(self, added: IndexUsage) -> Iterator[None]:
        """Reserves what a write adds until the context ends, so that writes of other tables cannot exceed the
        project's limits together with it. Raises KnowledgeLimitReached."""
        with self._counting_lock:
            require_within_limits(self._limits, add_usage(self.count_usage(), *self._pending, added))
            self._pending.append(added)
        try:
            yield
        finally:
            with self._counting_lock:
                self._pending.remove(added)


class TableCatalog:
    """The knowledge tables of all projects in one directory. Only one process at a time can use a
    directory."""

    def __init__(self, directory: Path, limits: IndexLimits, memory: int) -> None:
        """Locks the directory. Raises KnowledgeUnavailable if another process uses it, or if it cannot be
        used."""
        require_full_text_index()
        self._directory = directory
        self._limits = limits
        self._open = OpenTables(memory)
        self._projects: dict[str, ProjectTables] = {}
        self._lock = threading.Lock()
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock_descriptor = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as problem:
            raise KnowledgeUnavailable(
                f"the directory {directory} of the knowledge tables cannot be used: {problem.strerror}"
            ) from None
        try:
            fcntl.flock(self._lock_descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock_descriptor)
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
        """Closes all files, and unlocks the directory."""
        self._open.close()
        os.close(self._lock_descriptor)


def name_folder(project: str) -> str:
    """Returns the name of a project's folder. It is readable, and unique also if the file system ignores
    case."""
    readable = re.sub("[^a-z0-9]+", "-", project.lower())[:40].strip("-")
    return f"{readable}-{sha256(project.encode()).hexdigest()[:16]}".lstrip("-")


def remove_file(path: Path) -> None:
    """Removes a table's file, and then the files that belong to it."""
    path.unlink(missing_ok=True)
    path.with_suffix(SETTINGS_ENDING).unlink(missing_ok=True)
    for ending in COMPANIONS:
        path.with_name(path.name + ending).unlink(missing_ok=True)


def _has_owner(path: Path) -> bool:
    """Whether a file belongs to a table whose file exists."""
    if path.suffix == SETTINGS_ENDING:
        return path.with_suffix(TABLE_ENDING).exists()
    for ending in COMPANIONS:
        if path.name.endswith(TABLE_ENDING + ending):
            return path.with_name(path.name.removesuffix(ending)).exists()
    return False


def _write_settings_file(entry: TableEntry) -> None:
    """Writes a copy of a table's settings beside its file, unless an identical copy exists. A failure is
    ignored, because only a damaged table needs the copy."""
    text = encode_table(entry.info.settings)
    incomplete_path = entry.path.with_suffix(f".{secrets.token_hex(4)}{INCOMPLETE_ENDING}")
    with suppress(OSError):
        if entry.settings_file.exists() and entry.settings_file.read_text("utf-8") == text:
            return
        descriptor = os.open(incomplete_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        incomplete_path.rename(entry.settings_file)


def _build_damaged_entry(path: Path, error: AntiphonError) -> TableEntry:
    """Returns the table of a file that cannot be used. The settings come from their copy. Without a copy, the
    table's name is the file's name."""
    try:
        settings = decode_table(path.with_suffix(SETTINGS_ENDING).read_text("utf-8"))
    except (OSError, KeyError, TypeError, ValueError):
        settings = TableSettings(path.stem)
    changed_at = int(path.stat().st_mtime * 1000)
    entry = TableEntry(path, TableInfo(settings, changed_at, changed_at, 0, 0, 0))
    damage = describe_damage(entry) if isinstance(error, KnowledgeTableDamaged) else error.message
    entry.info = replace(entry.info, damage=damage)
    return entry


def describe_damage(entry: TableEntry) -> str:
    """Returns the message for a damaged table, with the remedy."""
    name, file = entry.info.settings.name[:80], entry.path.name
    return f"the knowledge table {name!r} is damaged: delete it, or restore its file {file} from a copy"
