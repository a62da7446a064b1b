"""The database of knowledge tables: its relations, its transactions and errors, and the extension pgvector.

The schema is separate from the store's tables. Three relations contain the tables, documents and batches of
all projects. Each table has its own relations for its chunks. So an index contains only rows of one table.
With one index for all tables, pgvector's HNSW would find too few rows, because it filters after the search.
"""

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


SCHEMA = "antiphon_knowledge"

VERSION = 1
"""The version of the relations."""

LOCK_NUMBER = 0x616E746B
"""The first of the two numbers of every advisory lock. The second is 0 for the schema, or a project's
hash."""

SHARED_RELATIONS = f"""
CREATE SCHEMA {SCHEMA};
CREATE TABLE {SCHEMA}.mark (name text PRIMARY KEY, value text NOT NULL);
CREATE TABLE {SCHEMA}.tables (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    project text NOT NULL,
    name text NOT NULL,
    settings text NOT NULL,
    vector_type text NOT NULL,
    segmentation integer NOT NULL,
    next_chunk bigint NOT NULL DEFAULT 1,
    documents bigint NOT NULL DEFAULT 0,
    chunks bigint NOT NULL DEFAULT 0,
    stored bigint NOT NULL DEFAULT 0,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    UNIQUE (project, name)
);
CREATE TABLE {SCHEMA}.documents (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    owner bigint NOT NULL REFERENCES {SCHEMA}.tables ON DELETE CASCADE,
    id text NOT NULL,
    name text NOT NULL,
    digest text NOT NULL,
    media_type text NOT NULL,
    bytes bigint NOT NULL,
    state text NOT NULL,
    error text,
    progress integer NOT NULL DEFAULT 0,
    warnings text NOT NULL DEFAULT '[]',
    chunks bigint NOT NULL DEFAULT 0,
    stored bigint NOT NULL DEFAULT 0,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    UNIQUE (owner, id),
    UNIQUE (owner, digest)
);
CREATE INDEX ON {SCHEMA}.documents (owner, name);
CREATE TABLE {SCHEMA}.batches (
    document bigint NOT NULL REFERENCES {SCHEMA}.documents ON DELETE CASCADE,
    number integer NOT NULL,
    PRIMARY KEY (document, number)
);
INSERT INTO {SCHEMA}.mark VALUES ('version', '{VERSION}');
"""  # noqa: S608 - constants
"""`stored` is the size of texts and vectors in bytes. `tables.vector_type` is the pgvector type of the
table's vectors."""

TABLE_RELATIONS = """
CREATE TABLE {chunks} (
    id bigint PRIMARY KEY,
    document bigint,
    text text NOT NULL,
    title text NOT NULL,
    page integer,
    file_name text NOT NULL,
    metadata text NOT NULL,
    stored bigint NOT NULL,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL
);
CREATE TABLE {words} (
    id bigint PRIMARY KEY,
    document bigint,
    ready boolean NOT NULL,
    length integer NOT NULL,
    words tsvector NOT NULL
) WITH (toast_tuple_target = 8160);
CREATE TABLE {counts} (word text COLLATE "C" PRIMARY KEY, chunks bigint NOT NULL);
"""
"""`document` is null for a chunk that belongs to no document. `words.length` is the number of words. `counts`
has the number of ready chunks that contain a word. Rows of words are stored inline (toast_tuple_target),
because a search reads one for each hit."""

TABLE_INDEXES = """
CREATE INDEX ON {chunks} (document, id);
CREATE INDEX ON {words} (document);
CREATE INDEX ON {words} USING gin (words) WITH (fastupdate = off) WHERE ready;
"""
"""Search finds only rows that are `ready`. Its indexes contain only these rows, so that it finds enough."""

TABLE_VECTORS = """
CREATE TABLE {vectors} (
    id bigint PRIMARY KEY,
    document bigint,
    ready boolean NOT NULL,
    value {column} NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.05);
"""
"""HNSW visits removed rows until they are vacuumed, so vacuum runs early."""

