"""A database: opened, brought to the schema that this version knows, or refused in one sentence.

SQLite runs in WAL mode with full synchronisation, so that what was answered outlives a power failure.
PostgreSQL has a small pool.
"""

import logging
import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry

from antiphon.errors import InvalidValue, StoreRefused, StoreUnavailable
from antiphon.store.bounds import bounded
from antiphon.telemetry.logs import record

MIGRATIONS = Path(__file__).parent / "migrations"
UPGRADE = "antiphon store upgrade"
"""The command that brings a database to the schema of this version."""

BUSY_MS = 10_000
"""Milliseconds for which SQLite waits for another process's write."""

POOL = 4
"""Connections to PostgreSQL; requests are not answered from the database, so few are needed."""

CONNECT_S = 10
"""Seconds for which a connection to PostgreSQL is tried."""

PATIENCE: dict[str, str | int] = {
    "connect_timeout": CONNECT_S,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
"""How long a PostgreSQL that says nothing more is waited for: a cut network is known within some ten seconds.
What the address says of these counts before."""

WRITES = "antiphon_writes"
"""Execution option of connections that change something."""

ALONE = "antiphon_alone"
"""Execution option of connections whose statements are transactions of their own."""

LOCK = 0x616E7469
"""Number of the lock under which PostgreSQL's tables are changed: two servers may start at once."""

UNCHANGED = "nothing was changed"
UNCERTAIN = "ask what holds before you repeat the change: it may have been made"
"""Where the connection ends while a change is being kept, only the database knows."""

SECRET = re.compile(r"(?<=:)/*.*@")
"""Name and password in an address, whether or not it is well-formed."""
QUERY_SECRETS = ("password", "sslpassword", "passfile")


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a database stands against this version."""

    found: str | None
    """Its revision; None is an empty database."""
    wanted: str
    pending: tuple[str, ...]
    """Revisions that are not applied yet, the next first, each with its first line."""
    newer: bool
    """Whether a later version of Antiphon made it."""


class Database:
    """One database. Every method blocks."""

    def __init__(self, url: str, told: bool = True, connect_s: int | None = None) -> None:
        """`url`: `sqlite:///PATH`, or `postgresql://...`. `told`: whether errors say where it is and what it
        said, as the operator needs it; else the log does, as callers read errors. `connect_s`: seconds for
        which a connection is tried, whatever the address says. Connects to nothing yet. Raises
        StoreRefused."""
        self._told = told
        try:
            self._url = sa.make_url(url)
        except (sa.exc.ArgumentError, ValueError):
            raise StoreRefused(
                f"{_masked(url.partition('?')[0])} is no address of a database; say sqlite:///PATH"
            ) from None
        self.shown = _shown(self._url, url)
        """The address without name and password."""
        engine = _engine(self._url, self.shown, connect_s)
        self._opened: tuple[int, int] | None = None
        """Device and inode of SQLite's file, as it was met first."""
        self._makes = told
        """Whether a file that is not there may be made: not by a process that only serves."""
        self._moved = False
        """Whether the log has it that the file is not there now."""
        self._driver_error: type[Exception] = engine.dialect.loaded_dbapi.Error
        self._writer = engine.execution_options(**{WRITES: True})
        # All reads of a transaction are of one moment; SQLite's are anyway.
        sqlite = self._url.get_backend_name() == "sqlite"
        moment = {} if sqlite else {"isolation_level": "REPEATABLE READ"}
        self._engine = engine.execution_options(**moment)
        self._alone = engine.execution_options(
            **({ALONE: True} if sqlite else {"isolation_level": "AUTOCOMMIT"})
        )

    @property
    def file(self) -> Path | None:
        """SQLite's file; None where there is none."""
        return Path(str(self._url.database)) if self._url.get_backend_name() == "sqlite" else None

    def ready(self) -> None:
        """Makes the tables of an empty database; refuses one of another version. Raises StoreRefused."""
        self._makes = True
        standing = self.standing()
        if standing.newer:
            raise StoreRefused(
                f"the database {self.shown} was made by a later version of Antiphon (revision "
                f"{standing.found}, this one knows {standing.wanted}): run that version, or another database"
            )
        if standing.found is None:
            self._upgrade()
        elif standing.pending:
            raise StoreRefused(
                f"the database {self.shown} is of an earlier version (revision {standing.found}, wanted "
                f"{standing.wanted}): run `{UPGRADE}`, which keeps every row"
            )

    def standing(self) -> Standing:
        """Raises StoreUnavailable where the database does not answer, StoreRefused where it is not ours."""
        script = ScriptDirectory(str(MIGRATIONS))
        wanted = script.get_current_head() or ""
        with self.reading() as connection:
            found = MigrationContext.configure(connection).get_current_revision()
            if found is None and sa.inspect(connection).get_table_names():
                raise StoreRefused(f"the database {self.shown} holds tables that are not Antiphon's")
        known = [each.revision for each in script.walk_revisions()]
        newer = found is not None and found not in known
        pending = () if newer else tuple(_pending(script, found))
        return Standing(found, wanted, pending, newer)

    def upgrade(self, backup: Path | None = None) -> Path | None:
        """Applies what is pending; all of it, or nothing. A SQLite file is copied first, beside itself or to
        `backup`; returns the copy. Raises StoreRefused, also for a `backup` of what is no file."""
        standing = self.standing()
        if standing.newer:
            self.ready()
        if backup and not self.file:
            raise StoreRefused(
                f"{self.shown} is no file, so it cannot be copied: use pg_dump, without --backup"
            )
        if not standing.pending:
            return None
        copy = self._copied(backup, standing.found) if self.file and standing.found else None
        self._upgrade()
        return copy

    def _upgrade(self) -> None:
        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
        with self._altering() as connection:
            if connection.dialect.name == "postgresql":  # SQLite's writers wait for each other anyway
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(LOCK)))
            config.attributes["connection"] = connection
            command.upgrade(config, "head")

    def require_file(self) -> None:
        """A new file is its owner's alone; what SQLite puts beside it gets the same rights. Raises
        StoreUnavailable for one that took the place of the file that is open, or where that was removed: what
        is written into it nobody would find again. Says so once in the log, and when it is back."""
        if self.file is None:
            return
        found = _identity(self.file)
        if found is None and self._opened is None and self._makes:
            if self.file.parent.is_dir():  # else SQLite says what is wrong
                self.file.touch(mode=0o600)
            found = _identity(self.file)
        elif found is None or self._opened not in (None, found):
            if not self._moved:
                record("store_moved", logging.ERROR, database=self.shown)
            self._moved = True
            raise StoreUnavailable(
                "the file of the database was removed or replaced while it was in use; put it back, or start "
                f"the server again: {UNCHANGED}"
            )
        elif self._moved:
            record("store_back", logging.INFO, database=self.shown)
            self._moved = False
        self._opened = found

    def _copied(self, backup: Path | None, revision: str | None) -> Path:
        source = self.file
        if source is None:
            raise StoreRefused(f"the database {self.shown} is no file, so it cannot be copied")
        target = backup or source.with_name(f"{source.name}.{revision}.bak")
        if target.exists():
            raise StoreRefused(f"{target} is there already; move it away, or say where the copy shall go")
        with self.reading() as connection, closing(sqlite3.connect(target)) as copy:
            raw = connection.connection.driver_connection
            if raw is None:
                raise StoreUnavailable(f"the database {self.shown} does not answer")
            raw.backup(copy)
        shutil.copymode(source, target)
        return target

    @contextmanager
    def reading(self, within: float | None = None) -> Iterator[Connection]:
        """A connection for one consistent read. `within`: seconds that a statement may take. Raises
        StoreUnavailable, and DeadlineExceeded for one that takes longer."""
        with (
            self._spoken(),
            self._engine.connect() as connection,
            nullcontext() if within is None else bounded(connection, within),
        ):
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """One transaction: kept when the block ends, undone when it raises. Raises StoreUnavailable."""
        with self._spoken(), self._writer.connect() as connection, connection.begin() as transaction:
            yield connection
            with self._spoken(UNCERTAIN):
                transaction.commit()

    @contextmanager
    def alone(self) -> Iterator[Connection]:
        """A connection that is nobody else's, in which every statement is a transaction of its own. Raises
        StoreUnavailable."""
        with self._spoken(), self._alone.connect() as connection:
            connection.detach()
            yield connection

    @contextmanager
    def _altering(self) -> Iterator[Connection]:
        """One transaction in which tables may be made anew. Raises StoreUnavailable and StoreRefused."""
        with self._spoken(), self._writer.connect() as connection:
            sqlite = connection.dialect.name == "sqlite"
            with _keys_resting(connection) if sqlite else nullcontext(), connection.begin():
                yield connection
                if sqlite and connection.exec_driver_sql("PRAGMA foreign_key_check").first():
                    raise StoreRefused(f"rows of {self.shown} name others that are not there")

    @contextmanager
    def _spoken(self, consequence: str = UNCHANGED) -> Iterator[None]:
        """The driver's failures in one sentence, without what was sent."""
        try:
            self.require_file()
            yield
        except sa.exc.IntegrityError:
            raise
        except sa.exc.DataError:
            raise InvalidValue(
                "the database cannot hold that text: it is too long, or has a NUL in it"
            ) from None
        except (sa.exc.SQLAlchemyError, self._driver_error) as problem:
            driver = problem if isinstance(problem, self._driver_error) else getattr(problem, "orig", None)
            said = str(driver or type(problem).__name__).strip().split("\n")[0]
            if self._told:
                raise StoreUnavailable(f"the database {self.shown} failed: {said}") from None
            record("store_failed", logging.ERROR, database=self.shown, problem=said)
            raise StoreUnavailable(f"the database does not answer; {consequence}") from None

    def close(self) -> None:
        """Closes every connection."""
        self._engine.dispose()


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _engine(url: sa.URL, shown: str, connect_s: int | None) -> Engine:
    backend = url.get_backend_name()
    try:
        if backend == "sqlite":
            return _sqlite(url, shown)
        if backend == "postgresql":
            return _postgresql(url, shown, connect_s)
    except ModuleNotFoundError:
        raise StoreRefused(f"{shown} needs PostgreSQL's driver: pip install 'antiphon[postgresql]'") from None
    raise StoreRefused(f"{shown} is a database that is not supported; say sqlite:///PATH or postgresql://...")


