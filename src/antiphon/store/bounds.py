"""Statements that may take only so long: whoever asks for too much holds no connection and no thread for
ever."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from antiphon.errors import DeadlineExceeded

STEPS = 50_000
"""Instructions of SQLite's machine between two looks at the clock: some milliseconds."""

CANCELLED = "57014"
"""What PostgreSQL calls a statement that it ended because of its time."""


@contextmanager
def bounded(connection: Connection, within: float) -> Iterator[None]:
    """Ends what takes longer than so many seconds: on PostgreSQL each statement, on SQLite the block. Raises
    DeadlineExceeded."""
    try:
        if connection.dialect.name == "postgresql":
            local = sa.text(f"SET LOCAL statement_timeout = {max(1, round(within * 1_000))}")
            connection.execute(local)
            yield
        else:
            with _interrupted(connection, time.monotonic() + within):
                yield
    except sa.exc.DBAPIError as problem:
        if _is_late(problem.orig):
            raise DeadlineExceeded(
                f"this takes the database longer than {within:g} s: ask for a shorter time (since, until), "
                "or for fewer dimensions"
            ) from None
        raise


@contextmanager
def _interrupted(connection: Connection, end: float) -> Iterator[None]:
    raw = connection.connection.driver_connection
    if not isinstance(raw, sqlite3.Connection):
        raise TypeError(f"{type(raw)} is no connection to SQLite")
    raw.set_progress_handler(lambda: time.monotonic() > end, STEPS)
    try:
        yield
    finally:
        raw.set_progress_handler(None, STEPS)


def _is_late(problem: BaseException | None) -> bool:
    if isinstance(problem, sqlite3.Error):
        return problem.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT
    return getattr(problem, "sqlstate", None) == CANCELLED
