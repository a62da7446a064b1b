"""Verifies tokens of an OpenID Connect issuer, and finds their users.

A token is accepted if the issuer signed it for this server with one of its `SigningKeys`, if it has not
expired, and if its user is in the store and active. The store decides which projects the token can use. In
projects with group rules, the memberships follow the groups in the tokens.
"""

import hashlib
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import jwt

from antiphon.auth.base import REFUSAL, RequestedScope
from antiphon.auth.keyring import Keyring
from antiphon.auth.signing_keys import MAX_LOGGED_LENGTH, SigningKeys
from antiphon.domain.identity import EVERY_RIGHT, Actor, ActorKind
from antiphon.domain.tenancy import NAME_PATTERN, Membership, ProjectRole, User, fold_email
from antiphon.domain.values import Struct
from antiphon.errors import AuthenticationFailed, Conflict, NotFound
from antiphon.settings.tenancy import split_group_rule
from antiphon.store.base import Directory
from antiphon.telemetry.logs import record

JWT_PREFIX = "eyJ"
"""Every JWT starts with this text: it is the beginning of a JSON object in base64."""
JWT_PARTS = 3
MAX_CACHED_TOKENS = 4096
"""The most tokens that are cached, because the verification of a signature takes 0.1 ms."""
TOKEN_ERRORS = (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError)
"""The errors that malformed tokens cause."""

REFUSAL_CAUSES: tuple[tuple[type[Exception], str], ...] = (
    (jwt.ExpiredSignatureError, "the token has expired"),
    (jwt.ImmatureSignatureError, "the token is not valid yet: its nbf or iat is in the future"),
    (jwt.InvalidAudienceError, "the token has another audience than oidc.audience"),
    (jwt.InvalidIssuerError, "the token has another issuer than oidc.issuer"),
    (jwt.MissingRequiredClaimError, "the token lacks one of the claims exp, iss and aud"),
    (jwt.InvalidAlgorithmError, "the token's algorithm is not one of oidc.algorithms, or not its key's"),
    (jwt.InvalidSignatureError, "no key of the issuer made the token's signature"),
    (Exception, "the token is malformed"),
)
"""The cause that the log gets, by the error's type: the first one that fits."""

ISSUER = Actor(ActorKind.ADMIN, "single-sign-on", rights=EVERY_RIGHT)
"""The actor that the audit names for changes that tokens cause."""

MAX_ADDRESS_LENGTH = 320
MAX_NAME_LENGTH = 200
MAX_EXPIRY = 253_402_300_800
"""Unix seconds of the year 10,000. A later expiry is invalid."""
NAME, SURROGATE = re.compile(NAME_PATTERN), re.compile("[\ud800-\udfff]")
ROLE_RANKS = {ProjectRole.VIEWER: 0, ProjectRole.MEMBER: 1, ProjectRole.OWNER: 2}


def _refuse(cause: str) -> AuthenticationFailed:
    """Builds the error of a refused token. Only the log gets the cause."""
    return AuthenticationFailed(REFUSAL, cause=cause)


class GroupRule(Struct, frozen=True):
    """Gives users of a group a role in a project."""

    group: str
    project: str
    role: ProjectRole


class TokenIdentity(Struct, frozen=True):
    """The user of a token, and the token's times."""

    address: str
    """Email address, in the form of `fold_email`."""
    name: str
    roles: Mapping[str, ProjectRole]
    """Roles by project, from the user's groups."""
    until: float
    """The end of the token in Unix seconds."""
    issued: float = 0.0
    """The time of issue in Unix seconds; 0 if it is unknown."""


class ClaimReader(Struct, frozen=True):
    """Reads the claims that have the configured names."""

    user_claim: str
    groups_claim: str
    rules: tuple[GroupRule, ...] = ()

    @property
    def group_projects(self) -> frozenset[str]:
        """The projects with group rules."""
        return frozenset(rule.project for rule in self.rules)

    def read_identity(self, claims: Mapping[str, object], leeway: int) -> TokenIdentity:
        """Returns the user of a token. Raises AuthenticationFailed if the claims contain no valid address, an
        unverified address, or no valid expiry. `leeway`: seconds that are added to the expiry."""
        address, until = read_claim(claims, self.user_claim), claims.get("exp")
        if not isinstance(address, str) or len(address) > MAX_ADDRESS_LENGTH or not _is_name(address):
            raise _refuse(f"the token has no email address in the claim {self.user_claim}")
        is_verified = claims.get("email_verified", True)
        if is_verified is not True and is_verified != "true":  # issuers also write "False", "no", 0 and null
            raise _refuse("the token's email address is not verified: email_verified is not true")
        if not isinstance(until, int | float) or not 0 <= until < MAX_EXPIRY:
            raise _refuse("the token's claim exp is not a time")
        name, issued = claims.get("name"), claims.get("iat")
        display_name = (
            name[:MAX_NAME_LENGTH] if isinstance(name, str) and _is_name(name[:MAX_NAME_LENGTH]) else address
        )
        groups = read_claim(claims, self.groups_claim)
        issued_at = float(issued) if isinstance(issued, int | float) else 0.0
        return TokenIdentity(
            fold_email(address),
            display_name[:MAX_NAME_LENGTH],
            self._assign_roles(groups),
            until + leeway,
            issued_at,
        )

    def _assign_roles(self, groups: object) -> Mapping[str, ProjectRole]:
        """Returns the user's highest role in each project. `groups`: the value of the groups claim."""
        user_groups = {groups} if isinstance(groups, str) else set(_list_texts(groups))
        matching_rules = sorted(
            (rule for rule in self.rules if rule.group in user_groups), key=lambda rule: ROLE_RANKS[rule.role]
        )
        return {rule.project: rule.role for rule in matching_rules}


