"""A database of each test's own, in SQLite and in PostgreSQL."""

import pytest

from antiphon.store.database import Database
from antiphon.store.tenancy import SqlTenancy
from tests.support.databases import *  # noqa: F403 - fixtures are found by their names; `__all__` lists them


@pytest.fixture
def sqlite(tmp_path):
    return f"sqlite:///{tmp_path}/antiphon.db"


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def database(url):
    made = Database(url)
    made.prepare()
    yield made
    made.close()


@pytest.fixture
def tenancy(database):
    return SqlTenancy(database)
