"""Databases with this version's tables, copied from one that was made once: the migrations take 60 ms of CPU,
and hundreds of tests have a database of their own. tests/store makes them by the migrations."""

import sqlite3
import tempfile
from contextlib import closing
from functools import cache
from pathlib import Path

from antiphon.store.database import Database


def open_new_store(path: Path, **options: bool) -> Database:
    """A database in a new file, as `Database.prepare` leaves it."""
    path.touch(mode=0o600)
    path.write_bytes(_make_file())
    return Database(f"sqlite:///{path}", **options)


@cache
def _make_file() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "made.db"
        with closing(Database(f"sqlite:///{path}")) as database:
            database.prepare()
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        assert not path.with_name("made.db-wal").exists(), "all is in the file"
        return path.read_bytes()