TABLE_VECTOR_INDEXES = """
CREATE INDEX ON {vectors} (document);
"""
NEAREST_INDEX = "CREATE INDEX ON {vectors} USING hnsw (value {operators}) WHERE ready"

RELATIONS = ("chunks", "words", "counts", "vectors")


def prepare_schema(connection: Connection) -> Pgvector:
    """Adds the extension and the schema if they are missing. Returns the extension. Raises
    KnowledgeUnavailable."""
    connection.execute(sa.text("SELECT pg_advisory_xact_lock(:lock, 0)"), {"lock": LOCK_NUMBER})
    if connection.execute(sa.text("SHOW server_encoding")).scalar_one() != "UTF8":
        raise KnowledgeUnavailable(f"knowledge tables need a database in UTF8: use one, {USE_FILES}")
    pgvector = add_pgvector(connection)
    version = read_version(connection)
    if version is None:
        make_schema(connection)
    elif version > VERSION:
        raise KnowledgeUnavailable(
            "a later version of Antiphon made the knowledge tables of this database: run that version"
        )
    return pgvector


def read_version(connection: Connection) -> int | None:
    """Returns the version of the relations; None if there are none."""
    relation = connection.execute(sa.text("SELECT to_regclass(:name)"), {"name": f"{SCHEMA}.mark"}).scalar()
    if relation is None:
        return None
    statement = f"SELECT value FROM {SCHEMA}.mark WHERE name = 'version'"  # noqa: S608 - a constant
    return int(connection.execute(sa.text(statement)).scalar_one())


def make_schema(connection: Connection) -> None:
    """Creates the schema and the relations that all tables share. Raises KnowledgeUnavailable if the
    database's user has no right to create a schema."""
    try:
        run_statements(connection, SHARED_RELATIONS)
    except sa.exc.ProgrammingError as problem:
        if getattr(problem.orig, "sqlstate", None) != FORBIDDEN_STATE:
            raise
        raise KnowledgeUnavailable(
            "the database's user is not allowed to make the schema of knowledge tables: run GRANT CREATE ON "
            f"DATABASE for it, {USE_FILES}"
        ) from None


FORBIDDEN_STATE = "42501"
"""PostgreSQL's code for a missing privilege."""


def run_statements(connection: Connection, statements: str) -> None:
    """Runs statements that return nothing."""
    for statement in statements.strip().removesuffix(";").split(";\n"):
        connection.execute(sa.text(statement))


def name_relations(table_number: int) -> dict[str, str]:
    """Returns the names of all relations that a table's statements use."""
    own_relations = {name: f"{SCHEMA}.{name}_{table_number}" for name in RELATIONS}
    return own_relations | {name: f"{SCHEMA}.{name}" for name in ("tables", "documents", "batches")}


def make_relations(
    connection: Connection, table_number: int, pgvector: Pgvector, vector_type: str, dimensions: int
) -> None:
    """Makes the relations of a table. Their only indexes are those of the primary keys."""
    names = name_relations(table_number)
    run_statements(connection, TABLE_RELATIONS.format_map(names))
    if dimensions:
        column = pgvector.build_column_type(vector_type, dimensions)
        run_statements(connection, TABLE_VECTORS.format_map(names | {"column": column}))


def make_indexes(
    connection: Connection, table_number: int, pgvector: Pgvector, vector_type: str, dimensions: int
) -> None:
    """Makes the indexes of a table. Vectors with too many dimensions for HNSW get no index: each search reads
    all vectors."""
    names = name_relations(table_number)
    run_statements(connection, TABLE_INDEXES.format_map(names))
    if dimensions:
        run_statements(connection, TABLE_VECTOR_INDEXES.format_map(names))
        if dimensions <= INDEXED_DIMENSIONS[vector_type]:
            operators = pgvector.qualify(f"{vector_type}_ip_ops")
            run_statements(connection, NEAREST_INDEX.format_map(names | {"operators": operators}))


def drop_relations(connection: Connection, table_number: int) -> None:
    names = name_relations(table_number)
    run_statements(connection, "DROP TABLE IF EXISTS " + ", ".join(names[name] for name in RELATIONS))


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
