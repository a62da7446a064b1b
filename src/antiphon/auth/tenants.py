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

from antiphon.auth.keyring import Keyring
from antiphon.auth.policy import Policy, WantedKey, found, require_admin
from antiphon.auth.secrets import ALPHABET, Pepper, new_key, prefix_of
from antiphon.domain.identity import Actor
from antiphon.domain.tenancy import (
    AuditEntry,
    Grant,
    Key,
    Membership,
    Project,
    Role,
    User,
)
from antiphon.errors import InvalidValue
from antiphon.store.base import By, Directory, KeptKey, Tenancy

MOMENT_LENGTH = 9
"""Digits of a moment in milliseconds, which ids begin with: what is listed by them comes in order."""
RANDOM_LENGTH = 10
T = TypeVar("T")


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

        def loaded() -> None:
            self._directory = self._tenancy.directory()
            self._keyring.learn(self._directory)

        await self._threaded(loaded)

    def close(self) -> None:
        """Waits for the change that is being made, and lets go of the store."""
        self._thread.shutdown()
        self._tenancy.close()

    # --- projects and users ---

    def projects(self, actor: Actor) -> list[Project]:
        """Those that the actor may see."""
        return self._policy.projects(actor)

    def users(self, actor: Actor) -> list[User]:
        """Those that the actor may see."""
        return self._policy.users(actor)

    def project(self, actor: Actor, id_: str) -> Project:
        """Raises NotFound, also for one that the actor may not see."""
        return found(self.projects(actor), id_, "project")

    def user(self, actor: Actor, id_: str) -> User:
        """Raises NotFound, also for one that the actor may not see."""
        return found(self.users(actor), id_, "user")

    async def add_project(self, actor: Actor, name: str, note: str) -> Project:
        require_admin(actor)
        project = Project(self._id("proj"), name, self._now(), note=note)

        def changed() -> Project:
            self._tenancy.add_project(project, self._by(actor))
            return self._learn_project(project)

        return await self._threaded(changed)

    async def change_project(
        self, actor: Actor, id_: str, name: str | None, note: str | None, archived: bool | None
    ) -> Project:
        require_admin(actor)

        def changed() -> Project:
            project = found(self._directory.projects, id_, "project")
            if archived and id_ == "default":
                raise InvalidValue("the project default cannot be archived", param="archived")
            new = replace(
                project,
                name=project.name if name is None else name,
                note=project.note if note is None else note,
                archived=self._since(project.archived, archived),
            )
            self._tenancy.change_project(new, self._by(actor))
            return self._learn_project(new)

        return await self._threaded(changed)

    async def add_user(self, actor: Actor, name: str, email: str | None, note: str) -> User:
        require_admin(actor)
        address = None if email is None else email.lower()
        user = User(self._id("user"), name, self._now(), address, note=note)

        def changed() -> User:
            self._tenancy.add_user(user, self._by(actor))
            return self._learn_user(user)

        return await self._threaded(changed)

    async def change_user(
        self, actor: Actor, id_: str, name: str | None, note: str | None, disabled: bool | None
    ) -> User:
        require_admin(actor)

        def changed() -> User:
            user = found(self._directory.users, id_, "user")
            new = replace(
                user,
                name=user.name if name is None else name,
                note=user.note if note is None else note,
                disabled=self._since(user.disabled, disabled),
            )
            self._tenancy.change_user(new, self._by(actor))
            return self._learn_user(new)

        return await self._threaded(changed)

    # --- members ---

    def members(self, actor: Actor, project: str) -> list[Membership]:
        """Of a project that the actor may see. Raises NotFound."""
        found(self.projects(actor), project, "project")
        return [each for each in self._directory.memberships if each.project == project]

    async def put_member(self, actor: Actor, project: str, user: str, role: Role) -> Membership:
        def changed() -> Membership:
            self._policy.require_owner(actor, project)
            membership = Membership(project, user, role, self._now())
            self._tenancy.put_membership(membership, self._by(actor))
            self._learn(memberships=(*self._without(project, user), membership))
            return membership

        return await self._threaded(changed)

    async def remove_member(self, actor: Actor, project: str, user: str) -> None:
        def changed() -> None:
            if user != actor.user:
                self._policy.require_owner(actor, project)
            found(self.projects(actor), project, "project")
            self._tenancy.remove_membership(project, user, self._by(actor))
            self._learn(memberships=self._without(project, user))

        await self._threaded(changed)

    # --- keys ---

    def keys(self, actor: Actor) -> list[Key]:
        """Those that the actor may see."""
        return self._policy.keys(actor)

    def key(self, actor: Actor, id_: str) -> Key:
        """Raises NotFound, also for one that the actor may not see."""
        return found(self.keys(actor), id_, "key")

    async def add_key(self, actor: Actor, wanted: WantedKey) -> MadeKey:
        def made() -> MadeKey:
            self._policy.require_mintable(actor, wanted)
            return self._kept(actor, wanted)

        return await self._threaded(made)

    async def change_key(
        self,
        actor: Actor,
        id_: str,
        note: str | None,
        grant: Callable[[Grant], Grant],
        expires: int | None,
    ) -> Key:
        """`grant`: from what the key may to what it may from then on. A key that has ended stays so."""

        def changed() -> Key:
            key = self._policy.living(actor, id_)
            new = replace(
                key,
                note=key.note if note is None else note,
                grant=grant(key.grant),
                expires=key.expires if expires is None else expires,
            )
            self._policy.require_reached(actor, new)
            self._policy.require_operator_without(key, new)
            self._tenancy.change_key(new, self._by(actor))
            return self._learn_key(new)

        return await self._threaded(changed)

    async def revoke_key(self, actor: Actor, id_: str) -> Key:
        """From now on it is accepted nowhere; once more changes nothing."""

        def changed() -> Key:
            key = self.key(actor, id_)
            if key.revoked is None:
                self._policy.require_operator_without(key)
                key = replace(key, revoked=self._now())
                self._tenancy.change_key(key, self._by(actor))
            return self._learn_key(key)

        return await self._threaded(changed)

    async def rotate_key(self, actor: Actor, id_: str, overlap: int) -> MadeKey:
        """A new key that may what the old one may, which ends `overlap` seconds from now."""

        def changed() -> MadeKey:
            old = self._policy.living(actor, id_)
            self._policy.require_reached(actor, old)
            secret = new_key()
            key = replace(
                old, id=self._id("key"), prefix=prefix_of(secret), created=self._now(), creator=actor.id
            )
            ends = self._now() + overlap
            ending = replace(old, expires=ends if old.expires is None else min(ends, old.expires))
            kept = KeptKey(key, self._pepper.digest(secret))
            self._tenancy.rotate_key(ending, kept, self._by(actor))
            self._learn_key(ending)
            self._learn(keys=(*self._directory.keys, kept))
            return MadeKey(key, secret)

        return await self._threaded(changed)

    async def audit(
        self, actor: Actor, limit: int, before: int | None, target: str | None
    ) -> Sequence[AuditEntry]:
        """For the operator."""
        require_admin(actor)
        return await self._threaded(lambda: self._tenancy.audit(limit, before, target))

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
        kept = KeptKey(key, self._pepper.digest(secret))
        self._tenancy.add_key(kept, self._by(actor))
        self._learn(keys=(*self._directory.keys, kept))
        return MadeKey(key, secret)

    def _learn(self, **changes: tuple[object, ...]) -> None:
        """What was written is known from now on, without asking the database again: it may be gone."""
        self._directory = replace(self._directory, **changes)  # type: ignore[arg-type]
        self._keyring.learn(self._directory)

    def _learn_project(self, project: Project) -> Project:
        self._learn(projects=_put(self._directory.projects, project))
        return project

    def _learn_user(self, user: User) -> User:
        self._learn(users=_put(self._directory.users, user))
        return user

    def _learn_key(self, key: Key) -> Key:
        self._learn(
            keys=tuple(
                replace(kept, key=key) if kept.key.id == key.id else kept for kept in self._directory.keys
            )
        )
        return key

    def _without(self, project: str, user: str) -> tuple[Membership, ...]:
        """The memberships but for one."""
        return tuple(
            each for each in self._directory.memberships if (each.project, each.user) != (project, user)
        )

    async def _threaded(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    @property
    def _policy(self) -> Policy:
        """The rules as of now."""
        return Policy(self._directory, self._now())

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


Listed = TypeVar("Listed", Project, User)


def _put(things: Iterable[Listed], thing: Listed) -> tuple[Listed, ...]:
    """The same with one in the place of the one of its id, or at the end."""
    by_id = {each.id: each for each in things} | {thing.id: thing}
    return tuple(by_id.values())
