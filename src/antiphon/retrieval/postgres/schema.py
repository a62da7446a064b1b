"""The database schema of knowledge tables. It is separate from the store's tables.

Three relations contain the tables, documents and batches of all projects. Each table has its own relations
for its chunks. So an index contains only rows of one table. With one index for all tables, pgvector's HNSW
would find too few rows, because it filters after the search.
"""

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from antiphon.errors import KnowledgeUnavailable
from antiphon.retrieval.postgres.database import INDEXED_DIMENSIONS, USE_FILES, Pgvector, add_pgvector

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
