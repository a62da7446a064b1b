"""Who there is: projects, users, memberships, and the keys that callers carry. Values only."""

from dataclasses import dataclass
from enum import StrEnum

from antiphon.domain.recording import RecordingPolicy

DEFAULT_PROJECT = "default"
"""Id of the project that is always there."""


class ProjectRole(StrEnum):
    """What a user is in a project."""

    OWNER = "owner"
    """Manages the project's members and keys, and generates."""
    MEMBER = "member"
    """Generates, and manages keys of its own."""
    VIEWER = "viewer"
    """Reads; generates nothing."""


class KeyKind(StrEnum):
    """For whom a key speaks."""

    ACCESS_TOKEN = "access_token"
    """For a user, in one project or in any that the user is a member of."""
    SERVICE = "service"
    """For a project, and for any of its members that a request names."""
    ADMIN = "admin"
    """For the operator: everything."""


@dataclass(frozen=True, slots=True)
class Project:
    """What keys, usage and knowledge belong to."""

    id: str
    name: str
    """Unique, also among those that are archived."""
    created: int
    """Unix seconds, as all times here."""
    archived: int | None = None
    """Since when none of its keys is accepted."""
    note: str = ""
    recording: RecordingPolicy | None = None
    """How its requests are kept word by word; None, where they are not."""


@dataclass(frozen=True, slots=True)
class User:
    """A person."""

    id: str
    name: str
    created: int
    email: str | None = None
    """Unique."""
    disabled: int | None = None
    """Since when none of the user's keys is accepted."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Membership:
    """A user's role in a project."""

    project: str
    user: str
    role: ProjectRole
    created: int


@dataclass(frozen=True, slots=True)
class Grant:
    """What a key may do, within what its owner may."""

    models: tuple[str, ...] | None = None
    """Patterns of model names, `*` for any run of characters; None is every model."""
    endpoints: tuple[str, ...] | None = None
    """Patterns of paths; None is every path that is not the operator's."""


EVERYTHING = Grant()


@dataclass(frozen=True, slots=True)
class Key:
    """A key as it is kept: never the key itself."""

    id: str
    kind: KeyKind
    prefix: str
    """The beginning by which people tell keys apart; tells nothing of the rest."""
    created: int
    creator: str
    """Id of the actor that made it."""
    project: str | None = None
    """Of a service key its project; of an access token the only one it is for, else None."""
    user: str | None = None
    """Of an access token."""
    grant: Grant = EVERYTHING
    expires: int | None = None
    revoked: int | None = None
    note: str = ""
    family: str | None = None
    """Of a key that was made by rotating another: the id of the first. What limits a key limits its family,
    and is used up by all of it."""

    @property
    def first(self) -> str:
        """Id of the first key of its family, which it may be itself."""
        return self.family or self.id


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One change, by whom."""

    id: int
    at: int
    actor: str
    action: str
    """`key.create`, `project.archive`, ..."""
    target: str
    """Id of what was changed."""
    detail: str = ""
    """JSON of what was said, without secrets."""