def _shown(url: sa.URL, said: str) -> str:
    if url.get_backend_name() == "sqlite":
        return said
    plain = url.difference_update_query(QUERY_SECRETS).render_as_string(hide_password=True)
    address, mark, query = plain.partition("?")
    return _masked(address) + mark + query


def _masked(address: str) -> str:
    return SECRET.sub("//***@", address)


def _postgresql(url: sa.URL, shown: str, connect_s: int | None) -> Engine:
    if "@" in (url.host or ""):  # the driver would print it, and it is part of a password
        raise StoreRefused(f"an @ in a name or password is written %40: {shown.rpartition('@')[2]}")
    connecting: dict[str, object] = {"client_encoding": "utf8"}  # texts, not bytes, from whatever database
    connecting |= {name: value for name, value in PATIENCE.items() if name not in url.query}
    connecting |= {} if connect_s is None else {"connect_timeout": connect_s}
    return sa.create_engine(
        url.set(drivername="postgresql+psycopg"),
        pool_size=POOL,
        max_overflow=POOL,
        pool_pre_ping=True,
        hide_parameters=True,
        connect_args=connecting,
    )


def _require_file(url: sa.URL, shown: str) -> None:
    """Raises StoreRefused for an address of SQLite that says anything but a file: other processes would find
    nothing there, or another file."""
    said = shown.partition("?")[0]
    if url.host or url.username or url.drivername not in ("sqlite", "sqlite+pysqlite"):
        raise StoreRefused(f"{_masked(said)} is no address of a SQLite file; say sqlite:///PATH")
    if url.database in (None, "", ":memory:"):
        raise StoreRefused(
            f"{said} is a database in memory, which no other process sees and which ends with its own; say "
            "sqlite:///PATH"
        )
    if url.query:
        raise StoreRefused(
            f"{said} takes no options, as a SQLite file has none: leave out the ? and the rest"
        )


