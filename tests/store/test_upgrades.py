"""A database of an earlier version: refused until it is brought up to date, which keeps every row or changes
nothing."""

import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from antiphon.domain.limits import Limit, Measure, Subject
from antiphon.errors import StoreRefused, StoreUnavailable
from antiphon.store import database as module
from antiphon.store.base import ChangeAuthor
from antiphon.store.database import Database
from antiphon.store.schema import metadata
from antiphon.store.tenancy import SqlRules, SqlTenancy
from tests.fixtures.store.make_database import KEYS, PROJECTS, USERS
from tests.fixtures.store.make_database import LIMIT as BUDGET
from tests.support.commands import run_command

FILES = Path(__file__).parents[1] / "fixtures" / "store"
FIRST = FILES / "0001.db"

LIMIT = Limit("limit-1", Subject.USER, "user_ann", Measure.CONCURRENT, 3, 5)

NEXT = '''"""Budgets of projects."""

import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
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


@pytest.mark.parametrize("revision", ["0001", "0002"])
def test_the_file_of_an_earlier_revision_opens_with_every_row(revision: str, tmp_path: Path) -> None:
    old = Path(shutil.copy(FILES / f"{revision}.db", tmp_path / "old.db"))
    with closing(sqlite3.connect(old)) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchone() == (revision,)
    with closing(Database(f"sqlite:///{old}")) as database:
        before = rows(database)
        assert len([name for name in before if before[name]]) >= 6
        assert database.upgrade() is not None
        database.prepare()
        assert rows(database, columns(before)) == before
        with database.reading() as connection:
            assert connection.exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"
        directory = SqlTenancy(database).load_directory()
    assert {each.name: each.archived for each in directory.projects} == {"default": None} | {
        each.name: each.archived for each in PROJECTS
    }
    assert [(each.email, each.disabled) for each in directory.users] == [
        (each.email, each.disabled) for each in USERS
    ]
    assert {kept.key.id: kept.key.grant for kept in directory.keys} == {each.id: each.grant for each in KEYS}
    assert {kept.key.family for kept in directory.keys} == {None}
    assert directory.limits == (() if revision == "0001" else (BUDGET,))


def test_the_second_revision_is_a_real_one_in_both_databases(
    url: str, old: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with closing(Database(url)) as database:
        with monkeypatch.context() as then:
            then.setattr(module, "MIGRATIONS", only("0001", tmp_path))
            database.prepare()
            assert database.read_schema_state().found_revision == "0001"
        with closing(Database(f"sqlite:///{old}")) as source:
            before = rows(source)
        put(database, before)
        standing = database.read_schema_state()
        assert standing.pending[0].startswith("0002 Limits, prices, the ledger")
        with pytest.raises(StoreRefused, match="run `antiphon store upgrade`, which keeps every row"):
            database.prepare()
        assert rows(database) == before
        copy = database.upgrade()
        database.prepare()
        assert rows(database, columns(before)) == before
        assert (copy is None) is (database.file is None)
        tenancy = SqlTenancy(database)
        made = SqlRules(database).add_limit(LIMIT, ChangeAuthor("admin", 1))
        assert (tenancy.load_revision(), tenancy.load_directory().limits) == (made, (LIMIT,))
        with database.reading() as connection:
            assert compare_metadata(MigrationContext.configure(connection), metadata) == []


def test_the_newest_file_has_the_newest_revision(tmp_path: Path) -> None:
    with closing(Database(f"sqlite:///{tmp_path}/empty.db")) as empty:
        assert module.find_newest_revision() == empty.read_schema_state().needed_revision


def test_a_database_of_today_is_opened_without_alembic(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/antiphon.db"
    with closing(Database(url)) as database:
        database.prepare()
    opened = (
        "import sys; from antiphon.store.database import Database; "
        f"Database({url!r}).prepare(); print('alembic' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", opened], capture_output=True, text=True, check=True)
    assert said.stdout == "False\n"


def only(revision: str, folder: Path) -> Path:
    """The revisions up to one: what a server of that time knew."""
    migrations = Path(shutil.copytree(module.MIGRATIONS, folder / f"only-{revision}"))
    for file in (migrations / "versions").glob("r*.py"):
        if file.name[1:5] > revision:
            file.unlink()
    return migrations


def put(database: Database, kept: dict[str, list[dict[str, object]]]) -> None:
    """Puts rows in the place of those of a new database."""
    found = sa.MetaData()
    with database.reading() as connection:
        found.reflect(connection)
    with database.writing() as connection:
        connection.execute(sa.text("DELETE FROM projects"))
        for table in found.sorted_tables:
            if kept.get(table.name):
                connection.execute(table.insert(), kept[table.name])
        if connection.dialect.name == "postgresql":  # ids that are put in are not counted
            counted = "SELECT setval(pg_get_serial_sequence('audit', 'id'), max(id)) FROM audit"
            connection.execute(sa.text(counted))


def test_a_dry_run_says_what_would_be_done_and_does_nothing(old: Path) -> None:
    before = old.read_bytes()
    env = {"ANTIPHON_STORE": f"sqlite:///{old}", "ANTIPHON_HOME": str(old.parent)}

    def upgrade(*options: str) -> subprocess.CompletedProcess[str]:
        ended = run_command("store", "upgrade", *options, cwd=old.parent, env=env)
        assert ended.returncode == 0, ended.stderr
        return ended

    asked = upgrade("--dry-run")
    assert "revision: 0001" in asked.stdout
    assert "pending:  0002 Limits, prices, the ledger" in asked.stdout
    with closing(Database(f"sqlite:///{old}")) as database:
        assert database.read_schema_state().found_revision == "0001"
    done = upgrade()
    copy = old.with_name(f"{old.name}.0001.bak")
    assert str(copy) in done.stdout
    with closing(sqlite3.connect(copy)) as kept, closing(sqlite3.connect(":memory:")) as first:
        first.deserialize(before)
        assert list(kept.iterdump()) == list(first.iterdump())
    again = upgrade()
    assert "copy" not in again.stdout


@pytest.fixture
def peopled(url: str, old: Path) -> Database:
    """The committed file's rows, in each kind of database."""
    database = Database(url)
    database.prepare()
    with closing(Database(f"sqlite:///{old}")) as source:
        kept = rows(source)
    put(database, kept)
    return database


def followed(monkeypatch: pytest.MonkeyPatch, folder: Path, then: str = "pass") -> None:
    """One more revision after those that there are."""
    migrations = shutil.copytree(module.MIGRATIONS, folder / "migrations")
    with closing(Database(f"sqlite:///{folder}/empty.db")) as empty:
        head = empty.read_schema_state().needed_revision
    (migrations / "versions" / "rnext_budgets.py").write_text(NEXT.format(head=head, then=then))
    monkeypatch.setattr(module, "MIGRATIONS", migrations)


def test_an_old_database_is_refused_until_upgraded_fully(
    peopled: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = rows(peopled)
    followed(monkeypatch, tmp_path)
    with closing(peopled) as database:
        assert database.read_schema_state().pending == ("next Budgets of projects.",)
        with pytest.raises(StoreRefused, match="run `antiphon store upgrade`, which keeps every row"):
            database.prepare()
        assert rows(database) == before
        copy = database.upgrade()
        database.prepare()
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
        found = database.read_schema_state().found_revision
        with pytest.raises(StoreUnavailable):
            database.upgrade()
        with pytest.raises(sa.exc.IntegrityError), database.writing() as connection:
            connection.execute(sa.text("DELETE FROM projects"))
        assert rows(database) == before
        assert database.read_schema_state().found_revision == found
