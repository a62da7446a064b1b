"""Runs transactions in the database of knowledge tables, and translates their errors."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from antiphon.errors import KnowledgeUnavailable, NotFound, StoreUnavailable

T = TypeVar("T")

ATTEMPTS = 5
"""Attempts of a write that collides with other transactions."""

COLLISION_STATES = ("40P01", "40001")
"""PostgreSQL's codes for a transaction that collided with another one. It can be tried again."""

MISSING_RELATION_STATES = ("42P01", "42703")
"""PostgreSQL's codes if a relation was dropped during the call."""

DISK_FULL_STATES = ("53100", "53400")
"""PostgreSQL's codes for a full disk."""


class Transactions(Protocol):
    """A database of the store. `store.database.Database` implements it."""

    def reading(self) -> AbstractContextManager[Connection]:
        """Opens a connection. All its statements see the same state of the database."""

    def writing(self) -> AbstractContextManager[Connection]:
        """Opens one transaction. It is committed at the end, or undone after an error."""

    def close(self) -> None:
        """Closes every connection."""


class KnowledgeDatabase:
    """The database of the knowledge tables. Every method blocks."""

    def __init__(self, database: Transactions) -> None:
        self._database = database

    def read(self, call: Callable[[Connection], T]) -> T:
        """Runs a call. All its statements see the same state of the database. Raises KnowledgeUnavailable."""
        with translate_store_errors(), self._database.reading() as connection, translate_statement_errors():
            return call(connection)

    def write(self, call: Callable[[Connection], T]) -> T:
        """Runs a call in a transaction. If the transaction collides with another one, runs the call again.
        Raises KnowledgeUnavailable."""
        for _ in range(ATTEMPTS - 1):
            try:
                return self._write_once(call)
            except TransactionCollided:
                continue
        return self._write_once(call)

    def _write_once(self, call: Callable[[Connection], T]) -> T:
        with translate_store_errors(), self._database.writing() as connection, translate_statement_errors():
            return call(connection)

    def close(self) -> None:
        """Closes every connection."""
        self._database.close()


class TransactionCollided(KnowledgeUnavailable):
    """The transaction collided with another one, and changed nothing."""


@contextmanager
def translate_store_errors() -> Iterator[None]:
    """Translates errors of the store to errors of knowledge tables."""
    try:
        yield
    except StoreUnavailable as error:
        raise KnowledgeUnavailable(error.message) from None


@contextmanager
def translate_statement_errors() -> Iterator[None]:
    """Translates errors of statements that a caller can understand. Other errors are raised unchanged."""
    try:
        yield
    except sa.exc.DBAPIError as problem:
        state = getattr(problem.orig, "sqlstate", None)
        if state in COLLISION_STATES:
            raise TransactionCollided(
                "another change of this knowledge table was in the way, and nothing was changed: try again"
            ) from None
        if state in MISSING_RELATION_STATES:
            raise NotFound("this knowledge table was deleted", param="table") from None
        if state in DISK_FULL_STATES:
            raise KnowledgeUnavailable(
                "the disk of the database is full, and nothing was changed: free disk space, then try again"
            ) from None
        raise