def _sqlite(url: sa.URL, shown: str) -> Engine:
    _require_file(url, shown)
    connecting = {"check_same_thread": False, "timeout": BUSY_MS / 1000}
    engine = sa.create_engine(url, hide_parameters=True, connect_args=connecting)

    @sa.event.listens_for(engine, "connect")
    def configure(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
        # The driver begins no transactions by itself: `begin` below does.
        connection.isolation_level = None
        cursor = connection.cursor()
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", f"busy_timeout={BUSY_MS}"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @sa.event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        options = connection.get_execution_options()
        if options.get(ALONE, False):
            return
        # At once for writing: a reader that becomes a writer cannot wait for another, and fails.
        writes = options.get(WRITES, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


@contextmanager
def _keys_resting(connection: Connection) -> Iterator[None]:
    """SQLite drops no table that others name, so its foreign keys rest while tables are made anew. Outside
    transactions: inside, SQLite ignores the switch."""
    with closing(connection.connection.cursor()) as switch:
        switch.execute("PRAGMA foreign_keys=OFF")
        try:
            yield
        finally:
            switch.execute("PRAGMA foreign_keys=ON")


def _pending(script: ScriptDirectory, found: str | None) -> Iterator[str]:
    steps = list(script.iterate_revisions("head", found or "base"))
    for each in reversed(steps):
        yield f"{each.revision} {(each.doc or '').splitlines()[0]}"
