"""Verifies tokens of an OpenID Connect issuer with its public keys.

A token is accepted if the issuer signed it for this server with one of its keys, if it has not expired, and
if its user is in the store and active. The store decides which projects the token can use. In projects with
group rules, the memberships follow the groups in the tokens.

The server fetches the keys from the issuer periodically. For a token with an unknown key it fetches them
again, but at most once in several seconds. While the issuer does not answer, known keys stay valid for a day.
"""

import asyncio
import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Protocol
from urllib.parse import urlsplit

import jwt

from antiphon.auth.base import REFUSAL, RequestedScope
from antiphon.auth.keyring import Keyring
from antiphon.domain.identity import EVERY_RIGHT, Actor, ActorKind
from antiphon.domain.tenancy import NAME_PATTERN, Membership, ProjectRole, User, fold_email
from antiphon.domain.values import Struct
from antiphon.errors import AuthenticationFailed, Conflict, IssuerUnavailable, NotFound
from antiphon.settings.server import is_loopback
from antiphon.settings.tenancy import split_group_rule
from antiphon.store.base import Directory
from antiphon.telemetry.logs import record

REFRESH_S = 300.0
"""Seconds after which keys are fetched again. A key that the issuer withdraws is still accepted for this
time."""
MIN_FETCH_INTERVAL_S = 10.0
"""The minimum seconds between two fetches."""
MAX_AGE_S = 86_400.0
"""Seconds for which known keys stay valid while the issuer does not respond."""
TIMEOUT_S = 5.0
"""Seconds in which the issuer must respond."""
MAX_RESPONSE_BYTES = 1 << 20
"""The most bytes of a response of the issuer."""
MAX_LOGGED_LENGTH = 200
"""The most characters of a value of the issuer in the log."""
HTTP_OK = 200
DISCOVERY = "/.well-known/openid-configuration"

Fetch = Callable[[str], Awaitable[bytes]]
"""Downloads an address. Raises IssuerUnavailable."""


class SigningKeys:
    """The keys of one issuer."""

    def __init__(self, issuer: str, url: str | None, fetch: Fetch, monotonic: Callable[[], float]) -> None:
        """`url`: the address of the keys; None means that the issuer tells it. `monotonic`: seconds."""
        self._issuer = issuer
        self._url = url
        self._fetch = fetch
        self._monotonic = monotonic
        self._keys: dict[str | None, jwt.PyJWK] = {}
        self._last_fetch: float | None = None
        self._last_attempt: float | None = None
        self._fetch_lock = asyncio.Lock()
        self.generation = 0
        """The number of changes of the keys. After a change, cached tokens are verified again."""

    async def refresh(self) -> None:
        """Fetches the keys again if the last fetch is more than REFRESH_S ago. Raises IssuerUnavailable if
        the known keys are older than MAX_AGE_S and cannot be fetched."""
        if self._get_age() > MAX_AGE_S:
            await self._refetch(is_required=True)
        elif self._get_age() > REFRESH_S and not self._fetch_lock.locked():
            await self._refetch()

    async def find(self, kid: str | None) -> jwt.PyJWK | None:
        """Returns the key with this id; fetches the keys if the id is unknown. Without an id, returns the
        only key. Returns None if there is no such key."""
        signing_key = self._find_key(kid)
        if signing_key is None:
            await self._refetch()
            signing_key = self._find_key(kid)
        return signing_key

    async def load(self) -> list[str]:
        """Fetches the keys now, and returns the algorithm of each. Raises IssuerUnavailable."""
        self._set_keys(await self._fetch_keys())
        return [key.algorithm_name for key in self._keys.values()]

    def _get_age(self) -> float:
        """Returns the seconds since the last fetch; infinite before the first."""
        return float("inf") if self._last_fetch is None else self._monotonic() - self._last_fetch

    def _find_key(self, kid: str | None) -> jwt.PyJWK | None:
        """Returns the known key with the id, or the only key if the id is None."""
        if kid is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(kid)

    async def _refetch(self, is_required: bool = False) -> None:
        """Fetches the keys, unless the last attempt was a few seconds ago. Logs a failure. If `is_required`,
        raises IssuerUnavailable if no valid keys are known."""
        last_attempt = self._last_attempt
        async with self._fetch_lock:
            was_tried_meanwhile = self._last_attempt != last_attempt
            if not was_tried_meanwhile and (
                self._last_attempt is None or self._monotonic() - self._last_attempt >= MIN_FETCH_INTERVAL_S
            ):
                self._last_attempt = self._monotonic()
                try:
                    self._set_keys(await self._fetch_keys())
                except IssuerUnavailable as problem:
                    record("issuer_unavailable", issuer=self._issuer, problem=problem.message)
        if is_required and self._get_age() > MAX_AGE_S:
            raise IssuerUnavailable(
                "the issuer of these tokens does not answer; try again", retry_after=MIN_FETCH_INTERVAL_S
            )

    async def _fetch_keys(self) -> Mapping[str, object]:
        """Fetches the issuer's key set."""
        url = self._url
        if url is None:
            discovery = _parse_object(await self._fetch(self._issuer.rstrip("/") + DISCOVERY))
            if discovery.get("issuer") != self._issuer:
                raise IssuerUnavailable(
                    f"the configuration at {self._issuer} belongs to the issuer "
                    f"{discovery.get('issuer')!r:.{MAX_LOGGED_LENGTH}}"
                )
            url = str(discovery.get("jwks_uri"))
        if not is_secure_url(url):
            raise IssuerUnavailable(f"the keys of {self._issuer} are not at an https address")
        return _parse_object(await self._fetch(url))

    def _set_keys(self, key_set: Mapping[str, object]) -> None:
        """Replaces the known keys by the usable keys of a key set."""
        try:
            jwk_keys = jwt.PyJWKSet.from_dict(dict(key_set)).keys
        except (jwt.PyJWTError, ValueError, TypeError, AttributeError) as problem:
            raise IssuerUnavailable(f"the issuer's keys cannot be read: {type(problem).__name__}") from None
        keys = {key.key_id: key for key in jwk_keys if _is_signing_key(key)}
        if {kid: key.key for kid, key in keys.items()} != {kid: key.key for kid, key in self._keys.items()}:
            self.generation += 1
        self._keys, self._last_fetch = keys, self._monotonic()


