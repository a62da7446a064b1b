"""One open knowledge table: its connections, its writes, and its vectors in memory."""

import math
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path

from antiphon.domain.values import Struct, field
from antiphon.errors import KnowledgeTableDamaged, KnowledgeUnavailable, NotFound
from antiphon.retrieval.base import DocumentState, IndexUsage, TableInfo, TableSettings
from antiphon.retrieval.ranking import SEGMENTATION, segment
from antiphon.retrieval.sqlite.schema import (
    APPLICATION_ID,
    BUSY_S,
    UNSWEPT,
    VERSION,
    begin_read,
    begin_write,
    connect,
    name_document,
    read_marks,
    read_revision,
    read_version,
    translate_errors,
    write_marks,
)
from antiphon.retrieval.sqlite.vectors import CodedVectors, ExactVectors, VectorRow, VectorRows
from antiphon.retrieval.stored_form import decode_table, encode_table

Reserve = Callable[[IndexUsage], AbstractContextManager[None]]
"""Reserves what a write adds to the project until the context ends. Raises KnowledgeLimitReached."""

EXACT_ROWS = 20_000
"""The most vectors of a table with exact search. With 384 dimensions they take 31 MB, and a search takes 1 to
2 ms. With 100,000 vectors, each search would read 154 MB in 13 ms, or in 40 ms beside other searches."""

HALVES_ROWS = 200_000
"""The most vectors of a table whose vectors are also in memory in half precision, to score candidates."""

LOAD_BLOCK = 4096
"""Vectors that are read at a time."""

READY_VECTORS = """
SELECT vector.id, vector.document, value FROM vector JOIN document ON number = vector.document WHERE state = ?
"""
DOCUMENT_VECTORS = """
SELECT vector.id, vector.document, value FROM chunk JOIN vector USING (id) WHERE chunk.document = ?
"""

SWEEP_PAGES = 500
"""How many pages of the full-text index one step of a sweep writes. A step takes a few milliseconds."""

SWEEP_WAIT_MS = 200
"""Milliseconds that the end of a sweep waits for readers before it tries again."""


class TableGone(NotFound):
    """The table was deleted after the call found it."""


class ForeignFile(KnowledgeUnavailable):
    """A file in the folder of a project that belongs to another project."""


class TableCounts(Struct, frozen=True):
    """The amount of a table's content, in the units of TableInfo."""

    documents: int = 0
    chunks: int = 0
    bytes: int = 0


class TableChange(Struct):
    """One write, with its changes for the vectors in memory."""

    connection: sqlite3.Connection
    settings: TableSettings
    now: int
    """Unix milliseconds."""
    reserve_usage: Callable[[IndexUsage], None]
    """Reserves what this write adds to the project. Raises KnowledgeLimitReached."""
    new_documents: list[int] = field(default_factory=list)
    """Numbers of the documents that become ready."""
    new_vectors: list[VectorRow] = field(default_factory=list)
    removed_ids: list[int] = field(default_factory=list)
    """Ids of the removed chunks."""

    @property
    def affects_vectors(self) -> bool:
        """Whether the write changes the results of search by vector."""
        return bool(self.new_documents or self.new_vectors or self.removed_ids)

    def index_words(self, where: str, value: int) -> None:
        """Adds chunks to the full-text index. `where`: the condition for the chunks, with `value` for its
        `?`."""
        self.connection.execute(
            "INSERT INTO words (rowid, title, body, doc) "  # noqa: S608 - conditions are this package's own
            f"SELECT id, segment(title), segment(text), name_document(document) FROM chunk WHERE {where}",
            (value,),
        )


