"""A database of each test's own, in SQLite and in PostgreSQL."""

from contextlib import closing
from urllib.parse import urlsplit

import pytest

from antiphon.store.database import Database
from antiphon.store.tenancy import SqlTenancy
from tests.support.databases import *  # noqa: F403 - fixtures are found by their names; `__all__` lists them
from tests.support.stores import open_new_store


@pytest.fixture
def sqlite(tmp_path):
    return f"sqlite:///{tmp_path}/antiphon.db"


@pytest.fixture(scope="session")
def template(cluster):
    """The name of a database in PostgreSQL that has this version's tables; others are copies of it."""
    url = cluster.database()
    with closing(Database(url)) as made:
        made.prepare()
    return urlsplit(url).path.removeprefix("/")


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request):
    if request.param == "postgresql" and "database" in request.fixturenames:
        cluster, template = map(request.getfixturevalue, ("cluster", "template"))
        return cluster.database("--template", template)
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
