"""Requests that projects keep, in SQLite and in PostgreSQL."""

import pytest

from antiphon.domain.recording import Record, Recording, Redaction
from antiphon.domain.tenancy import Project
from antiphon.store.base import By
from antiphon.store.records import SqlRecords

NOW = 1_000_000


@pytest.fixture
def records(database):
    return SqlRecords(database)


def made(number, project="one", **said):
    return Record(
        **{"id": f"r{number}", "project": project, "at": 1000 * number, "expires": NOW + number} | said,
        request="{}",
        answer="[]",
    )


def test_pages_give_the_latest_first_and_each_once(records):
    every = [made(number) for number in range(7)] + [made(99, at=3000), made(50, "two")]
    records.add(every)
    records.add(every[:3])
    seen, before = [], None
    while page := records.page("one", 3, before):
        assert len(page) <= 3
        seen += page
        before = (page[-1].at, page[-1].id)
    assert [each.id for each in seen] == ["r6", "r5", "r4", "r99", "r3", "r2", "r1", "r0"]
    assert records.one("r50") == every[-1]
    assert records.one("r51") is None


def test_what_has_expired_is_gone_and_a_project_forgets(records):
    records.add([made(number, "one" if number % 2 else "two") for number in range(6)])
    assert records.expire(NOW + 2) == 3
    assert [each.id for each in records.page("one", 9)] == ["r5", "r3"]
    assert records.forget("one") == 2
    assert records.page("one", 9) == []
    assert [each.id for each in records.page("two", 9)] == ["r4"]


def test_any_text_is_kept(records):
    records.add([Record("odd", "one", 1, NOW, "a\0b\ud800", "\U0001f600 ' \" \\ %s ?")])
    assert records.one("odd").request == "a\ufffdb\ufffd"
    assert records.one("odd").answer == "\U0001f600 ' \" \\ %s ?"


def test_a_project_says_how_its_requests_are_kept(tenancy):
    by = By("operator", 5, tenancy.revision())
    plain = Project("p", "P", 5)
    by = By("operator", 6, tenancy.add_project(plain, by))
    kept = Project("p", "P", 5, recording=Recording(30, (Redaction.EMAIL, Redaction.KEY)))
    by = By("operator", 7, tenancy.change_project(kept, by))
    assert kept in tenancy.directory().projects
    tenancy.change_project(plain, by)
    assert plain in tenancy.directory().projects
    assert '"days": 30' in tenancy.audit(9)[1].detail.replace("\\", "")
