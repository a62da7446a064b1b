"""A database: made, brought up to date with every row kept, or refused in a clear sentence."""

import logging
import os
import sqlite3
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from threading import Barrier

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from antiphon.errors import DeadlineExceeded, InvalidValue, StoreRefused, StoreUnavailable
from antiphon.store.database import Database, create_copy
from antiphon.store.schema import metadata
from tests.support.databases import PASSWORD
from tests.support.waiting import PATIENCE


def test_an_empty_database_gets_the_default_project(database):
    with database.reading() as connection:
        assert list(connection.execute(sa.text("SELECT id FROM projects"))) == [("default",)]
    assert database.read_schema_state().pending == ()


def test_the_revisions_make_the_tables_that_the_schema_says(database):
    with database.reading() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_what_was_answered_outlives_a_power_failure(database):
    with database.reading() as connection:
        said = [
            connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("journal_mode", "synchronous")
        ]
        assert said == ["wal", 2]


def test_a_new_file_is_its_owners_alone(tmp_path):
    made = Database(f"sqlite:///{tmp_path}/antiphon.db")
    made.prepare()
    assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {0o600}
    made.close()


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
    assert noted(database) == ""


def noted(database: Database) -> str:
    with database.reading() as connection:
        return str(connection.execute(sa.text("SELECT note FROM projects")).scalar())


def test_what_is_read_in_one_block_is_of_one_moment(database):
    read = sa.text("SELECT note FROM projects")
    with database.reading() as connection:
        before = connection.execute(read).scalar()
        with database.writing() as other:
            other.execute(sa.text("UPDATE projects SET note = 'changed'"))
        assert connection.execute(read).scalar() == before
    assert noted(database) == "changed"


def test_servers_that_start_at_once_make_one_schema(url):
    together = Barrier(4)

    def started() -> str | None:
        with closing(Database(url)) as database:
            together.wait(30)
            database.prepare()
            return database.read_schema_state().found_revision

    with ThreadPoolExecutor(4) as threads:
        found = [each.result() for each in [threads.submit(started) for _ in range(4)]]
    with closing(Database(url)) as database:
        assert set(found) == {database.read_schema_state().needed_revision}


def test_opening_a_new_file_waits_for_others_that_do(tmp_path, monkeypatch):
    """SQLite itself refuses at once to set the journal mode while another process writes."""
    monkeypatch.setattr("antiphon.store.database.BUSY_MS", int(1_000 * PATIENCE))
    url = f"sqlite:///{tmp_path}/a.db"
    with (
        closing(sqlite3.connect(tmp_path / "a.db", isolation_level=None)) as other,
        ThreadPoolExecutor(1) as threads,
    ):
        other.execute("BEGIN IMMEDIATE")
        with closing(Database(url)) as database:
            opening = threads.submit(database.prepare)
            with pytest.raises(TimeoutError):
                opening.result(0.2)
            other.execute("ROLLBACK")
            opening.result()


def revised(database: Database, revision: str) -> None:
    """Says that another revision made the database."""
    with database.writing() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = :it"), {"it": revision})


def test_a_newer_database_is_refused_and_left_alone(database):
    revised(database, "9999")
    for attempt in (database.prepare, database.upgrade):
        with pytest.raises(StoreRefused, match=r"made by a later version of Antiphon \(revision 9999"):
            attempt()
    assert database.read_schema_state().found_revision == "9999"
    with database.reading() as connection:
        assert set(sa.inspect(connection).get_table_names()) == {*metadata.tables, "alembic_version"}


def test_tables_of_somebody_else_are_refused(url):
    with closing(Database(url)) as database:
        with database.writing() as connection:
            connection.execute(sa.text("CREATE TABLE guests (name TEXT)"))
        with pytest.raises(StoreRefused, match="tables that are not Antiphon's"):
            database.prepare()


