"""Who may change what of projects, users and keys. A change is in the store and in the keyring before it is
answered.

The operator's key changes everything. An owner of a project changes its members and its service keys; every
user makes and ends access tokens of their own. Nobody makes a key that may more than the one they came with.
What an actor may not see is not there.
"""

import asyncio
import secrets
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

from antiphon.auth.keyring import Keyring, Known
from antiphon.auth.secrets import ALPHABET, Pepper, new_key, prefix_of
from antiphon.domain.identity import Actor, ActorKind, within
from antiphon.domain.tenancy import (
    EVERYTHING,
    AuditEntry,
    Grant,
    Key,
    KeyKind,
    Membership,
    Project,
    Role,
    User,
)
from antiphon.errors import InvalidValue, MissingParameter, NotFound, PermissionDenied
from antiphon.store.base import By, Directory, KeptKey, Tenancy

MOMENT_LENGTH = 9
"""Digits of a moment in milliseconds, which ids begin with: what is listed by them comes in order."""
RANDOM_LENGTH = 10
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WantedKey:
    """A key that somebody asks for."""

    kind: KeyKind
    project: str | None = None
    user: str | None = None
    grant: Grant = EVERYTHING
    expires: int | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class MadeKey:
    """A new key, and the only time that it is shown."""

    key: Key
    secret: str


