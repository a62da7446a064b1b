"""The database of knowledge tables: its transactions and errors, and the extension pgvector."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from antiphon.domain.values import Struct
from antiphon.errors import InvalidValue, KnowledgeUnavailable, NotFound, StoreUnavailable

OLDEST_VERSION = (0, 6)
"""The oldest version that is supported."""

HALFVEC_VERSION = (0, 7)
"""The first version with vectors in half precision (`halfvec`)."""

INDEXED_DIMENSIONS = {"vector": 2000, "halfvec": 4000}
"""The most dimensions of a vector in an HNSW index, by type."""

MOST_DIMENSIONS = 16_000
"""The most dimensions of any vector."""

USE_FILES = 'or set knowledge.storage = "files"'
"""A remedy that always works. Every error message about pgvector ends with it."""

MISSING_MESSAGE = (
    "the PostgreSQL server has no pgvector, which knowledge tables need: install it (the package "
    "postgresql-{major}-pgvector of apt.postgresql.org, or the image pgvector/pgvector:pg{major}) and run "
    "CREATE EXTENSION vector, " + USE_FILES
)
FORBIDDEN_MESSAGE = (
    "pgvector is not in the database, and its user is not allowed to add it: have a superuser run CREATE "
    f"EXTENSION vector in this database, {USE_FILES}"
)


T = TypeVar("T")

ATTEMPTS = 5
"""Attempts of a write that collides with other transactions."""

COLLISION_STATES = ("40P01", "40001")
"""PostgreSQL's codes for a transaction that collided with another one. It can be tried again."""

MISSING_RELATION_STATES = ("42P01", "42703")
"""PostgreSQL's codes if a relation was dropped during the call."""

DISK_FULL_STATES = ("53100", "53400")
"""PostgreSQL's codes for a full disk."""


class Pgvector(Struct, frozen=True):
    """The extension of one database."""

    schema: str
    """The database schema that contains the extension."""
    version: tuple[int, ...]

    @property
    def newest_type(self) -> str:
        """The type of the vectors of new tables."""
        return "halfvec" if self.version >= HALFVEC_VERSION else "vector"

    def build_column_type(self, vector_type: str, dimensions: int) -> str:
        """Returns the type of a column for vectors, in SQL. Raises InvalidValue for too many dimensions."""
        if dimensions > MOST_DIMENSIONS:
            raise InvalidValue(
                f"dimensions must be at most {MOST_DIMENSIONS} where knowledge tables are in PostgreSQL",
                param="dimensions",
            )
        return f"{self.qualify(vector_type)}({dimensions})"

    def qualify(self, name: str) -> str:
        """Returns the name of a type or operator class, with its schema."""
        return f"{quote(self.schema)}.{name}"

    @property
    def product_operator(self) -> str:
        """The operator of the negative inner product. Because vectors have length 1, it sorts by the
        cosine."""
        return f"OPERATOR({quote(self.schema)}.<#>)"


def quote(name: str) -> str:
    """Returns the name of a schema, quoted for SQL."""
    return '"' + name.replace('"', '""') + '"'


def find_pgvector(connection: Connection) -> Pgvector | None:
    """Returns the extension of the database; None if it is not added yet."""
    row = connection.execute(
        sa.text(
            "SELECT nspname, extversion FROM pg_extension "
            "JOIN pg_namespace ON pg_namespace.oid = extnamespace WHERE extname = 'vector'"
        )
    ).first()
    return None if row is None else Pgvector(row[0], parse_version(row[1]))


def parse_version(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())


def add_pgvector(connection: Connection) -> Pgvector:
    """Returns the extension of the database, and adds it if it is missing. Raises KnowledgeUnavailable."""
    pgvector = find_pgvector(connection)
    if pgvector is None:
        require_installable(connection)
        try:
            connection.execute(sa.text("CREATE EXTENSION IF NOT EXISTS vector"))
        except sa.exc.ProgrammingError:
            raise KnowledgeUnavailable(FORBIDDEN_MESSAGE) from None
        pgvector = find_pgvector(connection)
    if pgvector is None or pgvector.version < OLDEST_VERSION:
        oldest_version = ".".join(map(str, OLDEST_VERSION))
        raise KnowledgeUnavailable(
            f"knowledge tables need pgvector {oldest_version} or newer: update it and run ALTER EXTENSION "
            f"vector UPDATE, {USE_FILES}"
        )
    return pgvector


def require_installable(connection: Connection) -> None:
    """Raises KnowledgeUnavailable if the server does not have the extension's files."""
    available = sa.text("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'")
    if connection.execute(available).first() is None:
        server_version = connection.execute(sa.text("SHOW server_version_num")).scalar_one()
        raise KnowledgeUnavailable(MISSING_MESSAGE.format(major=int(server_version) // 10_000))


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
