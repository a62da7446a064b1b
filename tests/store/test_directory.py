"""Who knows a directory and reads only what changed since knows what who reads all of it knows."""

import random

import pytest
import sqlalchemy as sa

from antiphon.domain.limits import Limit, Measure, Subject, Window
from antiphon.domain.prices import Price
from antiphon.domain.tenancy import (
    Grant,
    Key,
    KeyKind,
    Membership,
    Project,
    ProjectRole,
    RecordingPolicy,
    User,
)
from antiphon.domain.values import fields, replace
from antiphon.store import directory as module
from antiphon.store.base import ChangeAuthor, Directory, StoredKey
from antiphon.store.tenancy import SqlRules

BY = ChangeAuthor("somebody", 1)


class Script:
    """Changes of every kind, one after the other, drawn by a seed."""

    def __init__(self, tenancy, rules, seed):
        self.tenancy, self.rules, self.draw = tenancy, rules, random.Random(seed)
        self.made = 0

    def step(self):
        directory = self.tenancy.load_directory()
        self.made += 1
        can = [self.add_project, self.add_user, self.add_key, self.add_limit, self.add_price]
        can += [self.change_project, self.put_membership] if directory.users else []
        can += [self.change_user] if directory.users else []
        can += [self.remove_membership] if directory.memberships else []
        can += [self.change_key, self.rotate_key] if directory.keys else []
        can += [self.change_limit, self.remove_limit] if directory.limits else []
        can += [self.change_price] if directory.prices else []
        self.draw.choice(can)(directory)

    def name(self, noun):
        return f"{noun}-{self.draw.getrandbits(32):08x}-{self.made}"

    def add_project(self, _):
        self.tenancy.add_project(Project(self.name("project"), self.name("n"), self.made), BY)

    def change_project(self, directory):
        project = self.draw.choice(directory.projects)
        self.tenancy.change_project(replace(project, archived=self.made, recording=RecordingPolicy(3)), BY)

    def add_user(self, _):
        self.tenancy.add_user(User(self.name("user"), "n", self.made), BY)

    def change_user(self, directory):
        self.tenancy.change_user(replace(self.draw.choice(directory.users), disabled=self.made), BY)

    def put_membership(self, directory):
        project, user = self.draw.choice(directory.projects).id, self.draw.choice(directory.users).id
        role = self.draw.choice(list(ProjectRole))
        self.tenancy.put_membership(Membership(project, user, role, self.made), BY)

    def remove_membership(self, directory):
        gone = self.draw.choice(directory.memberships)
        self.tenancy.remove_membership(gone.project, gone.user, BY)

    def generate_key(self):
        key = Key(self.name("key"), KeyKind.SERVICE, "ak_", self.made, "a", project="default")
        return StoredKey(replace(key, grant=Grant(("m*",), None)), self.draw.randbytes(32))

    def add_key(self, _):
        self.tenancy.add_key(self.generate_key(), BY)

    def change_key(self, directory):
        key = self.draw.choice(directory.keys).key
        self.tenancy.change_key(replace(key, revoked=self.made, note="ended"), BY)

    def rotate_key(self, directory):
        old, new = self.draw.choice(directory.keys).key, self.generate_key()
        limits = [replace(self.limit(), subject=Subject.KEY, target=new.key.id) for _ in range(2)]
        self.tenancy.rotate_key(replace(old, expires=self.made), new, limits, BY)

    def limit(self):
        measure = self.draw.choice(list(Measure))
        return Limit(self.name("limit"), Subject.PROJECT, "default", measure, 5, self.made, Window.DAY)

    def add_limit(self, _):
        self.rules.add_limit(self.limit(), BY)

    def change_limit(self, directory):
        self.rules.change_limit(replace(self.draw.choice(directory.limits), amount=self.made), BY)

    def remove_limit(self, directory):
        self.rules.remove_limit(self.draw.choice(directory.limits).id, BY)

    def add_price(self, _):
        self.rules.add_price(Price(self.name("price"), "*", "USD", self.made, 1, 2), BY)

    def change_price(self, directory):
        self.rules.change_price(replace(self.draw.choice(directory.prices), until=self.made), BY)


def contents(directory: Directory) -> dict[str, object]:
    """A directory whatever order it is in."""
    parts = {each.name: getattr(directory, each.name) for each in fields(directory)}
    return {name: sorted(part, key=repr) if name != "revision" else part for name, part in parts.items()}


@pytest.fixture
def script(tenancy, database):
    return Script(tenancy, SqlRules(database), seed=7)


def test_what_changed_since_is_what_is_read(script, tenancy):
    known = tenancy.load_directory()
    for _ in range(20):
        for _ in range(script.draw.choice([0, 1, 1, 1, 2, 5])):
            script.step()
        known = tenancy.load_directory(known)
        assert contents(known) == contents(tenancy.load_directory())


def test_what_did_not_change_is_not_read_again(script, tenancy):
    for _ in range(5):
        script.add_key(None)
    known = tenancy.load_directory()
    script.change_key(replace(known, keys=known.keys[2:3]))
    now = tenancy.load_directory(known)
    same = [new is old for new, old in zip(now.keys, known.keys, strict=True)]
    assert same == [True, True, False, True, True]
    assert now.keys[2].key.note == "ended"


def test_after_very_many_changes_everything_is_read(script, tenancy, database, monkeypatch):
    monkeypatch.setattr(module, "MAX_CHANGES", 4)
    known = tenancy.load_directory()
    for _ in range(5):
        script.add_price(None)
    assert contents(tenancy.load_directory(known)) == contents(tenancy.load_directory())
    known = tenancy.load_directory()
    with database.writing() as connection:  # a hand that knows of the revision and of no audit
        connection.execute(sa.text("UPDATE projects SET note = 'by hand'"))
        connection.execute(sa.text("UPDATE revision SET number = number + 1"))
    assert contents(tenancy.load_directory(known)) == contents(tenancy.load_directory())
    assert tenancy.load_directory().projects[0].note == "by hand"


def test_a_database_that_was_put_back_is_read_whole(script, tenancy, database):
    script.add_user(None)
    known = tenancy.load_directory()
    with database.writing() as connection:  # as from a copy of an earlier day
        connection.execute(sa.text("DELETE FROM users"))
        connection.execute(sa.text("DELETE FROM audit"))
        connection.execute(sa.text("UPDATE revision SET number = 1"))
    assert tenancy.load_directory(known) == tenancy.load_directory()
    assert tenancy.load_directory(known).users == ()
