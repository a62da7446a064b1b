"""Hears from the database what changes of the directory, whichever process or node changes it.

SQLite has a counter that moves with every change of the file; it is looked at five times a second, at the
price of a look into shared memory, and at once where a process of the same server says that it changed
something. PostgreSQL tells its listeners when a change is kept; the revision is read
once a second beside that, so that a lost word costs no more than the second.
"""

import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing

from sqlalchemy.engine import Connection

from antiphon.errors import StoreUnavailable
from antiphon.store.changing import CHANNEL, revision_of
from antiphon.store.database import Database
from antiphon.telemetry.logs import record

LOOK_S = 0.2
"""Seconds between two looks at a file, and the longest that the end of a feed is waited for."""
READ_S = 1.0
"""Seconds between two readings of PostgreSQL's revision while it tells nothing."""
SHORTEST_S, LONGEST_S = 0.1, 2.0
"""Seconds until a database that does not answer is asked again: at first, and after many times."""
CLOSING_S = 2.0
"""Seconds for which `close` waits; what connects for longer ends with the process."""


class SqlFeed:
    """`store.base.Feed` over a database: one thread, and one connection of its own."""

    def __init__(self, database: Database, wait: Callable[[float], object] | None = None) -> None:
        """`wait` blocks for so many seconds, or until somebody says that something changed; for SQLite."""
        self._database = database
        self._over = threading.Event()
        self._wait = wait or self._over.wait
        self._thread: threading.Thread | None = None
        self._pause = SHORTEST_S

    def start(self, told: Callable[[int], None]) -> None:
        self._thread = threading.Thread(target=self._run, args=(told,), name="antiphon-feed", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join(CLOSING_S)

    def _run(self, told: Callable[[int], None]) -> None:
        while not self._over.is_set():
            try:
                self._tell(told)
            except StoreUnavailable as problem:
                self._lost(problem)

    def _tell(self, told: Callable[[int], None]) -> None:
        """Tells until the feed is closed. Raises StoreUnavailable."""
        with closing(self._revisions()) as revisions:
            for revision in revisions:
                told(revision)
                if self._pause > SHORTEST_S:
                    record("feed_resumed", logging.INFO, database=self._database.shown)
                self._pause = SHORTEST_S

    def _lost(self, problem: StoreUnavailable) -> None:
        """Says it once, and waits, longer from time to time."""
        if self._pause == SHORTEST_S:
            record("feed_lost", logging.WARNING, database=self._database.shown, problem=problem.message)
        self._over.wait(self._pause)
        self._pause = min(2 * self._pause, LONGEST_S)

    def _revisions(self) -> Generator[int]:
        """The revision now, and each time that it is another one."""
        with self._database.alone() as connection:
            postgresql = connection.dialect.name == "postgresql"
            moves = _told(connection, self._over) if postgresql else self._counted(connection)
            known = None
            for _ in moves:
                revision = revision_of(connection)
                if revision != known:
                    yield revision
                    known = revision

    def _counted(self, connection: Connection) -> Iterator[None]:
        """Each time that SQLite's counter has moved, and at first. Raises StoreUnavailable once the file is
        not there."""
        seen = None
        while not self._over.is_set():
            self._database.require_file()
            counter = connection.exec_driver_sql("PRAGMA data_version").scalar()
            if counter != seen:
                seen = counter
                yield
            self._wait(LOOK_S)


def _told(connection: Connection, over: threading.Event) -> Iterator[None]:
    """Each time that PostgreSQL tells something, every second, and at first."""
    import psycopg  # only where it is needed: SQLite's servers do without it

    connection.exec_driver_sql(f"LISTEN {CHANNEL}")
    driver = connection.connection.dbapi_connection
    if not isinstance(driver, psycopg.Connection):
        raise StoreUnavailable("PostgreSQL's driver gives no connection that listens")
    due = 0.0
    while not over.is_set():
        heard = list(driver.notifies(timeout=LOOK_S, stop_after=1)) if time.monotonic() < due else []
        if heard or time.monotonic() >= due:
            yield
            due = time.monotonic() + READ_S