class VectorMemory:
    """The vectors of a table in memory. The first search by vector loads them.

    They belong to one revision of the file. A write first commits, and then waits in `publish` until it is
    applied here. So the memory is at most one write behind the file.
    """

    def __init__(self, dimensions: int, max_bytes: int) -> None:
        """`max_bytes`: the most memory for vectors in single or half precision."""
        self._dimensions = dimensions
        self._exact_rows = min(EXACT_ROWS, max_bytes // (4 * max(1, dimensions)))
        self._halves_rows = min(HALVES_ROWS, max_bytes // (2 * max(1, dimensions)))
        self._rows: VectorRows | None = None
        self._revision = -1
        self._lock = threading.Lock()
        """Held while the rows change or are loaded."""

    @property
    def bytes(self) -> int:
        return 0 if (rows := self._rows) is None else rows.bytes

    def is_current(self, revision: int) -> bool:
        """Whether the memory has this revision."""
        with self._lock:
            return self._revision == revision

    def get(self, connection: sqlite3.Connection, revision: int) -> VectorRows | None:
        """Returns the vectors of a revision, and loads them if necessary. `revision`: the revision that the
        connection reads. Returns None if the memory has another revision. The caller must then begin again
        with a new read."""
        with self._lock:
            if self._rows is None and self._revision <= revision:
                self._rows, self._revision = self._read(connection), revision
            return self._rows if self._revision == revision else None

    def _read(self, connection: sqlite3.Connection) -> VectorRows:
        """Reads all vectors that search can find."""
        count = connection.execute("SELECT count(*) FROM vector").fetchone()[0]
        rows = self._make_rows(count)
        for block in read_blocks(connection, READY_VECTORS, DocumentState.READY):
            rows.add(block)
        return rows

    def _make_rows(self, count: int) -> VectorRows:
        """Returns a collection without vectors, of the class that is suitable for `count` vectors."""
        if count <= self._exact_rows:
            return ExactVectors(self._dimensions)
        return CodedVectors(self._dimensions, keeps_halves=count <= self._halves_rows)

    def _find_capacity(self, rows: VectorRows) -> float:
        """Returns the most rows for this kind of vectors."""
        if isinstance(rows, ExactVectors):
            return self._exact_rows
        return self._halves_rows if rows.keeps_halves else math.inf

    def publish(self, change: TableChange, revision: int) -> None:
        """Applies a committed write. The thread that wrote calls this method before the next write."""
        with self._lock:
            if self._revision >= revision:
                return  # a search has loaded this revision or a later one
            rows, self._rows, self._revision = self._rows, None, revision
            if rows is not None:
                self._rows = self._apply(rows, change)

    def _apply(self, rows: VectorRows, change: TableChange) -> VectorRows | None:
        """Returns the rows after a write. Returns None if the next search must load all rows again."""
        rows.remove(change.removed_ids)
        for number in change.new_documents:
            for block in read_blocks(change.connection, DOCUMENT_VECTORS, number):
                rows.add(block)
        if change.new_vectors:
            rows.add(change.new_vectors)
        return rows if rows.size <= self._find_capacity(rows) else None


def read_blocks(
    connection: sqlite3.Connection, statement: str, value: int | str
) -> Iterator[Sequence[VectorRow]]:
    """Yields the vectors that a statement selects, in blocks. `value`: the value for its `?`."""
    cursor = connection.execute(statement, (value,))
    while block := cursor.fetchmany(LOAD_BLOCK):
        yield [VectorRow(*row) for row in block]


class TableFile:
    """One open table. Any thread may call it. One write runs at a time, and reads run beside it."""

    def __init__(self, path: Path, project: str, memory: int) -> None:
        """`memory`: the most bytes of vectors in single or half precision. Raises KnowledgeTableDamaged,
        KnowledgeUnavailable for a file of a later version, and ForeignFile."""
        self.path = path
        self._readers: list[sqlite3.Connection] = []
        self._readers_lock = threading.Lock()
        self._write_lock = threading.Lock()
        self._is_deleted = False
        self._is_sweeping = False
        with translate_errors(path):
            self._writer = self._open_writer()
            try:
                marks = self._require_marks(project)
                self.counts = count_contents(self._writer)
                self.settings = decode_table(marks["settings"])
                self.created_at, self.updated_at = int(marks["created_at"]), int(marks["updated_at"])
            except (KeyError, TypeError, ValueError):
                self._writer.close()
                raise KnowledgeTableDamaged("the file of this knowledge table is damaged") from None
            except BaseException:
                self._writer.close()
                raise
        self.is_unswept = marks.get(UNSWEPT) != "0"
        """Whether the file can contain words of removed chunks."""
        self.memory = VectorMemory(self.settings.dimensions, memory)
        self.word_counts: dict[str, tuple[int, int]] = {}
        """The cached counts by term: how many chunks have the word, and how many chunks the table had when
        they were counted."""
        if marks.get("segmentation") != str(SEGMENTATION):
            self._rebuild_words()

    @property
    def info(self) -> TableInfo:
        """The table as callers see it."""
        counts = self.counts
        return TableInfo(
            self.settings, self.created_at, self.updated_at, counts.documents, counts.chunks, counts.bytes
        )

    def _open_writer(self) -> sqlite3.Connection:
        writer = connect(self.path)
        writer.create_function("segment", 1, segment, deterministic=True)
        writer.create_function("name_document", 1, name_document, deterministic=True)
        return writer

    def _require_marks(self, project: str) -> dict[str, str]:
        """Returns the file's marks. Raises KnowledgeTableDamaged, KnowledgeUnavailable for a later version,
        and ForeignFile."""
        version = read_version(self._writer)
        if version > VERSION:
            raise KnowledgeUnavailable(
                "a later version of Antiphon made this knowledge table: install that version, or delete it"
            )
        application_id = self._writer.execute("PRAGMA application_id").fetchone()[0]
        if not version or application_id != APPLICATION_ID:
            raise KnowledgeTableDamaged("the file of this knowledge table is empty, or is something else")
        marks = read_marks(self._writer)
        if marks.get("project") != project:
            raise ForeignFile("the file of this knowledge table is not of this project, so it stays closed")
        return marks

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Runs statements that all see the same state of the table."""
        with translate_errors(self.path):
            connection = self._take_reader()
            try:
                with begin_read(connection):
                    yield connection
            except sqlite3.Error:
                connection.close()
                raise
            except BaseException:
                self._return_reader(connection)
                raise
            self._return_reader(connection)

    def _return_reader(self, connection: sqlite3.Connection) -> None:
        with self._readers_lock:
            self._readers.append(connection)

    def _take_reader(self) -> sqlite3.Connection:
        with self._readers_lock:
            if self._readers:
                return self._readers.pop()
        return connect(self.path)

    @contextmanager
    def write(self, now: int, reserve: Reserve) -> Iterator[TableChange]:
        """Runs one write. At the end, it is on the disk. After an error, it is undone. `now`: Unix
        milliseconds. Raises TableGone if the table was deleted."""
        with self._write_lock, translate_errors(self.path), ExitStack() as reservations:
            if self._is_deleted:
                raise TableGone("this knowledge table was deleted", param="table")
            change = TableChange(
                self._writer, self.settings, now, lambda added: reservations.enter_context(reserve(added))
            )
            with begin_write(self._writer):
                yield change
                revision = read_revision(self._writer) + change.affects_vectors
                write_marks(self._writer, revision=str(revision), updated_at=str(now))
                if change.removed_ids:
                    write_marks(self._writer, **{UNSWEPT: "1"})
                counts = count_contents(self._writer)
            self.counts, self.updated_at = counts, now
            if change.removed_ids:
                self.is_unswept, self._is_sweeping = True, False
            self.memory.publish(change, revision)

    def sweep(self) -> bool:
        """Overwrites some of the removed words in the file. Returns whether the file still contains others.

        This is necessary because the full-text index only marks words as removed until it merges its parts,
        and because the write-ahead log keeps old pages.
        """
        with self._write_lock, translate_errors(self.path):
            if self._is_deleted or not self.is_unswept:
                return False
            # A negative number begins a merge of all parts.
            page_count = SWEEP_PAGES if self._is_sweeping else -SWEEP_PAGES
            self._is_sweeping = True
            changes_before = self._writer.total_changes
            with begin_write(self._writer):
                self._writer.execute("INSERT INTO words (words, rank) VALUES ('merge', ?)", (page_count,))
                # FTS5 documents fewer than two changes as the end of the merge.
                is_merged = self._writer.total_changes - changes_before < 2
                if is_merged:
                    write_marks(self._writer, **{UNSWEPT: "0"})
            if is_merged:
                self.is_unswept = self._is_log_busy()
            return self.is_unswept

    def _is_log_busy(self) -> bool:
        """Tries to empty the write-ahead log. Returns whether it is not empty, because readers still need
        it."""
        self._writer.execute(f"PRAGMA busy_timeout = {SWEEP_WAIT_MS}")
        try:
            return bool(self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0])
        finally:
            self._writer.execute(f"PRAGMA busy_timeout = {int(BUSY_S * 1000)}")

    def rename(self, settings: TableSettings, now: int) -> None:
        """Stores the settings, which have the new name."""
        with self.write(now, reserve_nothing) as change:
            write_marks(change.connection, settings=encode_table(settings))
        self.settings = settings

    def copy_into(self, target: Path, prepare: Callable[[sqlite3.Connection], None]) -> None:
        """Copies the table into a new file. `prepare` changes the copy before it is complete."""
        with translate_errors(self.path):
            target.touch(mode=0o600, exist_ok=False)
            source = connect(self.path)
            try:
                source.execute("VACUUM INTO ?", (str(target),))
            finally:
                source.close()
            copy = connect(target)
            try:
                with begin_write(copy):
                    prepare(copy)
                copy.execute("PRAGMA journal_mode = WAL")
            finally:
                copy.close()

    def forbid_writes(self) -> None:
        """Waits for the running write, and makes later writes raise TableGone."""
        with self._write_lock:
            self._is_deleted = True

    def close(self) -> None:
        """Closes all connections. No call may be running."""
        for connection in [*self._readers, self._writer]:
            connection.close()
        self._readers.clear()

    def _rebuild_words(self) -> None:
        """Makes the full-text index again, because this version splits words in another way."""
        with self.write(self.updated_at, reserve_nothing) as change:
            change.connection.execute("DELETE FROM words")
            for (number,) in change.connection.execute(
                "SELECT number FROM document WHERE state = ?", (DocumentState.READY,)
            ).fetchall():
                change.index_words("document = ?", number)
            write_marks(change.connection, segmentation=str(SEGMENTATION))


def reserve_nothing(_: IndexUsage) -> AbstractContextManager[None]:
    """Reserves nothing. It is the `Reserve` of writes that add nothing."""
    return nullcontext()


def count_contents(connection: sqlite3.Connection) -> TableCounts:
    """Counts the documents, chunks and bytes of a table."""
    row = connection.execute("SELECT count(*) - 1, sum(chunks), sum(stored) FROM document").fetchone()
    return TableCounts(*row)
