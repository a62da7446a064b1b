"""A database of each test's own, in SQLite and in PostgreSQL."""

import pytest

from antiphon.store.database import Database
from antiphon.store.tenancy import SqlTenancy
from tests.support.databases import *  # noqa: F403 - fixtures are found by their names; `__all__` lists them
from tests.support.prepared_databases import *  # noqa: F403
from tests.support.stores import open_new_store


@pytest.fixture
def sqlite(tmp_path):
    return f"sqlite:///{tmp_path}/antiphon.db"


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request):
    if request.param == "postgresql" and "database" in request.fixturenames:
        return request.getfixturevalue("prepared_postgresql")
    return request.getfixturevalue(request.param)


@pytest.fixture
def database(url, tmp_path):
    """With this version's tables."""
    made = open_new_store(tmp_path / "antiphon.db") if url.startswith("sqlite") else Database(url)
    yield made
    made.close()


@pytest.fixture
def tenancy(database):
    return SqlTenancy(database)
