"""Opens a database and creates or migrates its schema.

SQLite runs in WAL mode with full synchronisation, so an acknowledged change survives a power failure.
PostgreSQL has a small connection pool. Statements can have a time limit, so that no caller occupies a
connection and a thread forever. Alembic takes a quarter of a second to import, so it is imported only for a
database whose revision is not the newest. HTTP processes do not compare the schema.
"""

import logging
import os
import re
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVarTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.engine.interfaces import DBAPIConnection, DBAPICursor
from sqlalchemy.pool import ConnectionPoolEntry

from antiphon.domain.values import Struct
from antiphon.errors import DeadlineExceeded, InvalidValue, StoreRefused, StoreUnavailable, explain_extra
from antiphon.telemetry.logs import record

if TYPE_CHECKING:
    from alembic.script import ScriptDirectory

MIGRATIONS = Path(__file__).parent / "migrations"
REVISION_TABLE = "alembic_version"
"""The table in which Alembic keeps the revision of the database."""
REVISION_QUERY = "SELECT version_num FROM alembic_version"

UPGRADE = "antiphon store upgrade"
"""The command that migrates a database to this version's schema."""

BUSY_MS = 10_000
"""Milliseconds that SQLite waits for another process to finish writing."""

LOG_WAIT_MS = 500
"""Milliseconds that `truncate_log` waits for readers. Other processes cannot write meanwhile."""

WAL_PAUSE_S = 0.01
"""Seconds before the next attempt to set SQLite's journal mode."""

POOL_SIZE = 4
"""Connections to PostgreSQL. Few are needed, because requests are not answered from the database."""

CONNECT_S = 10
"""Seconds for one attempt to connect to PostgreSQL."""