def _is_signing_key(key: jwt.PyJWK) -> bool:
    """Whether a key is for signatures and has a usable id."""
    return key.public_key_use in (None, "sig") and isinstance(key.key_id, str | None)


def is_secure_url(url: str) -> bool:
    """Whether an address uses https or is on this machine, so that nobody on the network can change its
    responses."""
    try:
        address = urlsplit(url)
        return address.scheme == "https" or (address.scheme == "http" and is_loopback(address.hostname or ""))
    except ValueError:
        return False


def _parse_object(body: bytes) -> dict[str, object]:
    """Parses a JSON object. Raises IssuerUnavailable for anything else."""
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise IssuerUnavailable("the issuer's answer is not a JSON object")
    return parsed


async def fetch(url: str) -> bytes:
    """Downloads an address without following redirects. Raises IssuerUnavailable."""
    import httpx2  # the import takes a tenth of a second, and only single sign-on needs it here

    try:
        async with (
            asyncio.timeout(TIMEOUT_S),
            httpx2.AsyncClient(timeout=TIMEOUT_S) as client,
            client.stream("GET", url, headers={"accept": "application/json"}) as response,
        ):
            if response.status_code != HTTP_OK:
                raise IssuerUnavailable(f"the issuer answered {response.status_code}")
            return await _read_body(response.aiter_bytes())
    except (httpx2.HTTPError, OSError, TimeoutError) as problem:
        raise IssuerUnavailable(f"the issuer does not answer: {type(problem).__name__}") from None


async def _read_body(chunks: AsyncIterator[bytes]) -> bytes:
    """Joins the chunks of a response. Raises IssuerUnavailable if it has more than MAX_RESPONSE_BYTES."""
    body = bytearray()
    async for chunk in chunks:
        body += chunk
        if len(body) > MAX_RESPONSE_BYTES:
            raise IssuerUnavailable("the issuer's answer is too long")
    return bytes(body)


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


def _refuse(cause: str) -> AuthenticationFailed:
    """Builds the error of a refused token. Only the log gets the cause."""
    return AuthenticationFailed(REFUSAL, cause=cause)


ISSUER = Actor(ActorKind.ADMIN, "single-sign-on", rights=EVERY_RIGHT)
"""The actor that the audit names for changes that tokens cause."""

MAX_ADDRESS_LENGTH = 320
MAX_NAME_LENGTH = 200
MAX_EXPIRY = 253_402_300_800
"""Unix seconds of the year 10,000. A later expiry is invalid."""
NAME, SURROGATE = re.compile(NAME_PATTERN), re.compile("[\ud800-\udfff]")
ROLE_RANKS = {ProjectRole.VIEWER: 0, ProjectRole.MEMBER: 1, ProjectRole.OWNER: 2}


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