def test_a_non_database_file_is_refused_without_its_content(tmp_path):
    (tmp_path / "antiphon.db").write_text("my secret diary " * 100)
    with pytest.raises(StoreUnavailable, match="file is not a database") as refused:
        Database(f"sqlite:///{tmp_path}/antiphon.db").prepare()
    assert "diary" not in refused.value.message


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nonsense", "no address of a database"),
        ("postgresql:/ann:hunter2@host", "no address of a database"),
        ("postgresql://ann:hunter2@host:port/name", "no address of a database"),
        ("mysql://host/name", "not supported"),
        ("sqlite://", "in memory"),
        ("sqlite:///", "in memory"),
        ("sqlite:///:memory:", "in memory"),
        ("sqlite:///%3Amemory%3A", "in memory"),
        ("sqlite:///:memory:?cache=shared", "in memory"),
        ("sqlite:///file::memory:?uri=true", "takes no options"),
        ("sqlite:///file:name?mode=memory&cache=shared&uri=true", "takes no options"),
        ("sqlite:////var/lib/a.db?timeout=5", "takes no options"),
        ("sqlite://ann:hunter2@host/name", "no address of a SQLite file"),
        ("sqlite+aiosqlite:///a.db", "no address of a SQLite file"),
        ("postgresql://ann:hunter2@host/name", "***"),
        ("postgresql://ann:top/hunter2@host/name", "***"),
        ("postgresql://host/name?password=hunter2", "make serve EXTRAS=postgresql"),
        ("postgresql://ann:hunter2@4@host/name", "as %40"),
    ],
)
def test_an_unusable_address_is_refused_without_its_password(url, said, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "psycopg", None)
    with pytest.raises(StoreRefused) as refused:
        Database(url)
    assert said in refused.value.message
    assert "hunter2" not in refused.value.message


def test_a_file_is_shown_as_it_is_called(tmp_path):
    assert Database(f"sqlite:///{tmp_path}/a@b.db").display_url == f"sqlite:///{tmp_path}/a@b.db"


def test_a_wrong_password_is_a_sentence_without_it(cluster):
    address = cluster.address("postgres", "canary-wrong")
    failed = pytest.raises(StoreUnavailable, match="password authentication failed")
    with closing(Database(address)) as database, failed as refused:
        database.prepare()
    assert "canary" not in refused.value.message


def test_a_lost_server_is_reported_and_used_again_later(restarted_cluster):
    with closing(Database(restarted_cluster.database())) as database:
        database.prepare()
        with database.writing() as connection:
            connection.execute(sa.text("UPDATE projects SET note = 'kept'"))
        restarted_cluster.stop()
        for _ in range(2):
            with pytest.raises(StoreUnavailable) as refused:
                noted(database)
            assert PASSWORD not in refused.value.message
        restarted_cluster.start()
        assert noted(database) == "kept"


def test_a_fetch_uses_one_connection_and_replaces_it_when_it_ends(database):
    query = database.prepare_query(sa.select(sa.literal(1), sa.bindparam("text", type_=sa.Text)))
    assert database.fetch(query, {"text": "a"}) == [(1, "a")]
    (connection,) = database._idle
    assert database.fetch(query, {"text": "b"}) == [(1, "b")]
    assert database._idle == [connection]
    connection.connection.driver_connection.close()
    assert database.fetch(query, {"text": "c"}) == [(1, "c")]
    missing = database.prepare_query(sa.select(sa.column("x", sa.Text)).select_from(sa.table("missing")))
    with pytest.raises(StoreUnavailable):
        database.fetch(missing, {})
    assert database.fetch(query, {"text": "d"}) == [(1, "d")]


def test_what_a_dying_server_had_begun_is_undone(restarted_cluster):
    with closing(Database(restarted_cluster.database())) as database:
        database.prepare()

        def interrupted() -> None:
            with database.writing() as connection:
                connection.execute(sa.text("UPDATE projects SET note = 'half'"))
                restarted_cluster.stop()
                connection.execute(sa.text("UPDATE projects SET name = 'half'"))

        with pytest.raises(StoreUnavailable):
            interrupted()
        restarted_cluster.start()
        assert noted(database) == ""


def test_an_uncertain_commit_is_not_called_undone(restarted_cluster):
    with closing(Database(restarted_cluster.database(), show_details=False)) as database:
        database.prepare()

        def cut() -> None:
            with database.writing() as connection:
                connection.execute(sa.text("UPDATE projects SET note = 'kept?'"))
                restarted_cluster.stop()

        with pytest.raises(StoreUnavailable, match="the change may have been made") as refused:
            cut()
        assert "nothing was changed" not in refused.value.message
        with pytest.raises(StoreUnavailable, match="nothing was changed"):
            noted(database)
        restarted_cluster.start()
        assert noted(database) == ""


