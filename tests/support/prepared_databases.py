"""Databases in PostgreSQL with this version's tables. Each test empties its own for the next test: a new one
takes 130 ms of CPU."""

from collections.abc import Iterator
from contextlib import closing, contextmanager

import psycopg
import pytest

from antiphon.store.database import Database
from tests.support.databases import Cluster

__all__ = ["prepared_postgresql", "spare_databases"]

COLUMNS = """
    SELECT attrelid::regclass::text, attname, atttypid, attnotnull FROM pg_attribute
    WHERE NOT attisdropped
    AND attrelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'public'::regnamespace)
    ORDER BY 1, 2
"""
TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1"
DISCONNECT_OTHERS = """
    SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
RESTART_NUMBERS = "SELECT setval(oid, 1, false) FROM pg_class WHERE relkind = 'S'"


class PreparedDatabase:
    """A database in PostgreSQL, as `Database.prepare` leaves it."""

    def __init__(self, cluster: Cluster) -> None:
        self.url = cluster.database()
        with closing(Database(self.url)) as database:
            database.prepare()
        with psycopg.connect(self.url) as connection:
            self._columns = connection.execute(COLUMNS).fetchall()
            self._rows: dict[str, bytes] = {}
            """The rows of each table, as `COPY` writes them."""
            for (table,) in connection.execute(TABLES).fetchall():
                with connection.cursor().copy(f"COPY {table} TO STDOUT".encode()) as rows:
                    self._rows[table] = b"".join(rows)

    def reset(self) -> bool:
        """Makes its rows those of a new one. Returns False if a test has changed its tables."""
        with psycopg.connect(self.url) as connection:
            connection.execute(DISCONNECT_OTHERS)
            if connection.execute(COLUMNS).fetchall() != self._columns:
                return False
            connection.execute("SET session_replication_role = replica")  # the order of tables is free
            for table, rows in self._rows.items():
                connection.execute(f"DELETE FROM {table}".encode())
                if rows:
                    with connection.cursor().copy(f"COPY {table} FROM STDIN".encode()) as copy:
                        copy.write(rows)
            connection.execute(RESTART_NUMBERS)
        return True


@pytest.fixture(scope="session")
def spare_databases() -> list[PreparedDatabase]:
    """Those that no test uses now."""
    return []


@contextmanager
def lend_prepared(cluster: Cluster, spare: list[PreparedDatabase]) -> Iterator[str]:
    """The address of a database with this version's tables, until the block ends."""
    database = spare.pop() if spare else PreparedDatabase(cluster)
    yield database.url
    if database.reset():
        spare.append(database)


@pytest.fixture
def prepared_postgresql(cluster: Cluster, spare_databases: list[PreparedDatabase]) -> Iterator[str]:
    """The address of a database with this version's tables."""
    with lend_prepared(cluster, spare_databases) as url:
        yield url