def _is_name(text: str) -> bool:
    """Whether a text is a valid name. JSON can contain lone surrogates, which databases do not store."""
    return NAME.search(text) is not None and SURROGATE.search(text) is None


def read_claim(claims: Mapping[str, object], name: str) -> object:
    """Returns the value of a claim; None if there is none. `name`: the claim's name, or names of nested
    fields with dots between, as `realm_access.roles`."""
    if name in claims:
        return claims[name]
    value: object = claims
    for field_name in name.split("."):
        value = value.get(field_name) if isinstance(value, Mapping) else None
    return value


def _list_texts(groups: object) -> list[str]:
    if not isinstance(groups, Sequence):
        return []
    return [group for group in groups if isinstance(group, str)]


def parse_group_rules(texts: Sequence[str]) -> tuple[GroupRule, ...]:
    """Parses rules, each `GROUP=PROJECT:ROLE` with the project's id."""
    rules = map(split_group_rule, texts)
    return tuple(GroupRule(group, project, ProjectRole(role)) for group, project, role in rules)


class TokenRequirements(Struct, frozen=True):
    """What a token must fulfil to be valid."""

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
            kid = jwt.get_unverified_header(token).get("kid")
            key = await self._keys.find(kid)
            if key is None:
                raise _refuse("the issuer has no key with the id in the token's header")
            claims = jwt.decode(
                token,
                key,
                algorithms=list(requirements.algorithms),
                audience=requirements.audience,
                issuer=requirements.issuer,
                leeway=requirements.leeway,
                options={"require": ["exp", "iss", "aud"]},
            )
        except TOKEN_ERRORS as problem:
            cause = next(text for type_, text in REFUSAL_CAUSES if isinstance(problem, type_))
            if isinstance(problem, jwt.InvalidAudienceError | jwt.InvalidIssuerError):
                # Its signature is valid, so the issuer wrote what stands in it.
                claim = "aud" if isinstance(problem, jwt.InvalidAudienceError) else "iss"
                value = jwt.decode(token, options={"verify_signature": False}).get(claim)
                cause += f": {value!r:.{MAX_LOGGED_LENGTH}}"
            raise _refuse(cause) from None
        return self._reader.read_identity(claims, requirements.leeway)


class Accounts(Protocol):
    """The methods of `services.tenancy.TenancyService` that single sign-on needs."""

    async def add_user(self, actor: Actor, name: str, email: str | None, note: str) -> User: ...
    async def put_member(self, actor: Actor, project: str, user: str, role: ProjectRole) -> Membership: ...
    async def remove_member(self, actor: Actor, project: str, user: str) -> None: ...


class SingleSignOn:
    """The `TokenVerifier` of one issuer's tokens."""

    def __init__(
        self,
        token_cache: TokenVerificationCache,
        group_projects: frozenset[str],
        keyring: Keyring,
        accounts: Accounts,
        get_directory: Callable[[], Directory],
        add_users: bool = False,
    ) -> None:
        """`group_projects`: projects whose members follow the groups in tokens. `get_directory` returns the
        current directory. `add_users`: whether unknown users are added to the store."""
        self._token_cache = token_cache
        self._group_projects = group_projects
        self._keyring = keyring
        self._accounts = accounts
        self._get_directory = get_directory
        self._add_users = add_users
        self._index = UserIndex.from_directory(get_directory())
        self._last_issued: dict[str, float] = {}
        """The time of issue of each user's latest token. Groups of older tokens are ignored."""

    async def verify(self, token: str, scope: RequestedScope) -> Actor | None:
        if not token.startswith(JWT_PREFIX) or token.count(".") != JWT_PARTS - 1:
            return None
        identity = await self._token_cache.identify(token)
        user = await self._find_user(identity)
        return self._keyring.build_user_actor(user.id, scope, int(identity.until))

    async def _find_user(self, identity: TokenIdentity) -> User:
        """Returns the user of a token. Adds an unknown user, and updates the memberships, where the settings
        say so."""
        user = self._get_index().users.get(identity.address)
        if user is None:
            user = await self._create_user(identity)
        if user.disabled is None:
            await self._follow_groups(user, identity)
        return user

    async def _create_user(self, identity: TokenIdentity) -> User:
        """Adds the user of a token to the store. Raises AuthenticationFailed if users are not added."""
        if not self._add_users:
            raise _refuse("no user has the token's email address, and oidc.add_users is off")
        try:
            return await self._accounts.add_user(ISSUER, identity.name, identity.address, "")
        except Conflict:  # another request has just added the user
            return self._get_index().users[identity.address]

    async def _follow_groups(self, user: User, identity: TokenIdentity) -> None:
        """Gives the user the roles of the token's groups, in projects with group rules. Ignores a token that
        was issued before the latest one."""
        if identity.issued < self._last_issued.get(user.id, 0.0):
            return
        self._last_issued[user.id] = identity.issued
        for project in self._group_projects:
            claimed_role = identity.roles.get(project)
            current_role = self._get_index().roles.get((project, user.id))
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
        directory = self._get_directory()
        if self._index.directory is not directory:
            self._index = UserIndex.from_directory(directory)
        return self._index


class UserIndex(Struct, frozen=True):
    """The users and roles of a directory, in dictionaries for fast look-ups."""

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
