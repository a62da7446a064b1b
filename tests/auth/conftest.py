"""A database of each test's own, as the store's tests have it."""

from tests.postgresql import *  # noqa: F403 - fixtures are found by their names; `__all__` lists them
from tests.store.conftest import sqlite, url

__all__ = ["sqlite", "url"]
