"""Users who come with a token of an OpenID Connect issuer, beside those who come with a key of ours.

A token is accepted when the issuer signed it for us with one of its keys, it has not ended, and its user is
in the store and not disabled. Which projects it speaks for is what the store says, which follows the groups
of the token for the projects that groups rule.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import jwt

from antiphon.auth.base import REFUSAL, Chosen
from antiphon.auth.changes import Changes
from antiphon.auth.claims import ClaimReader, Identity
from antiphon.auth.keyring import Keyring
from antiphon.auth.signing_keys import SigningKeys
from antiphon.auth.tenants import Tenants
from antiphon.domain.identity import EVERY_RIGHT, Actor, ActorKind
from antiphon.domain.tenancy import Role, User
from antiphon.errors import AuthenticationFailed, Conflict, NotFound
from antiphon.store.base import Directory
from antiphon.telemetry.logs import record

JSON_OBJECT = "eyJ"
"""How every JWT begins."""
PARTS = 3
MOST_PROVED = 4096
"""Tokens that are remembered as proved: a signature takes a tenth of a millisecond."""
BAD = (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError)
"""What a token that is not whole makes of its reader."""

ISSUER = Actor(ActorKind.ADMIN, "single-sign-on", rights=EVERY_RIGHT)
"""Who changes users and members because a token says so, in the audit."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a token must be."""

    issuer: str
    audience: str
    algorithms: tuple[str, ...]
    leeway: int
    """Seconds."""


class Proof:
    """Proves tokens, and remembers what it proved until the token ends or the issuer's keys change."""

    def __init__(
        self, terms: Terms, keys: SigningKeys, reader: ClaimReader, wall: Callable[[], float]
    ) -> None:
        """`wall`: Unix seconds."""
        self._terms = terms
        self._keys = keys
        self._reader = reader
        self._wall = wall
        self._proved: OrderedDict[bytes, Identity] = OrderedDict()
        self._generation = keys.generation

    async def identity(self, token: str) -> Identity:
        """Who a token is of. Raises AuthenticationFailed, and IssuerUnavailable where the issuer's keys
        cannot be had."""
        digest = hashlib.sha256(token.encode()).digest()
        await self._keys.refresh()
        if self._generation != self._keys.generation:
            self._proved.clear()
            self._generation = self._keys.generation
        known = self._proved.get(digest)
        if known is None or known.until <= self._wall():
            known = self._proved[digest] = await self._proven(token)
            if len(self._proved) > MOST_PROVED:
                self._proved.popitem(last=False)
        return known

    async def _proven(self, token: str) -> Identity:
        terms = self._terms
        try:
            key = await self._keys.find(jwt.get_unverified_header(token).get("kid"))
            claims = key and jwt.decode(
                token,
                key,
                algorithms=list(terms.algorithms),
                audience=terms.audience,
                issuer=terms.issuer,
                leeway=terms.leeway,
                options={"require": ["exp", "iss", "aud"]},
            )
            identity = self._reader.identity(claims, terms.leeway) if claims else None
        except BAD:
            identity = None
        if identity is None:
            raise AuthenticationFailed(REFUSAL)
        return identity


class SingleSignOn:
    """`auth.base.TokenVerifier` of one issuer's tokens."""

    def __init__(
        self,
        proof: Proof,
        ruled: frozenset[str],
        keyring: Keyring,
        tenants: Tenants,
        changes: Changes,
        add_users: bool = False,
    ) -> None:
        """`ruled`: projects whose members the groups of tokens decide; `add_users`: whether users that the
        store does not have are added."""
        self._proof = proof
        self._ruled = ruled
        self._keyring = keyring
        self._tenants = tenants
        self._changes = changes
        self._add_users = add_users
        self._people = People.of(changes.directory)
        self._latest: dict[str, float] = {}
        """When the latest token of each user was made: the groups of an older one say what was."""

    async def verify(self, token: str, chosen: Chosen) -> Actor | None:
        if not token.startswith(JSON_OBJECT) or token.count(".") != PARTS - 1:
            return None
        identity = await self._proof.identity(token)
        user = await self._user(identity)
        return self._keyring.speaking(user.id, chosen, int(identity.until))

    async def _user(self, identity: Identity) -> User:
        user = self._get_people().users.get(identity.address)
        if user is None:
            user = await self._create_user(identity)
        if user.disabled is None:
            await self._follow_groups(user, identity)
        return user

    async def _create_user(self, identity: Identity) -> User:
        if not self._add_users:
            raise AuthenticationFailed(REFUSAL)
        try:
            return await self._tenants.add_user(ISSUER, identity.name, identity.address, "")
        except Conflict:  # another request of the same user was faster
            return self._get_people().users[identity.address]

    async def _follow_groups(self, user: User, identity: Identity) -> None:
        """Makes the store say what the token's groups do, of the projects that groups rule. Writes only where
        it does not say so yet."""
        if identity.issued < self._latest.get(user.id, 0.0):
            return
        self._latest[user.id] = identity.issued
        for project in self._ruled:
            wanted, has = identity.roles.get(project), self._get_people().roles.get((project, user.id))
            if wanted == has:
                continue
            try:
                if wanted is not None:
                    await self._tenants.put_member(ISSUER, project, user.id, wanted)
                else:
                    await self._tenants.remove_member(ISSUER, project, user.id)
            except NotFound:
                record("group_without_project", project=project)

    def _get_people(self) -> "People":
        """Who there is, as the directory says now."""
        if self._people.directory is not self._changes.directory:
            self._people = People.of(self._changes.directory)
        return self._people


@dataclass(frozen=True, slots=True)
class People:
    """A directory as it is asked here."""

    directory: Directory
    users: dict[str, User]
    """By email address."""
    roles: dict[tuple[str, str], Role]
    """By project and user."""

    @staticmethod
    def of(directory: Directory) -> "People":
        return People(
            directory,
            {user.email: user for user in directory.users if user.email},
            {(each.project, each.user): each.role for each in directory.memberships},
        )