def test_a_text_that_postgresql_cannot_hold_is_refused(postgresql):
    with closing(Database(postgresql)) as database:
        database.prepare()
        for text in ("a\0b", "n" * 201):
            with pytest.raises(InvalidValue), database.writing() as connection:
                connection.execute(sa.text("UPDATE projects SET name = :it"), {"it": text})


def test_a_database_of_another_encoding_gives_texts(cluster):
    address = cluster.database("--encoding=SQL_ASCII", "--template=template0")
    with closing(Database(address)) as database:
        database.prepare()
        with database.writing() as connection:
            connection.execute(sa.text("UPDATE projects SET note = 'Grüße'"))
        assert noted(database) == "Grüße"


def test_a_copy_begins_as_its_owners_alone(tmp_path):
    before = os.umask(0)
    try:
        with closing(create_copy(tmp_path / "copy")):
            assert stat.S_IMODE((tmp_path / "copy").stat().st_mode) == 0o600
    finally:
        os.umask(before)
    for taken in ("copy", "absent/copy"):
        with pytest.raises(StoreRefused, match=f"{taken} cannot be created: "):
            create_copy(tmp_path / taken)


def test_a_copy_of_what_is_no_file_is_refused(postgresql, tmp_path):
    with closing(Database(postgresql)) as database:
        database.prepare()
        with pytest.raises(StoreRefused, match="pg_dump"):
            database.upgrade(tmp_path / "copy")


@pytest.mark.parametrize("replaced", [False, True])
def test_a_removed_or_replaced_file_takes_nothing(tmp_path, replaced, caplog):
    """What is written into a file without a name is lost with the process."""
    caplog.set_level(logging.INFO)
    path, aside = tmp_path / "a.db", tmp_path / "aside.db"
    with closing(Database(f"sqlite:///{path}")) as database:
        database.prepare()
        path.rename(aside)
        if replaced:
            path.write_bytes(aside.read_bytes())
        for connected in (database.reading, database.writing, database.autocommit):
            with pytest.raises(StoreUnavailable, match="removed or replaced"), connected():
                pass
        assert path.exists() == replaced
        aside.rename(path)
        for _ in range(2):
            assert database.read_schema_state().found_revision is not None
    said = [each.getMessage() for each in caplog.records if each.getMessage().startswith("store_")]
    assert said == ["store_moved", "store_back"]


def test_a_change_begun_before_removal_is_not_confirmed(tmp_path):
    path = tmp_path / "home" / "a.db"
    path.parent.mkdir()

    def cut() -> None:
        with database.writing() as connection:
            connection.execute(sa.text("UPDATE projects SET note = 'lost'"))
            path.parent.rename(tmp_path / "aside")

    with closing(Database(f"sqlite:///{path}")) as database:
        database.prepare()
        for attempt in (cut, lambda: noted(database)):
            with pytest.raises(StoreUnavailable, match="removed or replaced"):
                attempt()
        (tmp_path / "aside").rename(path.parent)
        assert noted(database) == ""


def test_a_process_that_only_serves_makes_no_file(tmp_path):
    path = tmp_path / "a.db"
    with closing(Database(f"sqlite:///{path}", show_details=False)) as serving:
        with pytest.raises(StoreUnavailable):
            noted(serving)
        assert not path.exists()
        with closing(Database(f"sqlite:///{path}")) as starting:
            starting.prepare()
        assert noted(serving) == ""


FOREVER = """WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000000000)
SELECT count(*) FROM n"""


def test_a_slow_statement_is_ended_and_the_next_is_not(url: str) -> None:
    with closing(Database(url)) as database:
        database.prepare()
        late = pytest.raises(DeadlineExceeded, match=r"longer than 0\.2 s for this: choose a shorter time")
        with late, database.reading(0.2) as connection:
            connection.execute(sa.text(FOREVER))
        slow = FOREVER.replace("1000000000", "300000")
        with database.reading() as connection:  # the same one, out of the pool
            assert connection.execute(sa.text(slow)).scalar() == 300_000
