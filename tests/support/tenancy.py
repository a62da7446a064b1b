"""Servers of one database as the services see them: nodes, and a world of users with roles."""

from contextlib import contextmanager
from functools import partial
from itertools import count

from antiphon.auth.base import RequestedScope
from antiphon.auth.keyring import Keyring
from antiphon.auth.secrets import Pepper
from antiphon.domain.identity import EVERY_RIGHT, Actor, ActorKind
from antiphon.domain.tenancy import KeyKind, ProjectRole
from antiphon.errors import AuthenticationFailed
from antiphon.pipeline.rules import LimitIndex
from antiphon.services.changes import DirectoryChanges
from antiphon.services.policy import KeyRequest
from antiphon.services.tenancy import TenancyService
from antiphon.store.database import Database
from antiphon.store.directory import SqlFeed
from antiphon.store.tenancy import SqlRules, SqlTenancy
from tests.support.stores import open_new_store

ADMIN = Actor(ActorKind.ADMIN, "admin", rights=EVERY_RIGHT)
PEPPER = Pepper(b"p" * 32)


class Node:
    """What one server has of keys."""

    def __init__(self, url, feed):
        self.database = Database(url)
        self.database.prepare()
        self.tenancy, self.rules = SqlTenancy(self.database), SqlRules(self.database)
        self.ring, self.book = Keyring(PEPPER, lambda: 1_000.0), LimitIndex()
        listeners = [self._told, self.ring.replace_directory]  # as in a server
        told = SqlFeed(self.database) if feed else None
        self.changes = DirectoryChanges(self.tenancy, listeners, partial(next, count(1_000.0)), told)
        self.tenants = TenancyService(self.changes, self.tenancy, PEPPER)

    def _told(self, known):
        self.book.update(known.limits, known.prices, known.build_families())

    async def accepts(self, secret):
        try:
            await self.ring.verify(secret, RequestedScope())
        except AuthenticationFailed:
            return False
        return True

    async def add_limit(self, limit):
        def changed():
            revision = self.rules.add_limit(limit, self.changes.attribute_to(ADMIN))
            self.changes.update_directory(revision, limits=(*self.changes.directory.limits, limit))

        await self.changes.apply(changed)


@contextmanager
def node(url, feed=True):
    made = Node(url, feed)
    try:
        yield made
    finally:
        made.changes.close()


class World:
    """Ann owns a project, Ben is a member of it, Cleo views it; Dan has another."""

    def __init__(self, folder):
        self.now = 1_000.0
        database = open_new_store(folder / "antiphon.db")
        self.ring = Keyring(PEPPER, lambda: self.now)
        tenancy = SqlTenancy(database)
        self.changes = DirectoryChanges(tenancy, [self.ring.replace_directory], lambda: self.now)
        self.tenants = TenancyService(self.changes, tenancy, PEPPER)

    async def people(self):
        await self.changes.load()
        self.one = (await self.tenants.add_project(ADMIN, "One", "")).id
        self.two = (await self.tenants.add_project(ADMIN, "Two", "")).id
        roles = {"ann": ProjectRole.OWNER, "ben": ProjectRole.MEMBER, "cleo": ProjectRole.VIEWER}
        for name, role in roles.items():
            await self._person(name, self.one, role)
        await self._person("dan", self.two, ProjectRole.OWNER)
        return self

    async def _person(self, name, project, role):
        user = await self.tenants.add_user(ADMIN, name, None, "")
        setattr(self, name, user.id)
        await self.tenants.put_member(ADMIN, project, user.id, role)

    async def token(self, user, **said):
        made = await self.tenants.add_key(ADMIN, KeyRequest(KeyKind.ACCESS_TOKEN, user=user, **said))
        return made.secret

    async def actor(self, user, **said):
        return await self.ring.verify(await self.token(user, **said), RequestedScope())