CONNECTION_TIMEOUTS: dict[str, str | int] = {
    "connect_timeout": CONNECT_S,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
"""Timeouts of PostgreSQL connections: a lost connection is detected within about ten seconds. The address can
set other values."""

WRITES = "antiphon_writes"
"""Execution option of connections that write."""

AUTOCOMMIT = "antiphon_alone"
"""Execution option of connections whose statements are transactions of their own."""

LOCK = 0x616E7469
"""The advisory lock under which PostgreSQL's tables are changed, because two servers can start at the same
time."""

NOT_CHANGED = "nothing was changed"
PERHAPS_CHANGED = "the change may have been made: read the current state before you repeat it"
"""The message for a connection that fails during a commit, because it is then unknown whether the change was
made."""

Columns = TypeVarTuple("Columns")

SECRET = re.compile(r"(?<=:)/*.*@")
"""Matches the name and password in an address, also in a malformed one."""
QUERY_SECRETS = ("password", "sslpassword", "passfile")


class SchemaState(Struct, frozen=True):
    """How the schema of the database differs from the schema of this version."""

    found_revision: str | None
    """The database's revision; None for an empty database."""
    needed_revision: str
    pending: tuple[str, ...]
    """The migrations to apply, in order: number and title."""
    is_newer: bool
    """Whether a later version of Antiphon created the schema."""


@dataclass(frozen=True, slots=True)
class PreparedQuery(Generic[*Columns]):
    """A query in SQL for the driver. See `Database.fetch`."""

    text: str
    values: Mapping[str, object]
    """The query's own values, by name."""
    places: tuple[str, ...] | None
    """The names of the values in their order; None if the driver takes them by name."""


class Database:
    """One database. Every method blocks."""

    def __init__(self, url: str, show_details: bool = True, connect_s: int | None = None) -> None:
        """Connects to nothing yet. Raises StoreRefused.

        `url`: `sqlite:///PATH`, or `postgresql://...`. `show_details`: whether errors name the database and
        quote its message, for the operator. HTTP processes leave these details to the log, because callers
        see their errors. `connect_s`: seconds for one attempt to connect; it overrides the address.
        """
        self._show_details = show_details
        try:
            self._url = sa.make_url(url)
        except (sa.exc.ArgumentError, ValueError):
            raise StoreRefused(
                f"{_mask(url.partition('?')[0])} is no address of a database; say sqlite:///PATH"
            ) from None
        self.display_url = _hide_secrets(self._url, url)
        """The address without name and password."""
        engine = _make_engine(self._url, self.display_url, connect_s)
        self._opened_file: tuple[int, int] | None = None
        """Device and inode of SQLite's file when it was first opened."""
        self._creates_file = show_details
        """Whether `require_file` creates a missing file of SQLite. HTTP processes never create it."""
        self.failure_count = 0
        """Calls that failed because the database did not answer or its file was gone."""
        self._is_missing = False
        """Whether the log already reports that the file is missing."""
        self.has_removed_texts = True
        """Whether SQLite's write-ahead log can have texts that were removed. At the start an earlier process
        can have left some."""
        self._driver_error: type[Exception] = engine.dialect.loaded_dbapi.Error
        self._writer = engine.execution_options(**{WRITES: True})
        # All reads of a transaction see the same state; with SQLite they always do.
        is_sqlite = self._url.get_backend_name() == "sqlite"
        isolation = {} if is_sqlite else {"isolation_level": "REPEATABLE READ"}
        self._engine = engine.execution_options(**isolation)
        self._autocommit = engine.execution_options(
            **({AUTOCOMMIT: True} if is_sqlite else {"isolation_level": "AUTOCOMMIT"})
        )
        self._idle: list[Connection] = []
        """The connections of `fetch` that nobody uses."""

    @property
    def file(self) -> Path | None:
        """SQLite's file; None for PostgreSQL."""
        return Path(str(self._url.database)) if self._url.get_backend_name() == "sqlite" else None

    def prepare(self) -> None:
        """Creates the tables of an empty database. Raises StoreRefused if another version created the
        tables."""
        self._creates_file = True
        if self._has_newest_schema():
            return
        state = self.read_schema_state()
        if state.is_newer:
            raise StoreRefused(
                f"the database {self.display_url} was made by a later version of Antiphon (revision "
                f"{state.found_revision}, this version knows {state.needed_revision}): run that later "
                "version, or use another database"
            )
        if state.found_revision is None:
            self._upgrade()
        elif state.pending:
            raise StoreRefused(
                f"the database {self.display_url} is of an earlier version (revision "
                f"{state.found_revision}, wanted {state.needed_revision}): "
                f"run `{UPGRADE}`, which keeps every row"
            )

    def _has_newest_schema(self) -> bool:
        """Whether the newest migration has been applied. It takes one statement and no Alembic."""
        with self.reading() as connection:
            if not sa.inspect(connection).has_table(REVISION_TABLE):
                return False
            found: list[str] = list(connection.execute(sa.text(REVISION_QUERY)).scalars())
            return found == [find_newest_revision()]

    def read_schema_state(self) -> SchemaState:
        """Compares the schema of the database with this version. Raises StoreUnavailable if the database does
        not answer, and StoreRefused if its tables are not Antiphon's."""
        from alembic.runtime.migration import MigrationContext
        from alembic.script import ScriptDirectory

        script = ScriptDirectory(str(MIGRATIONS))
        newest = script.get_current_head() or ""
        with self.reading() as connection:
            current = MigrationContext.configure(connection).get_current_revision()
            if current is None and sa.inspect(connection).get_table_names():
                raise StoreRefused(f"the database {self.display_url} holds tables that are not Antiphon's")
        revisions = [migration.revision for migration in script.walk_revisions()]
        is_newer = current is not None and current not in revisions
        pending = () if is_newer else tuple(_list_pending(script, current))
        return SchemaState(current, newest, pending, is_newer)

    def upgrade(self, backup: Path | None = None) -> Path | None:
        """Applies all pending migrations, or none if one fails. First copies a SQLite file to `backup`, or to
        a file next to the database, and returns the path of the copy. Returns None if nothing was copied.
        Raises StoreRefused, also for a `backup` of PostgreSQL."""
        state = self.read_schema_state()
        if state.is_newer:
            self.prepare()  # raises the error
        if backup and not self.file:
            raise StoreRefused(
                f"{self.display_url} is not a file and cannot be copied: leave --backup out and use pg_dump"
            )
        if not state.pending:
            return None
        copy = self._copy_file(backup, state.found_revision) if self.file and state.found_revision else None
        self._upgrade()
        return copy

    def _upgrade(self) -> None:
        """Applies all pending migrations in one transaction. No other server can change the tables
        meanwhile."""
        from alembic import command
        from alembic.config import Config

        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
        with self._altering() as connection:
            if connection.dialect.name == "postgresql":  # in SQLite, writers always wait for each other
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(LOCK)))
            config.attributes["connection"] = connection
            command.upgrade(config, "head")

    def require_file(self) -> None:
        """Checks that SQLite's file is the file that was opened. Creates a missing file if nothing was opened
        yet and this process creates files. Raises StoreUnavailable if the file was removed or replaced,
        because later writes would be lost. Logs that once, and logs once when the file is back."""
        if self.file is None:
            return
        identity = _get_file_identity(self.file)
        if identity is None and self._opened_file is None and self._creates_file:
            if self.file.parent.is_dir():  # otherwise SQLite reports the error
                self.file.touch(mode=0o600)
            identity = _get_file_identity(self.file)
        elif identity is None or self._opened_file not in (None, identity):
            if not self._is_missing:
                record("store_moved", logging.ERROR, database=self.display_url)
            self._is_missing = True
            self.failure_count += 1
            raise StoreUnavailable(
                "the file of the database was removed or replaced while it was in use; put it back, or start "
                f"the server again: {NOT_CHANGED}"
            )
        elif self._is_missing:
            record("store_back", logging.INFO, database=self.display_url)
            self._is_missing = False
        self._opened_file = identity

    def _copy_file(self, backup: Path | None, revision: str | None) -> Path:
        """Copies SQLite's file to `backup` or next to itself, and returns the path of the copy. Raises
        StoreRefused if the copy exists, or if the database is not a file."""
        source = self.file
        if source is None:
            raise StoreRefused(f"the database {self.display_url} is not a file and cannot be copied")
        target = backup or source.with_name(f"{source.name}.{revision}.bak")
        if target.exists():
            raise StoreRefused(f"{target} exists already; move it away, or name another path for the copy")
        with self.reading() as connection, closing(create_copy(target)) as copy:
            driver_connection = connection.connection.driver_connection
            if driver_connection is None:
                raise StoreUnavailable(f"the database {self.display_url} does not answer")
            driver_connection.backup(copy)
        shutil.copymode(source, target)
        return target

    def dump(self, target: Path) -> None:
        """Has pg_dump write PostgreSQL's database to a new file. Raises StoreRefused."""
        # Everybody on this machine can read a program's arguments, so the password goes by the environment.
        password = self._url.password or self._url.query.get("password")
        address = self._url.set(drivername="postgresql", password=None).difference_update_query(["password"])
        environment = {**os.environ, "PGPASSWORD": str(password)} if password else dict(os.environ)
        command = ["pg_dump", "--format=custom", f"--file={target}", "--no-password"]
        command += ["--dbname", address.render_as_string(hide_password=False)]
        target.touch(mode=0o600, exist_ok=False)
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            raise StoreRefused("pg_dump is missing: install PostgreSQL's client programs") from None
        if done.returncode:
            raise StoreRefused(f"pg_dump failed: {done.stderr.strip() or done.returncode}")

    @contextmanager
    def reading(self, timeout_s: float | None = None) -> Iterator[Connection]:
        """Opens a connection for one consistent read. `timeout_s`: the time limit in seconds, as in
        `limit_time`.
        Raises StoreUnavailable, and DeadlineExceeded for a slower statement."""
        with (
            self._translate_errors(),
            self._engine.connect() as connection,
            nullcontext() if timeout_s is None else limit_time(connection, timeout_s),
        ):
            yield connection

    def prepare_query(self, query: sa.Select[*Columns]) -> PreparedQuery[*Columns]:
        """Writes a query in SQL, for `fetch`."""
        compiled = query.compile(self._engine)
        places = tuple(compiled.positiontup or ()) if compiled.positional else None
        return PreparedQuery(compiled.string, compiled.params, places)

    def fetch(
        self, query: PreparedQuery[*Columns], values: Mapping[str, object]
    ) -> Sequence[tuple[*Columns]]:
        """Returns the rows of a query. It takes a fifth of the time of `reading`: the connection stays open,
        and the query is a transaction of its own. Raises StoreUnavailable."""
        named = {**query.values, **values}
        parameters = named if query.places is None else tuple(named[name] for name in query.places)
        with self._translate_errors():
            while True:
                try:
                    connection, is_new = self._idle.pop(), False
                except IndexError:
                    connection, is_new = self._autocommit.connect(), True
                try:
                    with closing(connection.connection.cursor()) as cursor:
                        cursor.execute(query.text, parameters)
                        rows: Sequence[tuple[*Columns]] = cursor.fetchall()
                except self._driver_error:
                    connection.invalidate()
                    connection.close()
                    if is_new:
                        raise
                    # The database may have ended the connection while nobody used it.
                else:
                    self._idle.append(connection)
                    return rows

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Opens one transaction. Commits it at the end of the block, or rolls it back if the block raises an
        error. Raises StoreUnavailable."""
        with (
            self._translate_errors(),
            self._writer.connect() as connection,
            connection.begin() as transaction,
        ):
            yield connection
            with self._translate_errors(PERHAPS_CHANGED):
                transaction.commit()

    @contextmanager
    def autocommit(self) -> Iterator[Connection]:
        """Opens a connection in autocommit mode: each statement is a transaction. Raises StoreUnavailable."""
        with self._translate_errors(), self._autocommit.connect() as connection:
            connection.detach()
            yield connection

    def truncate_log(self) -> bool:
        """Moves SQLite's write-ahead log into the database, and empties its file: earlier versions of changed
        pages are in it. Returns False if others read or write for LOG_WAIT_MS, so that it stays. PostgreSQL
        manages its log itself. Raises StoreUnavailable."""
        if self.file is None:
            return True
        with self.autocommit() as connection:
            connection.exec_driver_sql(f"PRAGMA busy_timeout={LOG_WAIT_MS}")
            is_busy, _, _ = connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").one()
        return not is_busy

    @contextmanager
    def _altering(self) -> Iterator[Connection]:
        """Opens one transaction that can rebuild tables. Raises StoreUnavailable, and StoreRefused if a
        foreign key is violated at the end."""
        with self._translate_errors(), self._writer.connect() as connection:
            is_sqlite = connection.dialect.name == "sqlite"
            with _without_foreign_keys(connection) if is_sqlite else nullcontext(), connection.begin():
                yield connection
                if is_sqlite and connection.exec_driver_sql("PRAGMA foreign_key_check").first():
                    raise StoreRefused(f"rows of {self.display_url} refer to other rows that are missing")

    @contextmanager
    def _translate_errors(self, consequence: str = NOT_CHANGED) -> Iterator[None]:
        """Calls `require_file`, and turns the driver's errors into errors of one sentence, without the values
        that were sent. `consequence`: what the error says about the change."""
        try:
            self.require_file()
            yield
        except sa.exc.IntegrityError:
            raise
        except sa.exc.DataError:
            raise InvalidValue(
                "the database cannot store that text: it is too long, or contains a NUL"
            ) from None
        except (sa.exc.SQLAlchemyError, self._driver_error) as problem:
            driver = problem if isinstance(problem, self._driver_error) else getattr(problem, "orig", None)
            reason = str(driver or type(problem).__name__).strip().split("\n")[0]
            self.failure_count += 1
            if self._show_details:
                raise StoreUnavailable(f"the database {self.display_url} failed: {reason}") from None
            record("store_failed", logging.ERROR, database=self.display_url, problem=reason)
            raise StoreUnavailable(f"the database does not answer; {consequence}") from None

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()
        self._engine.dispose()


def find_newest_revision() -> str:
    """Returns this version's newest revision of the schema: the number in the name of its file."""
    return max(path.name[1:].partition("_")[0] for path in (MIGRATIONS / "versions").glob("r*.py"))


