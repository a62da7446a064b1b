"""Knowledge tables in a PostgreSQL of the tests' own that has pgvector."""

import asyncio
from collections.abc import Iterator
from contextlib import closing

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from antiphon.domain.context import SystemClock
from antiphon.retrieval.base import IndexLimits
from antiphon.retrieval.postgres.index import PostgresIndex
from antiphon.retrieval.postgres.schema import SCHEMA, drop_relations
from antiphon.store.database import Database
from tests.support.databases import Cluster

__all__ = ["knowledge_database", "opened_postgres_index", "pgvector_database", "postgres_index"]

LIMITS = IndexLimits()


@pytest.fixture(scope="session")
def pgvector_database(pgvector_cluster: Cluster) -> str:
    """The address of one database of the session."""
    return pgvector_cluster.database()


@pytest.fixture
def knowledge_database(pgvector_database: str) -> Iterator[str]:
    """The address of a database without knowledge tables."""
    yield pgvector_database
    with closing(Database(pgvector_database)) as database, database.autocommit() as connection:
        connection.execute(sa.text(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE"))


@pytest.fixture(scope="session")
def opened_postgres_index(pgvector_cluster: Cluster) -> Iterator[PostgresIndex]:
    """An index over a database of its own, with its connections."""
    index = open_postgres(pgvector_cluster.database())
    yield index
    asyncio.run(index.aclose())


@pytest.fixture
def postgres_index(opened_postgres_index: PostgresIndex) -> Iterator[PostgresIndex]:
    """That index, without tables. To open one costs as much as most tests of it."""
    yield opened_postgres_index

    def remove_tables(connection: Connection) -> None:
        for (number,) in connection.execute(sa.text(f"DELETE FROM {SCHEMA}.tables RETURNING number")).all():
            drop_relations(connection, number)

    opened_postgres_index._database.write(remove_tables)


def open_postgres(address: str, limits: IndexLimits = LIMITS) -> PostgresIndex:
    """An index over a database."""
    database = Database(address, show_details=False)
    try:
        return PostgresIndex(database, SystemClock(), limits)
    except BaseException:
        database.close()
        raise
