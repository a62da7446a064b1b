"""A database of each test's own, as the store's tests have it."""

from tests.store.conftest import sqlite, url
from tests.support.databases import *  # noqa: F403 - fixtures are found by their names; `__all__` lists them

__all__ = ["sqlite", "url"]
