"""Requests that projects keep, in SQLite and in PostgreSQL."""

import sqlite3
import threading
from contextlib import closing, contextmanager, suppress

import pytest
import sqlalchemy as sa

from antiphon.domain.tenancy import Project, RecordedRequest, RecordingPolicy, Redaction
from antiphon.domain.values import replace
from antiphon.errors import NotFound
from antiphon.ledger.recorder import StoreRecorder
from antiphon.store.base import ChangeAuthor
from antiphon.store.request_log import SqlRecords
from antiphon.store.tenancy import SqlTenancy
from tests.support.stores import open_new_store
from tests.support.waiting import wait_until

NOW = 1_000_000


@pytest.fixture
def records(database):
    return SqlRecords(database)


def made(number, project="one", **said):
    return RecordedRequest(
        **{"id": f"r{number}", "project": project, "at": 1000 * number, "expires": NOW + number} | said,
        request="{}",
        answer="[]",
    )


def test_pages_give_the_latest_first_and_each_once(records):
    every = [made(number) for number in range(7)] + [made(99, at=3000), made(50, "two")]
    records.add(every)
    records.add(every[:3])
    seen, before = [], None
    while page := records.load_page("one", 3, before):
        assert len(page) <= 3
        seen += page
        before = (page[-1].at, page[-1].id)
    assert [each.id for each in seen] == ["r6", "r5", "r4", "r99", "r3", "r2", "r1", "r0"]
    assert records.find_record("r50") == every[-1]
    assert records.find_record("r51") is None


@pytest.fixture
def peopled(tenancy):
    """With the projects one and two."""
    by = ChangeAuthor("operator", 5, tenancy.load_revision())
    by = ChangeAuthor("operator", 5, tenancy.add_project(Project("one", "One", 5), by))
    tenancy.add_project(Project("two", "Two", 5), by)
    return tenancy


def test_what_has_expired_is_gone_and_a_project_is_erased(records, peopled):
    records.add([made(number, "one" if number % 2 else "two") for number in range(6)])
    assert records.expire(NOW + 2) == 3
    assert [each.id for each in records.load_page("one", 9)] == ["r5", "r3"]
    assert records.erase("one", 5_000, ChangeAuthor("ann", 9)) == (2, peopled.load_revision())
    assert records.load_page("one", 9) == []
    assert [each.id for each in records.load_page("two", 9)] == ["r4"]
    with pytest.raises(NotFound):
        records.erase("three", 5_000, ChangeAuthor("ann", 9))


def test_an_erasure_is_in_the_audit(records, peopled):
    before = peopled.load_revision()
    records.add([made(1)])
    records.erase("one", 5_000, ChangeAuthor("ann", 9))
    (entry,) = peopled.load_audit_entries(1)
    assert (entry.actor, entry.at, entry.action, entry.target) == ("ann", 9, "project.erase_requests", "one")
    assert entry.detail == '{"removed": 1, "responses": 0}'
    assert peopled.load_revision() == before + 1


def test_what_began_before_an_erasure_is_not_kept_later(records, peopled):
    records.erase("one", 5_000, ChangeAuthor("ann", 9))
    late = [made(4), made(5), made(6), made(3, "two")]
    records.add(late)
    records.add(late)
    assert [each.id for each in records.load_page("one", 9)] == ["r6"]
    assert [each.id for each in records.load_page("two", 9)] == ["r3"]
    records.erase("one", 4_000, ChangeAuthor("ann", 10))  # a clock that is behind brings nothing back
    records.add([made(5), made(7)])
    assert [each.id for each in records.load_page("one", 9)] == ["r7"]


@contextmanager
def before_inserting(wait):
    """Calls `wait` before each insert of records."""

    def listen(_connection, _cursor, statement, *_):
        if statement.startswith("INSERT INTO requests_logged"):
            wait()

    sa.event.listen(sa.engine.Engine, "before_cursor_execute", listen)
    try:
        yield
    finally:
        sa.event.remove(sa.engine.Engine, "before_cursor_execute", listen)