def knows_revision(revision: str) -> bool:
    """Whether this version knows a revision of the schema."""
    from alembic.script import ScriptDirectory

    script = ScriptDirectory(str(MIGRATIONS))
    return revision in [migration.revision for migration in script.walk_revisions()]


def create_copy(target: Path) -> sqlite3.Connection:
    """Creates an empty database that only the owner can read. Raises StoreRefused."""
    try:
        target.touch(mode=0o600, exist_ok=False)
    except OSError as problem:
        raise StoreRefused(f"{target} cannot be created: {problem.strerror}") from None
    return sqlite3.connect(target)


def _get_file_identity(path: Path) -> tuple[int, int] | None:
    """Returns the device and inode of a file; None if the file is missing."""
    try:
        file_status = path.stat()
    except OSError:
        return None
    return file_status.st_dev, file_status.st_ino


def _make_engine(url: sa.URL, shown_url: str, connect_s: int | None) -> Engine:
    """Makes SQLAlchemy's engine for SQLite or PostgreSQL. Raises StoreRefused for any other database."""
    backend = url.get_backend_name()
    try:
        if backend == "sqlite":
            return _make_sqlite_engine(url, shown_url)
        if backend == "postgresql":
            return _make_postgresql_engine(url, shown_url, connect_s)
    except ModuleNotFoundError:
        raise StoreRefused(f"{shown_url} needs PostgreSQL's driver: {explain_extra('postgresql')}") from None
    raise StoreRefused(
        f"{shown_url} is a database that is not supported; say sqlite:///PATH or postgresql://..."
    )