class Tenants:
    """Projects, users, memberships and keys of one server."""

    def __init__(
        self, tenancy: Tenancy, keyring: Keyring, pepper: Pepper, clock: Callable[[], float]
    ) -> None:
        """`clock`: Unix seconds."""
        self._tenancy = tenancy
        self._keyring = keyring
        self._pepper = pepper
        self._clock = clock
        self._directory = Directory()
        self._thread = ThreadPoolExecutor(1, "antiphon-store")
        """One change at a time, so that what is checked still holds when it is written; and each to its end,
        whether or not the caller still waits."""

    async def load(self) -> None:
        """Learns what the store holds."""
        await self._change(lambda: None)

    def close(self) -> None:
        """Waits for the change that is being made, and lets go of the store."""
        self._thread.shutdown()
        self._tenancy.close()

    # --- projects and users ---

    def projects(self, actor: Actor) -> list[Project]:
        """Those that the actor may see: the operator all, others their own."""
        mine = self._known().projects_of(actor.user or "")
        return [each for each in self._directory.projects if actor.admin or each.id in (*mine, actor.project)]

    def users(self, actor: Actor) -> list[User]:
        """Those that the actor may see: the operator all, others themselves."""
        return [each for each in self._directory.users if actor.admin or each.id == actor.user]

    def project(self, actor: Actor, id_: str) -> Project:
        """Raises NotFound, also for one that the actor may not see."""
        return _found(self.projects(actor), id_, "project")

    def user(self, actor: Actor, id_: str) -> User:
        """Raises NotFound, also for one that the actor may not see."""
        return _found(self.users(actor), id_, "user")

    async def add_project(self, actor: Actor, name: str, note: str) -> Project:
        _require_admin(actor)
        project = Project(self._id("proj"), name, self._now(), note=note)
        await self._change(lambda: self._tenancy.add_project(project, self._by(actor)))
        return project

    async def change_project(
        self, actor: Actor, id_: str, name: str | None, note: str | None, archived: bool | None
    ) -> Project:
        _require_admin(actor)

        def changed() -> Project:
            project = _found(self._directory.projects, id_, "project")
            if archived and id_ == "default":
                raise InvalidValue("the project default cannot be archived", param="archived")
            new = replace(
                project,
                name=project.name if name is None else name,
                note=project.note if note is None else note,
                archived=self._since(project.archived, archived),
            )
            self._tenancy.change_project(new, self._by(actor))
            return new

        return await self._change(changed)

    async def add_user(self, actor: Actor, name: str, email: str | None, note: str) -> User:
        _require_admin(actor)
        user = User(self._id("user"), name, self._now(), email, note=note)
        await self._change(lambda: self._tenancy.add_user(user, self._by(actor)))
        return user

    async def change_user(
        self, actor: Actor, id_: str, name: str | None, note: str | None, disabled: bool | None
    ) -> User:
        _require_admin(actor)

        def changed() -> User:
            user = _found(self._directory.users, id_, "user")
            new = replace(
                user,
                name=user.name if name is None else name,
                note=user.note if note is None else note,
                disabled=self._since(user.disabled, disabled),
            )
            self._tenancy.change_user(new, self._by(actor))
            return new

        return await self._change(changed)

    # --- members ---

    def members(self, actor: Actor, project: str) -> list[Membership]:
        """Of a project that the actor may see. Raises NotFound."""
        _found(self.projects(actor), project, "project")
        return [each for each in self._directory.memberships if each.project == project]

    async def put_member(self, actor: Actor, project: str, user: str, role: Role) -> Membership:
        def changed() -> Membership:
            self._require_owner(actor, project)
            membership = Membership(project, user, role, self._now())
            self._tenancy.put_membership(membership, self._by(actor))
            return membership

        return await self._change(changed)

    async def remove_member(self, actor: Actor, project: str, user: str) -> None:
        def changed() -> None:
            if user != actor.user:
                self._require_owner(actor, project)
            _found(self.projects(actor), project, "project")
            self._tenancy.remove_membership(project, user, self._by(actor))

        await self._change(changed)

    # --- keys ---

    def keys(self, actor: Actor) -> list[Key]:
        """Those that the actor may see."""
        return [kept.key for kept in self._directory.keys if self._sees(actor, kept.key)]

    def key(self, actor: Actor, id_: str) -> Key:
        """Raises NotFound, also for one that the actor may not see."""
        return _found(self.keys(actor), id_, "key")

    async def add_key(self, actor: Actor, wanted: WantedKey) -> MadeKey:
        def made() -> MadeKey:
            self._require_mintable(actor, wanted)
            return self._kept(actor, wanted)

        return await self._change(made)

    async def change_key(
        self,
        actor: Actor,
        id_: str,
        note: str | None,
        grant: Callable[[Grant], Grant],
        expires: int | None,
    ) -> Key:
        """`grant`: from what the key may to what it may from then on."""

        def changed() -> Key:
            key = self._own(actor, id_)
            new = replace(
                key,
                note=key.note if note is None else note,
                grant=grant(key.grant),
                expires=key.expires if expires is None else expires,
            )
            _require_within(actor, new.grant)
            self._tenancy.change_key(new, self._by(actor))
            return new

        return await self._change(changed)

    async def revoke_key(self, actor: Actor, id_: str) -> Key:
        """From now on it is accepted nowhere; once more changes nothing."""

        def changed() -> Key:
            key = self._own(actor, id_)
            if key.revoked is None:
                key = replace(key, revoked=self._now())
                self._tenancy.change_key(key, self._by(actor))
            return key

        return await self._change(changed)

    async def rotate_key(self, actor: Actor, id_: str, overlap: int) -> MadeKey:
        """A new key that may what the old one may, which ends `overlap` seconds from now."""

        def changed() -> MadeKey:
            old = self._own(actor, id_)
            if old.revoked is not None or (old.expires is not None and old.expires <= self._now()):
                raise InvalidValue("the key has ended: make a new one", param="id")
            _require_within(actor, old.grant)
            secret = new_key()
            key = replace(
                old, id=self._id("key"), prefix=prefix_of(secret), created=self._now(), creator=actor.id
            )
            ends = self._now() + overlap
            ending = replace(old, expires=ends if old.expires is None else min(ends, old.expires))
            kept = KeptKey(key, self._pepper.digest(secret))
            self._tenancy.rotate_key(ending, kept, self._by(actor))
            return MadeKey(key, secret)

        return await self._change(changed)

    async def audit(
        self, actor: Actor, limit: int, before: int | None, target: str | None
    ) -> Sequence[AuditEntry]:
        """For the operator."""
        _require_admin(actor)
        return await self._threaded(lambda: self._tenancy.audit(limit, before, target))

    # --- who may what ---

    def _require_owner(self, actor: Actor, project: str) -> None:
        _found(self.projects(actor), project, "project")
        if not (actor.admin or self._owns(actor, project)):
            raise PermissionDenied("only an owner of the project may change its members")

    def _owns(self, actor: Actor, project: str | None) -> bool:
        """Whether a user is an owner of the project in which the token speaks."""
        if actor.kind is not ActorKind.USER or actor.project != project:
            return False
        return self._known().roles.get((actor.project, actor.user or "")) is Role.OWNER

    def _sees(self, actor: Actor, key: Key) -> bool:
        if actor.admin:
            return True
        if key.kind is KeyKind.ACCESS_TOKEN:
            return key.user == actor.user is not None
        return key.kind is KeyKind.SERVICE and self._owns(actor, key.project)

    def _own(self, actor: Actor, id_: str) -> Key:
        """A key that the actor may change: each that it sees."""
        return self.key(actor, id_)

    def _require_mintable(self, actor: Actor, wanted: WantedKey) -> None:
        _require_within(actor, wanted.grant)
        if wanted.kind is KeyKind.ADMIN:
            _require_admin(actor)
            _require_absent(wanted, "project", "user")
        elif wanted.kind is KeyKind.SERVICE:
            _require_absent(wanted, "user")
            project = _required(wanted.project, "project")
            _found(self.projects(actor), project, "project")
            if not (actor.admin or self._owns(actor, project)):
                raise PermissionDenied("only an owner of the project may make keys for it")
        else:
            self._require_token_mintable(actor, wanted)
        if wanted.expires is not None and wanted.expires <= self._now():
            raise InvalidValue("the key would end before it begins", param="expires")

    def _require_token_mintable(self, actor: Actor, wanted: WantedKey) -> None:
        user = _required(wanted.user, "user")
        if not actor.admin and user != actor.user:
            raise PermissionDenied("access tokens are made by their own user, or by the operator")
        _found(self._directory.users, user, "user")
        if wanted.project is not None and wanted.project not in self._known().projects_of(user):
            raise NotFound(f"{user} is no member of {wanted.project}", param="project")

    # --- how it is done ---

    def _kept(self, actor: Actor, wanted: WantedKey) -> MadeKey:
        secret = new_key()
        key = Key(
            id=self._id("key"),
            kind=wanted.kind,
            prefix=prefix_of(secret),
            created=self._now(),
            creator=actor.id,
            project=wanted.project,
            user=wanted.user,
            grant=wanted.grant,
            expires=wanted.expires,
            note=wanted.note,
        )
        self._tenancy.add_key(KeptKey(key, self._pepper.digest(secret)), self._by(actor))
        return MadeKey(key, secret)

    async def _change(self, change: Callable[[], T]) -> T:
        """Does it, and learns what is then there."""

        def changed() -> T:
            try:
                return change()
            finally:
                self._directory = self._tenancy.directory()
                self._keyring.learn(self._directory)

        return await self._threaded(changed)

    async def _threaded(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _known(self) -> Known:
        return Known.of(self._directory)

    def _id(self, noun: str) -> str:
        """An id that nobody has."""
        moment = _digits(int(1_000 * self._clock()))
        return f"{noun}_{moment}" + "".join(secrets.choice(ALPHABET) for _ in range(RANDOM_LENGTH))

    def _now(self) -> int:
        return int(self._clock())

    def _by(self, actor: Actor) -> By:
        return By(actor.id, self._now())

    def _since(self, before: int | None, said: bool | None) -> int | None:
        """Since when something holds that may be switched on and off."""
        if said is None:
            return before
        return (before or self._now()) if said else None


def _digits(number: int) -> str:
    """In base 36."""
    digits = ""
    while number:
        number, digit = divmod(number, len(ALPHABET))
        digits = ALPHABET[digit] + digits
    return digits.rjust(MOMENT_LENGTH, ALPHABET[0])


Noun = TypeVar("Noun", Project, User, Key)


def _found(things: Iterable[Noun], id_: str, noun: str) -> Noun:
    for thing in things:
        if thing.id == id_:
            return thing
    raise NotFound(f"there is no {noun} {id_[:100]}")


def _required(value: str | None, name: str) -> str:
    if value is None:
        raise MissingParameter(f"{name} is missing", param=name)
    return value


def _require_absent(wanted: WantedKey, *names: str) -> None:
    for name in names:
        if getattr(wanted, name) is not None:
            raise InvalidValue(f"a key of kind {wanted.kind} has no {name}; leave it out", param=name)


def _require_admin(actor: Actor) -> None:
    if not actor.admin:
        raise PermissionDenied("only the operator's key may do this")


def _require_within(actor: Actor, grant: Grant) -> None:
    if not within(grant, actor.grant):
        raise PermissionDenied("a key cannot give what it does not have: name fewer models or endpoints")
