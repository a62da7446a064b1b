"""Knowledge tables in a PostgreSQL of the tests' own that has pgvector."""

from collections.abc import Iterator
from contextlib import closing

import pytest
import sqlalchemy as sa

from antiphon.domain.context import SystemClock
from antiphon.retrieval.base import IndexLimits
from antiphon.retrieval.postgres.index import PostgresIndex
from antiphon.retrieval.postgres.schema import SCHEMA
from antiphon.store.database import Database
from tests.support.databases import Cluster

__all__ = ["knowledge_database", "pgvector_database"]

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


def open_postgres(address: str, limits: IndexLimits = LIMITS) -> PostgresIndex:
    """An index over a database."""
    database = Database(address, show_details=False)
    try:
        return PostgresIndex(database, SystemClock(), limits)
    except BaseException:
        database.close()
        raise