def _hide_secrets(url: sa.URL, text: str) -> str:
    """Returns an address without its user name and password. An address of SQLite has none, and is returned
    unchanged. `text`: the address as it was configured."""
    if url.get_backend_name() == "sqlite":
        return text
    public_url = url.difference_update_query(QUERY_SECRETS).render_as_string(hide_password=True)
    address, question_mark, query = public_url.partition("?")
    return _mask(address) + question_mark + query


def _mask(address: str) -> str:
    """Replaces the user name and password in an address by `***`."""
    return SECRET.sub("//***@", address)


def _make_postgresql_engine(url: sa.URL, shown_url: str, connect_s: int | None) -> Engine:
    """Makes the engine of a PostgreSQL database. Raises StoreRefused for an `@` that is not escaped."""
    if "@" in (url.host or ""):  # this "host" contains a part of the password, and the driver would print it
        raise StoreRefused(f"write an @ in a name or password as %40: {shown_url.rpartition('@')[2]}")
    # With this encoding every database returns text and not bytes.
    arguments: dict[str, object] = {"client_encoding": "utf8"}
    arguments |= {name: value for name, value in CONNECTION_TIMEOUTS.items() if name not in url.query}
    arguments |= {} if connect_s is None else {"connect_timeout": connect_s}
    return sa.create_engine(
        url.set(drivername="postgresql+psycopg"),
        pool_size=POOL_SIZE,
        max_overflow=POOL_SIZE,
        pool_pre_ping=True,
        hide_parameters=True,
        connect_args=arguments,
    )


