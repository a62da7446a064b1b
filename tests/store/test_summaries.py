"""Summaries of conversations, in SQLite and in PostgreSQL."""

import pytest

from antiphon.domain.memory import KeptSummary
from antiphon.domain.tenancy import Project
from antiphon.store.base import ChangeAuthor
from antiphon.store.request_log import MAX_DIGESTS, SqlRecords, SqlSummaries

NOW = 1_000_000


@pytest.fixture
def summaries(database, tenancy):
    for name in ("one", "two"):
        tenancy.add_project(Project(name, name, 5), ChangeAuthor("operator", 5, tenancy.load_revision()))
    return SqlSummaries(database)


def made(digest, project="one", at=5_000, expires=NOW + 10, text="said"):
    return KeptSummary(digest, project, at, expires, text)


def test_a_project_finds_its_own_until_they_expire(summaries):
    summaries.add(made("a", text="one's \0 \ud800"), 9)
    summaries.add(made("a", "two", text="two's"), 9)
    summaries.add(made("b", expires=NOW), 9)
    assert summaries.find("one", ["a", "b", "c"], NOW) == {"a": "one's \ufffd \ufffd"}
    assert summaries.find("two", ["a", "b"], NOW) == {"a": "two's"}
    assert summaries.find("three", ["a"], NOW) == summaries.find("one", [], NOW) == {}


def test_more_digests_than_a_statement_takes(summaries):
    summaries.add(made("last"), 9)
    digests = [f"d{number}" for number in range(2 * MAX_DIGESTS)] + ["last"]
    assert summaries.find("one", digests, NOW) == {"last": "said"}


def test_the_oldest_of_a_project_give_way(summaries):
    summaries.add(made("other", "two", at=1), 3)
    for number in range(7):
        summaries.add(made(f"d{number}", at=5_000 + number), 3)
    assert set(summaries.find("one", [f"d{number}" for number in range(7)], NOW)) == {"d4", "d5", "d6"}
    assert summaries.find("two", ["other"], NOW)


@pytest.mark.parametrize("most", [1, 2])
def test_the_last_part_of_a_request_outlives_the_others(summaries, most):
    digests = ["b", "d", "a", "e", "c"]
    for written, digest in enumerate(digests, 1):
        summaries.add(made(digest), most)
        found = summaries.find("one", digests, NOW)
        assert digest in found and len(found) == min(written, most)


def test_the_first_text_of_a_digest_stays(summaries):
    summaries.add(made("a", text="first"), 9)
    summaries.add(made("a", text="second"), 9)
    assert summaries.find("one", ["a"], NOW) == {"a": "first"}
    summaries.add(made("a", text="third", expires=NOW + 99), 9)
    assert summaries.find("one", ["a"], NOW) == {"a": "third"}


def test_they_expire_and_are_erased_with_the_requests(summaries, database, tenancy):
    records = SqlRecords(database)
    for project in ("one", "two"):
        summaries.add(made("a", project), 9)
        summaries.add(made("b", project, expires=NOW + 2), 9)
    records.expire(NOW + 2)
    assert set(summaries.find("one", ["a", "b"], NOW)) == {"a"}
    records.erase("one", 6_000, ChangeAuthor("ann", 9, tenancy.load_revision()))
    assert summaries.find("one", ["a"], NOW) == {} and summaries.find("two", ["a"], NOW)


def test_a_request_from_before_the_erasure_keeps_nothing(summaries, database, tenancy):
    SqlRecords(database).erase("one", 6_000, ChangeAuthor("ann", 9, tenancy.load_revision()))
    summaries.add(made("a", at=6_000), 9)
    summaries.add(made("b", at=6_001), 9)
    assert set(summaries.find("one", ["a", "b"], NOW)) == {"b"}
