"""Limits and prices: what is put in comes out, every change counts the revision up, and one that was checked
against what is no longer there is not made."""

import json
from contextlib import closing

import pytest
import sqlalchemy as sa
from msgspec.structs import replace as replace_entry

from antiphon.domain.ledger import Entry
from antiphon.domain.limits import Limit, Measure, Subject, Window
from antiphon.domain.prices import MAX_COST, Price
from antiphon.domain.tenancy import Project
from antiphon.domain.values import replace
from antiphon.errors import Conflict, NotFound, StoreUnavailable
from antiphon.store.base import ChangeAuthor, StaleDirectory
from antiphon.store.database import Database
from antiphon.store.ledger import SqlEntries
from antiphon.store.tenancy import SqlRules, SqlTenancy
from tests.support.references import record_left_open

BY = ChangeAuthor("admin", 100)
MINUTE = Limit("limit-1", Subject.PROJECT, "default", Measure.REQUESTS, 600, 5, Window.MINUTE)
LARGEST = Limit("limit-3", Subject.USER, "ann", Measure.COST, MAX_COST, 7, Window.MONTH)
AT_ONCE = Limit("limit-2", Subject.MODEL, "cantor", Measure.CONCURRENT, 4, 6, models=None, note="shared")
PRICE = Price("price-1", "cantor*", "USD", 1_000, 150_000_000, 600_000_000, created=7)
LATER = Price("price-2", "*", "USD", 2_000, 1 << 40, 1, 0, 2**53, until=3_000, note="sale")


@pytest.fixture
def rules(database):
    return SqlRules(database)


def test_what_is_put_in_comes_out_also_after_a_restart(rules, url):
    for limit in (MINUTE, AT_ONCE, LARGEST):
        rules.add_limit(limit, BY)
    for price in (LATER, PRICE):
        rules.add_price(price, BY)
    with closing(SqlTenancy(Database(url))) as restarted:
        again = restarted.load_directory()
    assert again.limits == (MINUTE, AT_ONCE, LARGEST)
    assert again.prices == (LATER, PRICE)


def test_changes_take_the_place_of_what_was_and_leave_entries(rules, tenancy):
    rules.add_limit(MINUTE, BY)
    rules.add_price(PRICE, BY)
    rules.change_limit(replace(MINUTE, amount=60, window=None), BY)
    rules.change_price(replace(PRICE, until=5_000), BY)
    directory = tenancy.load_directory()
    assert [(limit.amount, limit.window) for limit in directory.limits] == [(60, None)]
    assert [price.until for price in directory.prices] == [5_000]
    rules.remove_limit(MINUTE.id, BY)
    assert tenancy.load_directory().limits == ()
    entries = tenancy.load_audit_entries(10)
    actions = ["limit.remove", "price.change", "limit.change", "price.create", "limit.create"]
    assert [entry.action for entry in entries] == actions
    about = {"models": "cantor*", "currency": "USD"}
    assert json.loads(entries[1].detail) == {"until": 5_000, "before": {"until": None}, "about": about}
    changed = json.loads(entries[2].detail)
    assert changed.pop("before") == {"amount": MINUTE.amount, "window": MINUTE.window}
    assert changed.pop("about")["target"] == MINUTE.target
    assert changed == {"amount": 60, "window": None}
    assert json.loads(entries[0].detail)["amount"] == 60


def test_missing_rows_are_not_changed_nor_existing_ones_added(rules):
    rules.add_limit(MINUTE, BY)
    rules.add_price(PRICE, BY)
    for change in (
        lambda: rules.change_limit(AT_ONCE, BY),
        lambda: rules.remove_limit("none", BY),
        lambda: rules.change_price(LATER, BY),
    ):
        with pytest.raises(NotFound):
            change()
    for again in (lambda: rules.add_limit(MINUTE, BY), lambda: rules.add_price(PRICE, BY)):
        with pytest.raises(Conflict):
            again()


def test_only_a_committed_change_increments_the_revision(rules, tenancy):
    before = tenancy.load_revision()
    assert rules.add_limit(MINUTE, BY) == before + 1 == tenancy.load_revision()
    assert tenancy.add_project(Project("project-1", "One", 5), BY) == before + 2
    for failing in (lambda: rules.add_limit(MINUTE, BY), lambda: rules.remove_limit("none", BY)):
        with pytest.raises((Conflict, NotFound)):
            failing()
    tenancy.create_mark("pepper", "it")
    assert tenancy.load_directory().revision == tenancy.load_revision() == before + 2


def test_a_change_checked_at_an_old_revision_is_not_made(rules, tenancy):
    known = tenancy.load_directory().revision
    rules.add_limit(MINUTE, replace(BY, known_revision=known))
    for late in (
        lambda: rules.remove_limit(MINUTE.id, replace(BY, known_revision=known)),
        lambda: tenancy.add_project(Project("project-1", "One", 5), replace(BY, known_revision=known)),
    ):
        with pytest.raises(StaleDirectory):
            late()
    directory = tenancy.load_directory()
    assert (directory.limits, len(directory.projects), directory.revision) == ((MINUTE,), 1, known + 1)
    assert len(tenancy.load_audit_entries(10)) == 1


def test_rows_of_a_later_version_are_a_sentence_and_no_crash(rules, tenancy, database):
    rules.add_limit(MINUTE, BY)
    with database.writing() as connection:
        connection.execute(sa.text("UPDATE limits SET measure = 'joules'"))
    with (
        record_left_open() as left_open,
        pytest.raises(StoreUnavailable, match="a later version of Antiphon wrote rows"),
    ):
        tenancy.load_directory()
    assert [str(each.message) for each in left_open] == []


def test_a_currency_is_found_among_unpriced_entries(rules, database):
    entries = SqlEntries(database)
    assert rules.find_other_currency("EUR") is None
    plain = Entry("e1", "req", 1, "p", "k", None, "openai", "/v1/completions", "m", "m")
    entries.add([plain, replace_entry(plain, id="e2")])
    assert rules.find_other_currency("EUR") is None
    entries.add([replace_entry(plain, id="e3", price="price-1", currency="USD")])
    assert rules.find_other_currency("EUR") == "USD"
    assert rules.find_other_currency("USD") is None