def _require_plain_file(url: sa.URL, shown_url: str) -> None:
    """Raises StoreRefused if an address of SQLite does not name a plain file, because other processes could
    not open the same database."""
    base_url = shown_url.partition("?")[0]
    if url.host or url.username or url.drivername not in ("sqlite", "sqlite+pysqlite"):
        raise StoreRefused(f"{_mask(base_url)} is no address of a SQLite file; say sqlite:///PATH")
    if url.database in (None, "", ":memory:"):
        raise StoreRefused(
            f"{base_url} is a database in memory, which other processes cannot open; say sqlite:///PATH"
        )
    if url.query:
        raise StoreRefused(
            f"{base_url} takes no options, because a SQLite file has none: leave out the ? and what follows"
        )


def _make_sqlite_engine(url: sa.URL, shown_url: str) -> Engine:
    """Makes the engine of a SQLite file, with its options and transactions set up. Raises StoreRefused if the
    address is no plain file."""
    _require_plain_file(url, shown_url)
    arguments = {"check_same_thread": False, "timeout": BUSY_MS / 1000}
    engine = sa.create_engine(url, hide_parameters=True, connect_args=arguments)

    @sa.event.listens_for(engine, "connect")
    def configure(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
        # The driver must not begin transactions: `begin` below does this.
        connection.isolation_level = None
        cursor = connection.cursor()
        # secure_delete overwrites what is deleted; `truncate_log` removes it from the write-ahead log.
        for pragma in (
            f"busy_timeout={BUSY_MS}",
            "synchronous=FULL",
            "foreign_keys=ON",
            "secure_delete=ON",
        ):
            cursor.execute(f"PRAGMA {pragma}")
        _switch_to_wal(cursor)
        cursor.close()

    @sa.event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        options = connection.get_execution_options()
        if options.get(AUTOCOMMIT, False):
            return
        # A transaction that writes takes the write lock immediately: one that starts with a read fails if
        # another process writes.
        writes = options.get(WRITES, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _switch_to_wal(cursor: DBAPICursor) -> None:
    """Sets the journal mode WAL. SQLite does not wait for other processes that switch a new file at the same
    time, so this function does."""
    end = time.monotonic() + BUSY_MS / 1000
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as problem:
            if problem.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                raise
        time.sleep(WAL_PAUSE_S)


@contextmanager
def _without_foreign_keys(connection: Connection) -> Iterator[None]:
    """Turns off SQLite's foreign keys while tables are rebuilt, because SQLite does not drop a table to which
    another refers. Enter it outside a transaction: SQLite ignores the setting inside one."""
    with closing(connection.connection.cursor()) as cursor:
        cursor.execute("PRAGMA foreign_keys=OFF")
        try:
            yield
        finally:
            cursor.execute("PRAGMA foreign_keys=ON")


def _list_pending(script: "ScriptDirectory", current: str | None) -> Iterator[str]:
    """Yields the number and title of each migration after the revision `current`; None means an empty
    database."""
    migrations = list(script.iterate_revisions("head", current or "base"))
    for migration in reversed(migrations):
        yield f"{migration.revision} {(migration.doc or '').splitlines()[0]}"


STEPS_PER_CHECK = 50_000
"""The number of SQLite's virtual machine instructions between two checks of the time limit. They take some
milliseconds."""

CANCELLED = "57014"
"""PostgreSQL's code for a cancelled statement, also at its time limit."""


@contextmanager
def limit_time(connection: Connection, timeout_s: float) -> Iterator[None]:
    """Limits the time of each statement on PostgreSQL, and of the whole block on SQLite, to `within` seconds.
    Raises DeadlineExceeded."""
    try:
        if connection.dialect.name == "postgresql":
            statement = sa.text(f"SET LOCAL statement_timeout = {max(1, round(timeout_s * 1_000))}")
            connection.execute(statement)
            yield
        else:
            with _interrupt_after(connection, time.monotonic() + timeout_s):
                yield
    except sa.exc.DBAPIError as problem:
        if _is_timeout(problem.orig):
            raise DeadlineExceeded(
                f"the database needs longer than {timeout_s:g} s for this: choose a shorter time (since, "
                "until) or fewer dimensions"
            ) from None
        raise


@contextmanager
def _interrupt_after(connection: Connection, end: float) -> Iterator[None]:
    """Interrupts the statements of a SQLite connection after the monotonic time `end`."""
    driver_connection = connection.connection.driver_connection
    if not isinstance(driver_connection, sqlite3.Connection):
        raise TypeError(f"{type(driver_connection)} is not a connection to SQLite")
    driver_connection.set_progress_handler(lambda: time.monotonic() > end, STEPS_PER_CHECK)
    try:
        yield
    finally:
        driver_connection.set_progress_handler(None, STEPS_PER_CHECK)


def _is_timeout(problem: BaseException | None) -> bool:
    """Whether the database cancelled a statement at its time limit."""
    if isinstance(problem, sqlite3.Error):
        return problem.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT
    return getattr(problem, "sqlstate", None) == CANCELLED
