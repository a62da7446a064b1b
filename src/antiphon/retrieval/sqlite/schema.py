"""The SQLite file of one knowledge table: its schema, its connections and transactions, and its errors."""

import errno
import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from antiphon.errors import AntiphonError, KnowledgeTableDamaged, KnowledgeUnavailable
from antiphon.retrieval.base import TableSettings
from antiphon.retrieval.ranking import SEGMENTATION
from antiphon.retrieval.stored_form import encode_table
from antiphon.telemetry.logs import record

VERSION = 1
"""The version of the tables in a file (`user_version`)."""

APPLICATION_ID = 0x416E744B
"""The number that identifies a file as a knowledge table (`application_id`)."""

BUSY_S = 10.0
"""Seconds that a connection waits for the lock of another connection."""

CACHE_KIB = 8 * 1024
"""KiB of pages that a connection caches."""

MAX_LOG_BYTES = 16 * 1024 * 1024
"""Bytes to which the write-ahead log shrinks after a large transaction."""

UNSWEPT = "unswept"
"""The row of `mark` whose value is 1 while the file can contain words of removed chunks."""

LOOSE_DOCUMENT = 0
"""The number of the hidden document for chunks that belong to no document. It has no id, and no list shows
it."""

TABLES = """
CREATE TABLE mark (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE document (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    digest TEXT NOT NULL UNIQUE,
    media_type TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    state TEXT NOT NULL,
    error TEXT,
    progress INTEGER NOT NULL DEFAULT 0,
    warnings TEXT NOT NULL DEFAULT '[]',
    chunks INTEGER NOT NULL DEFAULT 0,
    stored INTEGER NOT NULL DEFAULT 0,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
);
CREATE INDEX document_name ON document (name);
CREATE INDEX document_size ON document (chunks, stored);
CREATE TABLE batch (
    document INTEGER NOT NULL, number INTEGER NOT NULL, PRIMARY KEY (document, number)
) WITHOUT ROWID;
CREATE TABLE chunk (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    position INTEGER NOT NULL UNIQUE,
    document INTEGER NOT NULL,
    text TEXT NOT NULL,
    title TEXT NOT NULL,
    page INTEGER,
    file_name TEXT NOT NULL,
    metadata TEXT NOT NULL,
    stored INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
);
CREATE INDEX chunk_document ON chunk (document, position);
CREATE TABLE vector (id INTEGER PRIMARY KEY, document INTEGER NOT NULL, value BLOB NOT NULL);
CREATE VIRTUAL TABLE words USING fts5 (title, body, doc, tokenize = "unicode61 remove_diacritics 2");
CREATE VIRTUAL TABLE word_count USING fts5vocab (words, 'row');
INSERT INTO words (words, rank) VALUES ('rank', 'bm25(1.0, 1.0, 0.0)');
"""
"""`document.stored` and `chunk.stored` are the bytes of texts and vectors. For callers, the id of a chunk is
its `position`. A changed chunk gets a new `id`, because vectors in memory are never changed in place.
`words.rowid` and `vector.id` are `chunk.id`; `words.doc` names the document. Only chunks of ready documents
are in `words`."""


def connect(path: Path) -> sqlite3.Connection:
    """Opens an existing file. The connection begins no transaction by itself."""
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw",
        uri=True,
        timeout=BUSY_S,
        isolation_level=None,
        check_same_thread=False,
    )
    connection.row_factory = sqlite3.Row
    try:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        connection.execute(f"PRAGMA journal_size_limit = {MAX_LOG_BYTES}")
        connection.execute("PRAGMA temp_store = MEMORY")
        # This overwrites removed rows. `TableFile.sweep` overwrites removed words.
        connection.execute("PRAGMA secure_delete = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def require_full_text_index() -> None:
    """Raises KnowledgeUnavailable if this Python's SQLite cannot search."""
    connection = sqlite3.connect(":memory:")
    try:
        connection.execute("CREATE VIRTUAL TABLE words USING fts5 (body)")
    except sqlite3.OperationalError:
        raise KnowledgeUnavailable(
            f"SQLite {sqlite3.sqlite_version} of this Python has no full-text index (FTS5): run the server "
            "with a Python that has it"
        ) from None
    finally:
        connection.close()


def create_file(path: Path, project: str, settings: TableSettings, now: int) -> None:
    """Makes the file of an empty table."""
    path.touch(mode=0o600, exist_ok=False)
    connection = connect(path)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        with begin_write(connection):
            for statement in TABLES.split(";\n"):
                connection.execute(statement)
            connection.execute(
                "INSERT INTO document (number, id, name, digest, media_type, bytes, state, created_at, "
                "updated_at) VALUES (?, '', '', '', '', 0, 'ready', ?, ?)",
                (LOOSE_DOCUMENT, now, now),
            )
            write_marks(connection, project=project, revision="0", created_at=str(now), updated_at=str(now))
            write_marks(connection, segmentation=str(SEGMENTATION), settings=encode_table(settings))
            write_marks(connection, **{UNSWEPT: "0"})
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {VERSION}")
    finally:
        connection.close()


def name_document(number: int) -> str:
    """Returns the word in `words.doc` for the chunks of a document."""
    return f"d{number}"


def read_version(connection: sqlite3.Connection) -> int:
    """Returns the version of a file's tables; 0 for a file without tables."""
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version


def read_marks(connection: sqlite3.Connection) -> dict[str, str]:
    """Returns the file's own values (table `mark`), by name."""
    return dict(connection.execute("SELECT name, value FROM mark"))


def read_revision(connection: sqlite3.Connection) -> int:
    """Returns the number of the last change that affects search by vector."""
    return int(connection.execute("SELECT value FROM mark WHERE name = 'revision'").fetchone()[0])


def write_marks(connection: sqlite3.Connection, **marks: str) -> None:
    connection.executemany("INSERT OR REPLACE INTO mark VALUES (?, ?)", list(marks.items()))


@contextmanager
def begin_write(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Runs a transaction that writes. At the end, it is committed and on the disk. After an error, it is
    undone."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):  # if the disk is full, SQLite has undone it already
            connection.execute("ROLLBACK")
        raise


@contextmanager
def begin_read(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Runs statements that all see the same state of the table."""
    connection.execute("BEGIN")
    try:
        yield connection
    finally:
        connection.execute("ROLLBACK")


@contextmanager
def translate_errors(path: Path) -> Iterator[None]:
    """Translates errors of SQLite and of the file system for callers. Only the log names the file."""
    try:
        yield
    except (sqlite3.Error, OSError) as problem:
        error = _build_error(problem)
        record("knowledge_failure", logging.ERROR, file=path.name, problem=describe_failure(problem))
        raise error from None


def describe_failure(problem: sqlite3.Error | OSError) -> str:
    """Returns the kind of a failure, without any text of a document."""
    return getattr(problem, "sqlite_errorname", None) or type(problem).__name__


def _build_error(problem: sqlite3.Error | OSError) -> AntiphonError:
    """Returns the error for callers."""
    code = getattr(problem, "sqlite_errorcode", 0) & 0xFF
    is_full = isinstance(problem, OSError) and problem.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    if is_full or code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
        return KnowledgeUnavailable(
            "the disk of the knowledge tables is full or fails, and nothing was changed: free disk space, "
            "then try again"
        )
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return KnowledgeTableDamaged("the file of this knowledge table is damaged")
    return KnowledgeUnavailable(
        "the knowledge table cannot be used now, and nothing was changed; the server's log says why"
    )


def sync_directory(path: Path) -> None:
    """Syncs a directory, so that its entries survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
