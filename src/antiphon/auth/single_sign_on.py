"""Verifies tokens of an OpenID Connect issuer.

A token is accepted when the issuer signed it for this server with one of its keys, it has not expired, and
its user is in the store and not disabled. The store decides which projects the token may use. For projects
with group rules, the members follow the groups of tokens.
"""

import hashlib
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import jwt

from antiphon.auth.base import REFUSAL, RequestedScope
from antiphon.auth.keyring import Keyring
from antiphon.auth.signing_keys import SigningKeys
from antiphon.domain.identity import EVERY_RIGHT, Actor, ActorKind
from antiphon.domain.tenancy import NAME_PATTERN, Membership, ProjectRole, User
from antiphon.errors import AuthenticationFailed, Conflict, NotFound
from antiphon.store.base import Directory
from antiphon.telemetry.logs import record

JSON_OBJECT = "eyJ"
"""The beginning of every JWT."""
PARTS = 3
MOST_PROVED = 4096
"""Most tokens that are cached as valid. To check a signature takes 0.1 ms."""
BAD = (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError)
"""Errors that a malformed token causes."""

ISSUER = Actor(ActorKind.ADMIN, "single-sign-on", rights=EVERY_RIGHT)
"""The actor in the audit for changes that follow from tokens."""

LONGEST_ADDRESS = 320
LONGEST_NAME = 200
LAST = 253_402_300_800
"""Unix seconds of the year 10,000. A later expiry is invalid."""
NAMED, SURROGATE = re.compile(NAME_PATTERN), re.compile("[\ud800-\udfff]")
RANKS = {ProjectRole.VIEWER: 0, ProjectRole.MEMBER: 1, ProjectRole.OWNER: 2}


@dataclass(frozen=True, slots=True)
class GroupRule:
    """Gives users of a group a role in a project."""

    group: str
    project: str
    role: ProjectRole


@dataclass(frozen=True, slots=True)
class TokenIdentity:
    """The user of a token."""

    address: str
    """Email address, in lower case."""
    name: str
    roles: Mapping[str, ProjectRole]
    """Roles from the user's groups, by project."""
    until: float
    """Unix seconds at which the token ends."""
    issued: float = 0.0
    """Unix seconds at which the token was issued; 0 if unknown."""


@dataclass(frozen=True, slots=True)
class ClaimReader:
    """Reads claims by the names that the operator configured."""

    user_claim: str
    groups_claim: str
    rules: tuple[GroupRule, ...] = ()

    @property
    def ruled_projects(self) -> frozenset[str]:
        """Projects whose members follow groups."""
        return frozenset(rule.project for rule in self.rules)

    def read_identity(self, claims: Mapping[str, object], leeway: int) -> TokenIdentity | None:
        """Returns the user, or None where the claims name none or an unverified address."""
        address, until = read_claim(claims, self.user_claim), claims.get("exp")
        if not isinstance(address, str) or len(address) > LONGEST_ADDRESS or not _is_name(address):
            return None
        if claims.get("email_verified") in (False, "false"):
            return None
        if not isinstance(until, int | float) or not 0 <= until < LAST:
            return None
        name, issued = claims.get("name"), claims.get("iat")
        label = name[:LONGEST_NAME] if isinstance(name, str) and _is_name(name[:LONGEST_NAME]) else address
        groups = read_claim(claims, self.groups_claim)
        issued_at = float(issued) if isinstance(issued, int | float) else 0.0
        return TokenIdentity(
            address.lower(), label[:LONGEST_NAME], self._assign_roles(groups), until + leeway, issued_at
        )

    def _assign_roles(self, groups: object) -> Mapping[str, ProjectRole]:
        """The highest role of each project."""
        groups_claimed = {groups} if isinstance(groups, str) else set(_list_texts(groups))
        roles = sorted(
            (rule for rule in self.rules if rule.group in groups_claimed), key=lambda rule: RANKS[rule.role]
        )
        return {rule.project: rule.role for rule in roles}


def _is_name(text: str) -> bool:
    """Whether a text is a valid name. JSON can contain half of a character, which no database stores."""
    return NAMED.search(text) is not None and SURROGATE.search(text) is None


def read_claim(claims: Mapping[str, object], name: str) -> object:
    """The value of a claim. If no claim has the name, dots in it lead into objects."""
    if name in claims:
        return claims[name]
    at: object = claims
    for part in name.split("."):
        at = at.get(part) if isinstance(at, Mapping) else None
    return at


def _list_texts(groups: object) -> list[str]:
    if not isinstance(groups, Sequence):
        return []
    return [group for group in groups if isinstance(group, str)]


def parse_group_rules(texts: Sequence[str]) -> tuple[GroupRule, ...]:
    """Parses rules of the settings, each `GROUP=PROJECT:ROLE`."""
    return tuple(_parse_group_rule(each) for each in texts)


def _parse_group_rule(text: str) -> GroupRule:
    group, _, rest = text.rpartition("=")
    project, _, role = rest.partition(":")
    return GroupRule(group, project, ProjectRole(role))