def test_an_erasure_waits_for_what_is_being_kept(records, peopled):
    begun, erased = threading.Event(), threading.Event()

    def erase():
        begun.wait(30)
        records.erase("one", 5_000, ChangeAuthor("ann", 9))
        erased.set()

    def inserting():
        begun.set()
        assert not erased.wait(0.5)  # it would never see what is inserted now

    eraser = threading.Thread(target=erase)
    eraser.start()
    with before_inserting(inserting):
        records.add([made(1)])
    eraser.join()
    assert erased.is_set() and records.load_page("one", 9) == []


def test_any_text_is_kept(records):
    records.add([RecordedRequest("odd", "one", 1, NOW, "a\0b\ud800", "\U0001f600 ' \" \\ %s ?")])
    assert records.find_record("odd").request == "a\ufffdb\ufffd"
    assert records.find_record("odd").answer == "\U0001f600 ' \" \\ %s ?"


def test_a_project_says_how_its_requests_are_kept(tenancy):
    by = ChangeAuthor("operator", 5, tenancy.load_revision())
    plain = Project("p", "P", 5)
    by = ChangeAuthor("operator", 6, tenancy.add_project(plain, by))
    kept = Project("p", "P", 5, recording=RecordingPolicy(30, (Redaction.EMAIL, Redaction.KEY)))
    by = ChangeAuthor("operator", 7, tenancy.change_project(kept, by))
    assert kept in tenancy.load_directory().projects
    tenancy.change_project(plain, by)
    assert plain in tenancy.load_directory().projects
    assert '"days": 30' in tenancy.load_audit_entries(9)[1].detail.replace("\\", "")


CANARY = b"canary-of-a-removed-text"


@pytest.fixture
def sqlite_home(tmp_path):
    """A database of SQLite in a folder of its own, whose files the test reads."""
    with closing(open_new_store(tmp_path / "antiphon.db")) as database:
        tenancy = SqlTenancy(database)
        tenancy.add_project(Project("one", "One", 5), ChangeAuthor("operator", 5, tenancy.load_revision()))
        yield tmp_path, database


def is_found(folder):
    """Whether a file of the folder has the canary. Other processes can see the files like this."""
    for path in folder.iterdir():
        with suppress(FileNotFoundError):  # the last connection removes the log when it is closed
            if CANARY in path.read_bytes():
                return True
    return False


def with_canary(number):
    """A small record, and one that needs several pages."""
    text = CANARY.decode() * (1 if number % 2 else 1_000)
    return replace(made(number), request=text, answer=text)


@pytest.mark.parametrize("deed", ["expire", "erase"])
def test_no_file_of_sqlite_has_a_removed_text(sqlite_home, deed):
    folder, database = sqlite_home
    records = SqlRecords(database)
    records.add([with_canary(number) for number in range(20)])
    assert is_found(folder)
    if deed == "erase":
        records.erase("one", 50_000, ChangeAuthor("ann", 9))
    else:
        records.expire(NOW + 100)
    assert not is_found(folder)


def test_expired_texts_leave_the_files_of_a_running_recorder(sqlite_home):
    """Its clock is a day and more ahead of the records."""
    folder, database = sqlite_home
    SqlRecords(database).add([with_canary(number) for number in range(4)])
    recorder = StoreRecorder(SqlRecords(database), lambda: NOW + 2 * 86_400.0)
    recorder.start()
    try:
        wait_until(lambda: not is_found(folder), what="the texts are overwritten")
    finally:
        recorder.stop(50)


def test_a_reader_delays_the_truncation_until_the_next_expiry(sqlite_home):
    folder, database = sqlite_home
    records = SqlRecords(database)
    records.add([with_canary(1)])
    with closing(sqlite3.connect(folder / "antiphon.db")) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM requests_logged").fetchone()
        assert records.erase("one", 50_000, ChangeAuthor("ann", 9))[0] == 1
        assert is_found(folder)
    assert records.expire(NOW) == 0
    assert not is_found(folder)
