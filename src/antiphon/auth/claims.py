"""What the claims of a proved token say: who the user is, and which role in which project. Decides, and asks
nobody."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from antiphon.domain.tenancy import Role
from antiphon.domain.texts import NAME

LONGEST_ADDRESS = 320
LONGEST_NAME = 200
LAST = 253_402_300_800
"""Unix seconds of the year 10,000; no token lasts so long."""
NAMED, SURROGATE = re.compile(NAME), re.compile("[\ud800-\udfff]")
RANKS = {Role.VIEWER: 0, Role.MEMBER: 1, Role.OWNER: 2}


@dataclass(frozen=True, slots=True)
class GroupRule:
    """A group, and what it makes of its users in a project."""

    group: str
    project: str
    role: Role


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a token is of."""

    address: str
    """Email address, in lower case."""
    name: str
    roles: Mapping[str, Role]
    """By project: of all projects that groups rule, those that the user's groups are for."""
    until: float
    """Unix seconds at which the token ends."""
    issued: float = 0.0
    """Unix seconds at which it was made, as far as it says."""


@dataclass(frozen=True, slots=True)
class ClaimReader:
    """Reads claims as the operator set it."""

    user_claim: str
    groups_claim: str
    rules: tuple[GroupRule, ...] = ()

    @property
    def ruled(self) -> frozenset[str]:
        """Projects whose members the groups decide."""
        return frozenset(rule.project for rule in self.rules)

    def identity(self, claims: Mapping[str, object], leeway: int) -> Identity | None:
        """None where the claims name no user, or an address that the issuer has not verified."""
        address, until = claim(claims, self.user_claim), claims.get("exp")
        if not isinstance(address, str) or len(address) > LONGEST_ADDRESS or not _is_name(address):
            return None
        if claims.get("email_verified") in (False, "false"):
            return None
        if not isinstance(until, int | float) or not 0 <= until < LAST:
            return None
        name, issued = claims.get("name"), claims.get("iat")
        said = name[:LONGEST_NAME] if isinstance(name, str) and _is_name(name[:LONGEST_NAME]) else address
        groups = claim(claims, self.groups_claim)
        made = float(issued) if isinstance(issued, int | float) else 0.0
        return Identity(address.lower(), said[:LONGEST_NAME], self._roles(groups), until + leeway, made)

    def _roles(self, groups: object) -> Mapping[str, Role]:
        """The highest role of each project."""
        named = {groups} if isinstance(groups, str) else set(_texts(groups))
        found = sorted(
            (rule for rule in self.rules if rule.group in named), key=lambda rule: RANKS[rule.role]
        )
        return {rule.project: rule.role for rule in found}


def _is_name(text: str) -> bool:
    """Whether a user may be called so; what is half of a character (JSON can say it) no database keeps."""
    return NAMED.search(text) is not None and SURROGATE.search(text) is None


def claim(claims: Mapping[str, object], name: str) -> object:
    """What a claim says; a name that no claim has leads at its dots into objects."""
    if name in claims:
        return claims[name]
    at: object = claims
    for part in name.split("."):
        at = at.get(part) if isinstance(at, Mapping) else None
    return at


def _texts(groups: object) -> list[str]:
    if not isinstance(groups, Sequence):
        return []
    return [group for group in groups if isinstance(group, str)]


def group_rules(said: Sequence[str]) -> tuple[GroupRule, ...]:
    """The rules of the settings, each `GROUP=PROJECT:ROLE`."""
    return tuple(_rule(each) for each in said)


def _rule(said: str) -> GroupRule:
    group, _, rest = said.rpartition("=")
    project, _, role = rest.partition(":")
    return GroupRule(group, project, Role(role))