@dataclass(frozen=True, slots=True)
class TokenRequirements:
    """What a token must contain to be accepted."""

    issuer: str
    audience: str
    algorithms: tuple[str, ...]
    leeway: int
    """Seconds."""


class TokenProver:
    """Checks tokens, and caches valid ones until they expire or the issuer's keys change."""

    def __init__(
        self, terms: TokenRequirements, keys: SigningKeys, reader: ClaimReader, wall: Callable[[], float]
    ) -> None:
        """`wall`: Unix seconds."""
        self._terms = terms
        self._keys = keys
        self._reader = reader
        self._wall = wall
        self._proved: OrderedDict[bytes, TokenIdentity] = OrderedDict()
        self._generation = keys.generation

    async def identify(self, token: str) -> TokenIdentity:
        """Returns the user of a token. Raises AuthenticationFailed, and IssuerUnavailable without the
        issuer's keys."""
        digest = hashlib.sha256(token.encode()).digest()
        await self._keys.refresh()
        if self._generation != self._keys.generation:
            self._proved.clear()
            self._generation = self._keys.generation
        proof = self._proved.get(digest)
        if proof is None or proof.until <= self._wall():
            proof = self._proved[digest] = await self._verify(token)
            if len(self._proved) > MOST_PROVED:
                self._proved.popitem(last=False)
        return proof

    async def _verify(self, token: str) -> TokenIdentity:
        """Verifies a token's signature and claims. Returns its identity. Raises AuthenticationFailed for a
        bad token."""
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
            identity = self._reader.read_identity(claims, terms.leeway) if claims else None
        except BAD:
            identity = None
        if identity is None:
            raise AuthenticationFailed(REFUSAL)
        return identity


class Accounts(Protocol):
    """Changes of users and members, as `services.tenancy.TenancyService` makes them."""

    async def add_user(self, actor: Actor, name: str, email: str | None, note: str) -> User: ...
    async def put_member(self, actor: Actor, project: str, user: str, role: ProjectRole) -> Membership: ...
    async def remove_member(self, actor: Actor, project: str, user: str) -> None: ...


class SingleSignOn:
    """`auth.base.TokenVerifier` of one issuer's tokens."""

    def __init__(
        self,
        proof: TokenProver,
        ruled: frozenset[str],
        keyring: Keyring,
        accounts: Accounts,
        directory: Callable[[], Directory],
        add_users: bool = False,
    ) -> None:
        """`ruled`: projects whose members the groups of tokens decide. `directory`: returns the current one.
        `add_users`: whether users that the store does not have are added."""
        self._proof = proof
        self._ruled = ruled
        self._keyring = keyring
        self._accounts = accounts
        self._directory = directory
        self._add_users = add_users
        self._people = UserIndex.from_directory(directory())
        self._latest: dict[str, float] = {}
        """When the latest token of each user was issued. Groups of older tokens are ignored."""

    async def verify(self, token: str, scope: RequestedScope) -> Actor | None:
        if not token.startswith(JSON_OBJECT) or token.count(".") != PARTS - 1:
            return None
        identity = await self._proof.identify(token)
        user = await self._find_user(identity)
        return self._keyring.build_user_actor(user.id, scope, int(identity.until))

    async def _find_user(self, identity: TokenIdentity) -> User:
        user = self._get_index().users.get(identity.address)
        if user is None:
            user = await self._create_user(identity)
        if user.disabled is None:
            await self._follow_groups(user, identity)
        return user

    async def _create_user(self, identity: TokenIdentity) -> User:
        if not self._add_users:
            raise AuthenticationFailed(REFUSAL)
        try:
            return await self._accounts.add_user(ISSUER, identity.name, identity.address, "")
        except Conflict:  # another request of the same user was faster
            return self._get_index().users[identity.address]

    async def _follow_groups(self, user: User, identity: TokenIdentity) -> None:
        """Updates the user's memberships to the token's groups, in projects with group rules."""
        if identity.issued < self._latest.get(user.id, 0.0):
            return
        self._latest[user.id] = identity.issued
        for project in self._ruled:
            claimed_role, current_role = (
                identity.roles.get(project),
                self._get_index().roles.get((project, user.id)),
            )
            if claimed_role == current_role:
                continue
            try:
                if claimed_role is not None:
                    await self._accounts.put_member(ISSUER, project, user.id, claimed_role)
                else:
                    await self._accounts.remove_member(ISSUER, project, user.id)
            except NotFound:
                record("group_without_project", project=project)

    def _get_index(self) -> "UserIndex":
        """The index of the current directory."""
        directory = self._directory()
        if self._people.directory is not directory:
            self._people = UserIndex.from_directory(directory)
        return self._people


@dataclass(frozen=True, slots=True)
class UserIndex:
    """Users and roles of a directory."""

    directory: Directory
    users: dict[str, User]
    """By email address."""
    roles: dict[tuple[str, str], ProjectRole]
    """By project and user."""

    @staticmethod
    def from_directory(directory: Directory) -> "UserIndex":
        return UserIndex(
            directory,
            {user.email: user for user in directory.users if user.email},
            {(each.project, each.user): each.role for each in directory.memberships},
        )
