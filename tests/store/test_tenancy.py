"""Projects, users, memberships and keys: what is put in comes out, and every change leaves its entry."""

import json
from contextlib import closing

import pytest

from antiphon.domain.limits import Limit, Measure, Subject, Window
from antiphon.domain.tenancy import (
    AuditSelection,
    Grant,
    Key,
    KeyKind,
    Membership,
    Project,
    ProjectRole,
    User,
)
from antiphon.domain.values import replace
from antiphon.errors import Conflict, NotFound
from antiphon.store.base import ChangeAuthor, StoredKey
from antiphon.store.database import Database
from antiphon.store.tenancy import SqlTenancy

BY = ChangeAuthor("admin", 100)
PROJECT = Project("project-1", "One", 5, note="first")
ANN = User("user-1", "Ann", 6, "ann@example.com")
KEY = Key("key-1", KeyKind.SERVICE, "ab12", 7, "admin", project="project-1", grant=Grant(("cantor*",), None))

LIMIT = Limit("limit-1", Subject.KEY, "key-2", Measure.COST, 10**12, 9, Window.MONTH, "cantor*", "mine")


@pytest.fixture
def peopled(tenancy):
    tenancy.add_project(PROJECT, BY)
    tenancy.add_user(ANN, BY)
    return tenancy


def test_what_is_put_in_comes_out_also_after_a_restart(peopled, url):
    peopled.put_membership(Membership("project-1", "user-1", ProjectRole.OWNER, 8), BY)
    peopled.add_key(StoredKey(KEY, b"d" * 32), BY)
    with closing(SqlTenancy(Database(url))) as restarted:
        again = restarted.load_directory()
    assert again.projects == (Project("default", "default", 0), PROJECT)
    assert again.users == (ANN,)
    assert again.memberships == (Membership("project-1", "user-1", ProjectRole.OWNER, 8),)
    assert again.keys == (StoredKey(KEY, b"d" * 32),)


def test_changes_take_the_place_of_what_was(peopled):
    peopled.add_key(StoredKey(KEY, b"d" * 32), BY)
    peopled.change_project(replace(PROJECT, archived=9), BY)
    peopled.change_user(replace(ANN, disabled=9), BY)
    peopled.change_key(replace(KEY, revoked=9), BY)
    directory = peopled.load_directory()
    assert directory.projects[1].archived == directory.users[0].disabled == directory.keys[0].key.revoked == 9
    assert directory.keys[0].digest == b"d" * 32


def test_a_membership_is_put_changed_and_removed(peopled):
    for role in (ProjectRole.VIEWER, ProjectRole.OWNER):
        peopled.put_membership(Membership("project-1", "user-1", role, 8), BY)
        assert [each.role for each in peopled.load_directory().memberships] == [role]
    peopled.remove_membership("project-1", "user-1", BY)
    assert peopled.load_directory().memberships == ()
    with pytest.raises(NotFound, match="not a member"):
        peopled.remove_membership("project-1", "user-1", BY)


def test_a_rotated_key_successor_and_limits_change_together(peopled):
    peopled.add_key(StoredKey(KEY, b"d" * 32), BY, (LIMIT,))
    successor = StoredKey(replace(KEY, id="key-2"), b"d" * 32)  # of the same digest, so it cannot be kept
    moved = replace(LIMIT, target="key-2")
    with pytest.raises(Conflict):
        peopled.rotate_key(replace(KEY, expires=50), successor, (moved,), BY)
    assert peopled.load_directory().keys == (StoredKey(KEY, b"d" * 32),)
    assert peopled.load_directory().limits == (LIMIT,) and peopled.load_families() == {}
    new = StoredKey(replace(KEY, id="key-2", family=KEY.id), b"e" * 32)
    peopled.rotate_key(replace(KEY, expires=50), new, (moved,), BY)
    directory = peopled.load_directory()
    assert [kept.key.expires for kept in directory.keys] == [50, None]
    assert directory.limits == (moved,)
    assert peopled.load_families() == directory.build_families() == {"key-2": KEY.id}


def test_a_new_key_and_its_limits_are_kept_together(peopled):
    with pytest.raises(Conflict):
        peopled.add_key(StoredKey(KEY, b"d" * 32), BY, (LIMIT, LIMIT))
    assert (peopled.load_directory().keys, peopled.load_directory().limits) == ((), ())
    peopled.add_key(StoredKey(KEY, b"d" * 32), BY, (LIMIT, replace(LIMIT, id="limit-2")))
    assert [limit.id for limit in peopled.load_directory().limits] == [LIMIT.id, "limit-2"]
    (entry,) = peopled.load_audit_entries(1)
    assert [each["amount"] for each in json.loads(entry.detail)["limits"]] == [LIMIT.amount] * 2


def test_names_and_addresses_are_taken_once(peopled):
    with pytest.raises(Conflict, match="named 'One' already"):
        peopled.add_project(Project("project-2", "One", 5), BY)
    with pytest.raises(Conflict, match="email address"):
        peopled.add_user(User("user-2", "Another", 5, "ann@example.com"), BY)


def test_what_is_not_there_cannot_be_changed(peopled):
    for change in (
        lambda: peopled.change_project(Project("none", "n", 1), BY),
        lambda: peopled.change_user(User("none", "n", 1), BY),
        lambda: peopled.change_key(replace(KEY, id="none"), BY),
        lambda: peopled.put_membership(Membership("none", "user-1", ProjectRole.OWNER, 1), BY),
        lambda: peopled.put_membership(Membership("project-1", "none", ProjectRole.OWNER, 1), BY),
    ):
        with pytest.raises(NotFound, match="none"):
            change()


def test_every_change_has_its_entry_and_a_failed_one_none(peopled):
    peopled.add_key(StoredKey(KEY, b"d" * 32), ChangeAuthor("user-1", 200))
    with pytest.raises(NotFound):
        peopled.change_user(User("none", "n", 1), BY)
    entries = peopled.load_audit_entries(10)
    assert [entry.action for entry in entries] == ["key.create", "user.create", "project.create"]
    latest = entries[0]
    assert (latest.actor, latest.at, latest.target) == ("user-1", 200, "key-1")
    assert json.loads(latest.detail)["models"] == '["cantor*"]'
    assert "d" * 32 not in latest.detail


def test_the_audit_is_read_by_pages_and_by_target(peopled):
    for number in range(5):
        peopled.change_project(replace(PROJECT, note=str(number)), BY)
    first = peopled.load_audit_entries(3)
    second = peopled.load_audit_entries(10, before=first[-1].id)
    assert [entry.id for entry in (*first, *second)] == list(range(7, 0, -1))
    of_project = peopled.load_audit_entries(10, selection=AuditSelection(target="project-1"))
    assert {entry.target for entry in of_project} == {"project-1"}
    assert not peopled.load_audit_entries(10, selection=AuditSelection(target="project-1\0"))
