"""A database of each test's own, with this version's tables: no test here is about the migrations."""

from pathlib import Path

import pytest

from tests.support.databases import *  # noqa: F403 - fixtures are found by their names; `__all__` lists them
from tests.support.prepared_databases import *  # noqa: F403
from tests.support.stores import open_new_store


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        return str(request.getfixturevalue("prepared_postgresql"))
    path = tmp_path / "antiphon.db"
    open_new_store(path).close()
    return f"sqlite:///{path}"
