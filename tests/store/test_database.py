"""A database: made, brought up to date with every row kept, or refused in a clear sentence."""

import sqlite3
from contextlib import suppress
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from antiphon.errors import StoreRefused, StoreUnavailable
from antiphon.store.database import Database
from antiphon.store.schema import metadata


def test_an_empty_database_is_made_with_the_project_that_is_always_there(database):
    with database.reading() as connection:
        assert list(connection.execute(sa.text("SELECT id FROM projects"))) == [("default",)]
    assert database.standing().pending == ()


def test_the_revisions_make_the_tables_that_the_schema_says(database):
    with database.reading() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []


def test_what_was_answered_outlives_a_power_failure(database):
    with database.reading() as connection:
        said = [
            connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("journal_mode", "synchronous")
        ]
        assert said == ["wal", 2]


def test_foreign_keys_are_kept(database):
    with pytest.raises(sa.exc.IntegrityError), database.writing() as connection:
        connection.execute(
            metadata.tables["memberships"].insert(),
            {"project": "default", "user": "nobody", "role": "owner", "created": 1},
        )


def test_a_block_that_raises_changes_nothing(database):
    with suppress(ZeroDivisionError), database.writing() as connection:
        connection.execute(sa.text("UPDATE projects SET note = 'changed'"))
        raise ZeroDivisionError
    with database.reading() as connection:
        assert connection.execute(sa.text("SELECT note FROM projects")).scalar() == ""


def revised(url: str, revision: str) -> None:
    """Says that another revision made the database."""
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", (revision,))


def test_a_newer_database_is_refused_and_left_alone(url, database):
    revised(url, "9999")
    before = Path(url.removeprefix("sqlite:///")).read_bytes()
    for attempt in (database.ready, database.upgrade):
        with pytest.raises(StoreRefused, match=r"made by a later version of Antiphon \(revision 9999"):
            attempt()
    assert Path(url.removeprefix("sqlite:///")).read_bytes() == before


def test_tables_of_somebody_else_are_refused(url):
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        connection.execute("CREATE TABLE guests (name TEXT)")
    with pytest.raises(StoreRefused, match="tables that are not Antiphon's"):
        Database(url).ready()


def test_a_file_that_is_no_database_is_a_sentence_without_its_content(tmp_path):
    (tmp_path / "antiphon.db").write_text("my secret diary " * 100)
    with pytest.raises(StoreUnavailable, match="file is not a database") as refused:
        Database(f"sqlite:///{tmp_path}/antiphon.db").ready()
    assert "diary" not in refused.value.message


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nonsense", "no address of a database"),
        ("mysql://host/name", "not supported"),
        ("postgresql://ann:hunter2@host/name", "***"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_without_its_password(url, said, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "psycopg", None)
    with pytest.raises(StoreRefused) as refused:
        Database(url)
    assert said in refused.value.message
    assert "hunter2" not in refused.value.message
