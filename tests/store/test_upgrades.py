"""A database of an earlier version: refused until it is brought up to date, which keeps every row or changes
nothing."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from antiphon.errors import StoreRefused, StoreUnavailable
from antiphon.store import database as module
from antiphon.store.database import Database
from antiphon.store.schema import metadata
from antiphon.store.tenancy import SqlTenancy
from tests.fixtures.store.make_database import KEYS, PROJECTS, USERS

FIRST = Path(__file__).parents[1] / "fixtures" / "store" / "0001.db"

NEXT = '''"""Budgets of projects."""

import sqlalchemy as sa
from alembic import op

revision = "next"
down_revision = "{head}"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("projects") as projects:
        projects.alter_column("note", nullable=True)  # makes SQLite's table anew, while others name it
        projects.add_column(sa.Column("budget", sa.BigInteger, nullable=False, server_default="7"))
    op.create_table("budgets", sa.Column("id", sa.Integer, primary_key=True))
    op.execute("UPDATE users SET note = 'seen'")
    {then}
'''


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A copy of the committed file."""
    return Path(shutil.copy(FIRST, tmp_path / "first.db"))


def rows(database: Database, only: dict[str, list[str]] | None = None) -> dict[str, list[dict[str, object]]]:
    """What is in each table, of the columns that are asked for."""
    with database.reading() as connection:
        found = sa.MetaData()
        found.reflect(connection)
        return {
            name: sorted(
                (
                    {column: row[column] for column in (only or {}).get(name, row)}
                    for row in connection.execute(sa.select(table)).mappings()
                ),
                key=repr,
            )
            for name, table in found.tables.items()
            if name != "alembic_version" and (only is None or name in only)
        }


def columns(kept: dict[str, list[dict[str, object]]]) -> dict[str, list[str]]:
    return {name: list(found[0]) if found else [] for name, found in kept.items()}


def test_the_file_of_the_first_revision_opens_with_every_row(old: Path) -> None:
    with closing(sqlite3.connect(old)) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchone() == ("0001",)
    with closing(Database(f"sqlite:///{old}")) as database:
        before = rows(database)
        assert len(before) == len([name for name in before if before[name]]) >= 6
        copy = database.upgrade()
        database.ready()
        assert (copy is None) is (database.standing().wanted == "0001")
        assert rows(database, columns(before)) == before
        with database.reading() as connection:
            assert connection.exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"
        directory = SqlTenancy(database).directory()
    assert {each.name: each.archived for each in directory.projects} == {"default": None} | {
        each.name: each.archived for each in PROJECTS
    }
    assert [(each.email, each.disabled) for each in directory.users] == [
        (each.email, each.disabled) for each in USERS
    ]
    assert {kept.key.id: kept.key.grant for kept in directory.keys} == {each.id: each.grant for each in KEYS}


@pytest.fixture
def peopled(url: str, old: Path) -> Database:
    """The committed file's rows, in each kind of database."""
    database = Database(url)
    database.ready()
    with closing(Database(f"sqlite:///{old}")) as source:
        kept = rows(source)
    with database.writing() as connection:
        connection.execute(sa.text("DELETE FROM projects"))
        for table in metadata.sorted_tables:
            if kept.get(table.name):
                connection.execute(table.insert(), kept[table.name])
    return database


def followed(monkeypatch: pytest.MonkeyPatch, folder: Path, then: str = "pass") -> None:
    """One more revision after those that there are."""
    migrations = shutil.copytree(module.MIGRATIONS, folder / "migrations")
    with closing(Database("sqlite://")) as empty:
        head = empty.standing().wanted
    (migrations / "versions" / "next.py").write_text(NEXT.format(head=head, then=then))
    monkeypatch.setattr(module, "MIGRATIONS", migrations)


def test_an_earlier_database_is_refused_until_it_is_upgraded_with_every_row(
    peopled: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = rows(peopled)
    followed(monkeypatch, tmp_path)
    with closing(peopled) as database:
        assert database.standing().pending == ("next Budgets of projects.",)
        with pytest.raises(StoreRefused, match="run `antiphon store upgrade`, which keeps every row"):
            database.ready()
        assert rows(database) == before
        copy = database.upgrade()
        database.ready()
        for user in before["users"]:
            user["note"] = "seen"
        assert rows(database, columns(before)) == {**before, "users": sorted(before["users"], key=repr)}
        assert {row["budget"] for row in rows(database)["projects"]} == {7}
    if database.file is None:
        assert copy is None
    else:
        assert copy is not None
        with closing(Database(f"sqlite:///{copy}")) as kept:
            assert "budget" not in rows(kept)["projects"][0]
            assert {row["note"] for row in rows(kept)["users"]} == {"", "left"}


def test_an_upgrade_that_fails_half_way_changes_nothing(
    peopled: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = rows(peopled)
    followed(monkeypatch, tmp_path, 'op.execute("SELECT nonsense FROM nowhere")')
    with closing(peopled) as database:
        found = database.standing().found
        with pytest.raises(StoreUnavailable):
            database.upgrade()
        with pytest.raises(sa.exc.IntegrityError), database.writing() as connection:
            connection.execute(sa.text("DELETE FROM projects"))
        assert rows(database) == before
        assert database.standing().found == found
