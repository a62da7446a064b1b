"""A database of each test's own."""

import pytest

from antiphon.store.database import Database
from antiphon.store.tenancy import SqlTenancy


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/antiphon.db"


@pytest.fixture
def database(url):
    made = Database(url)
    made.ready()
    yield made
    made.close()


@pytest.fixture
def tenancy(database):
    return SqlTenancy(database)
