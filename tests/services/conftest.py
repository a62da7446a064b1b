"""A database of each test's own, with this version's tables: no test here is about the migrations."""

from pathlib import Path

import pytest

from tests.store.conftest import template
from tests.support.databases import *  # noqa: F403 - fixtures are found by their names; `__all__` lists them
from tests.support.stores import open_new_store

__all__ = ["template"]


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        cluster, name = map(request.getfixturevalue, ("cluster", "template"))
        return str(cluster.database("--template", name))
    path = tmp_path / "antiphon.db"
    open_new_store(path).close()
    return f"sqlite:///{path}"
