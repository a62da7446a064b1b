"""Verifies tokens of an OpenID Connect issuer.

A token is accepted if the issuer signed it for this server with one of its keys, if it has not expired, and
if its user is in the store and active. The store decides which projects the token can use. In projects with
group rules, the memberships follow the groups in the tokens.
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
"""Every JWT starts with this."""
PARTS = 3
MAX_CACHED_TOKENS = 4096
"""The most cached tokens. The verification of a signature takes 0.1 ms."""
TOKEN_ERRORS = (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError)
"""Errors for malformed tokens."""

ISSUER = Actor(ActorKind.ADMIN, "single-sign-on", rights=EVERY_RIGHT)
"""The actor in the audit for changes by tokens."""

MAX_ADDRESS_LENGTH = 320
MAX_NAME_LENGTH = 200
MAX_EXPIRY = 253_402_300_800
"""Unix seconds of the year 10,000. A later expiry is invalid."""
NAME, SURROGATE = re.compile(NAME_PATTERN), re.compile("[\ud800-\udfff]")
RANKS = {ProjectRole.VIEWER: 0, ProjectRole.MEMBER: 1, ProjectRole.OWNER: 2}


@dataclass(frozen=True, slots=True)
class GroupRule:
    """Gives users of a group a role in a project."""

    group: str
    project: str
    role: ProjectRole


@dataclass(frozen=True, slots=True)
class TokenIdentity:
    """The user of a token, and the token's times."""

    address: str
    """Email address, in lower case."""
    name: str
    roles: Mapping[str, ProjectRole]
    """Roles by project, from the user's groups."""
    until: float
    """The end of the token in Unix seconds."""
    issued: float = 0.0
    """The time of issue in Unix seconds; 0 if it is unknown."""


@dataclass(frozen=True, slots=True)
class ClaimReader:
    """Reads claims by their configured names."""

    user_claim: str
    groups_claim: str
    rules: tuple[GroupRule, ...] = ()

    @property
    def group_projects(self) -> frozenset[str]:
        """The projects with group rules."""
        return frozenset(rule.project for rule in self.rules)

    def read_identity(self, claims: Mapping[str, object], leeway: int) -> TokenIdentity | None:
        """Returns the user; None if the claims contain no user, no expiry or an unverified address."""
        address, until = read_claim(claims, self.user_claim), claims.get("exp")
        if not isinstance(address, str) or len(address) > MAX_ADDRESS_LENGTH or not _is_name(address):
            return None
        if claims.get("email_verified") in (False, "false"):
            return None
        if not isinstance(until, int | float) or not 0 <= until < MAX_EXPIRY:
            return None
        name, issued = claims.get("name"), claims.get("iat")
        display_name = (
            name[:MAX_NAME_LENGTH] if isinstance(name, str) and _is_name(name[:MAX_NAME_LENGTH]) else address
        )
        groups = read_claim(claims, self.groups_claim)
        issued_at = float(issued) if isinstance(issued, int | float) else 0.0
        return TokenIdentity(
            address.lower(),
            display_name[:MAX_NAME_LENGTH],
            self._assign_roles(groups),
            until + leeway,
            issued_at,
        )

    def _assign_roles(self, groups: object) -> Mapping[str, ProjectRole]:
        """Returns the highest role in each project."""
        user_groups = {groups} if isinstance(groups, str) else set(_list_texts(groups))
        roles = sorted(
            (rule for rule in self.rules if rule.group in user_groups), key=lambda rule: RANKS[rule.role]
        )
        return {rule.project: rule.role for rule in roles}


def _is_name(text: str) -> bool:
    """Whether a text is a valid name. JSON can contain lone surrogates, which databases do not store."""
    return NAME.search(text) is not None and SURROGATE.search(text) is None


def read_claim(claims: Mapping[str, object], name: str) -> object:
    """Returns the value of a claim. If there is no claim with the name, dots in it lead into objects."""
    if name in claims:
        return claims[name]
    value: object = claims
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _list_texts(groups: object) -> list[str]:
    if not isinstance(groups, Sequence):
        return []
    return [group for group in groups if isinstance(group, str)]


def parse_group_rules(texts: Sequence[str]) -> tuple[GroupRule, ...]:
    """Parses the settings' rules, each `GROUP=PROJECT:ROLE`."""
    return tuple(_parse_group_rule(text) for text in texts)


def _parse_group_rule(text: str) -> GroupRule:
    group, _, rest = text.rpartition("=")
    project, _, role = rest.partition(":")
    return GroupRule(group, project, ProjectRole(role))


@dataclass(frozen=True, slots=True)
class TokenRequirements:
    """The requirements for a valid token."""

    issuer: str
    audience: str
    algorithms: tuple[str, ...]
    leeway: int
    """Seconds."""


class TokenVerificationCache:
    """Verifies tokens, and caches valid ones until they expire or the issuer's keys change."""

    def __init__(
        self,
        requirements: TokenRequirements,
        keys: SigningKeys,
        reader: ClaimReader,
        clock: Callable[[], float],
    ) -> None:
        """`clock`: Unix seconds."""
        self._requirements = requirements
        self._keys = keys
        self._reader = reader
        self._clock = clock
        self._cache: OrderedDict[bytes, TokenIdentity] = OrderedDict()
        self._generation = keys.generation

    async def identify(self, token: str) -> TokenIdentity:
        """Returns the user of a token. Raises AuthenticationFailed, and IssuerUnavailable if the issuer's
        keys are unknown."""
        digest = hashlib.sha256(token.encode()).digest()
        await self._keys.refresh()
        if self._generation != self._keys.generation:
            self._cache.clear()
            self._generation = self._keys.generation
        identity = self._cache.get(digest)
        if identity is None or identity.until <= self._clock():
            identity = self._cache[digest] = await self._verify(token)
            if len(self._cache) > MAX_CACHED_TOKENS:
                self._cache.popitem(last=False)
        return identity

    async def _verify(self, token: str) -> TokenIdentity:
        """Verifies a token's signature and claims, and returns its user. Raises AuthenticationFailed."""
        requirements = self._requirements
        try:
            key = await self._keys.find(jwt.get_unverified_header(token).get("kid"))
            claims = key and jwt.decode(
                token,
                key,
                algorithms=list(requirements.algorithms),
                audience=requirements.audience,
                issuer=requirements.issuer,
                leeway=requirements.leeway,
                options={"require": ["exp", "iss", "aud"]},
            )
            identity = self._reader.read_identity(claims, requirements.leeway) if claims else None
        except TOKEN_ERRORS:
            identity = None
        if identity is None:
            raise AuthenticationFailed(REFUSAL)
        return identity


class Accounts(Protocol):
    """The methods of `services.tenancy.TenancyService` that single sign-on needs."""

    async def add_user(self, actor: Actor, name: str, email: str | None, note: str) -> User: ...
    async def put_member(self, actor: Actor, project: str, user: str, role: ProjectRole) -> Membership: ...
    async def remove_member(self, actor: Actor, project: str, user: str) -> None: ...


class SingleSignOn:
    """The `TokenVerifier` of one issuer's tokens."""

    def __init__(
        self,
        tokens: TokenVerificationCache,
        group_projects: frozenset[str],
        keyring: Keyring,
        accounts: Accounts,
        directory: Callable[[], Directory],
        add_users: bool = False,
    ) -> None:
        """`group_projects`: projects whose members follow the groups in tokens. `directory` returns the
        current directory. `add_users`: whether unknown users are added to the store."""
        self._tokens = tokens
        self._group_projects = group_projects
        self._keyring = keyring
        self._accounts = accounts
        self._directory = directory
        self._add_users = add_users
        self._index = UserIndex.from_directory(directory())
        self._last_issued: dict[str, float] = {}
        """The time of issue of each user's latest token. Groups of older tokens are ignored."""

    async def verify(self, token: str, scope: RequestedScope) -> Actor | None:
        if not token.startswith(JSON_OBJECT) or token.count(".") != PARTS - 1:
            return None
        identity = await self._tokens.identify(token)
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
        except Conflict:  # another request has just added the user
            return self._get_index().users[identity.address]

    async def _follow_groups(self, user: User, identity: TokenIdentity) -> None:
        """Updates the user's memberships by the token's groups, in projects with group rules."""
        if identity.issued < self._last_issued.get(user.id, 0.0):
            return
        self._last_issued[user.id] = identity.issued
        for project in self._group_projects:
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
        """Returns the index of the current directory."""
        directory = self._directory()
        if self._index.directory is not directory:
            self._index = UserIndex.from_directory(directory)
        return self._index


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
            {(member.project, member.user): member.role for member in directory.memberships},
        )
