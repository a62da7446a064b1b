"""What the admin API takes and gives, as JSON."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from antiphon import validation_messages
from antiphon.dialects.common.strict_json import read_object
from antiphon.domain.limits import Measure, Subject, Window
from antiphon.domain.recording import Redaction
from antiphon.domain.tenancy import AuditEntry, KeyKind, Membership, Project, Role, User
from antiphon.domain.texts import EMAIL, NAME, NOTE, PLAIN
from antiphon.errors import AntiphonError, InvalidValue, MissingParameter, UnknownParameter

Name = Annotated[str, Meta(min_length=1, max_length=200, pattern=NAME)]
Note = Annotated[str, Meta(max_length=2_000, pattern=NOTE)]
Email = Annotated[str, Meta(min_length=3, max_length=320, pattern=EMAIL)]
Id = Annotated[str, Meta(min_length=1, max_length=64)]
Pattern = Annotated[str, Meta(min_length=1, max_length=300, pattern=PLAIN)]
Moment = Annotated[int, Meta(ge=0, le=2**53)]

Shape = TypeVar("Shape", bound=Struct)


class NewProject(Struct, frozen=True, forbid_unknown_fields=True):
    """A project to make."""

    name: Name
    note: Note = ""


class ProjectChange(Struct, frozen=True, forbid_unknown_fields=True):
    """What is to be another; what is left out stays."""

    name: Name | None = None
    note: Note | None = None
    archived: bool | None = None


class NewUser(Struct, frozen=True, forbid_unknown_fields=True):
    """A user to make."""

    name: Name
    email: Email | None = None
    note: Note = ""


class UserChange(Struct, frozen=True, forbid_unknown_fields=True):
    """What is to be another; what is left out stays. An `email` of null: the user has none."""

    name: Name | None = None
    email: Email | UnsetType | None = UNSET
    note: Note | None = None
    disabled: bool | None = None

    def changed(self, user: User) -> User:
        """The user from then on, but for `disabled`."""
        return replace(
            user,
            name=user.name if self.name is None else self.name,
            email=user.email if self.email is UNSET else self.email,
            note=user.note if self.note is None else self.note,
        )


class Member(Struct, frozen=True, forbid_unknown_fields=True):
    """What a user is to be in a project."""

    role: Role


class Nothing(Struct, frozen=True, forbid_unknown_fields=True):
    """An object without fields."""


class RecordingCard(Struct, frozen=True, kw_only=True):
    """How a project's requests are kept."""

    days: int
    redact: list[Redaction]


class ProjectCard(Struct, frozen=True, kw_only=True):
    """A project. Times are Unix seconds."""

    object: Literal["project"] = "project"
    id: str
    name: str
    created_at: int
    archived_at: int | None
    note: str
    recording: RecordingCard | None
    """How its requests are kept word by word; null, where they are not."""


class UserCard(Struct, frozen=True, kw_only=True):
    """A user."""

    object: Literal["user"] = "user"
    id: str
    name: str
    email: str | None
    created_at: int
    disabled_at: int | None
    note: str


class MemberCard(Struct, frozen=True, kw_only=True):
    """A user's role in a project."""

    object: Literal["membership"] = "membership"
    project: str
    user: str
    role: Role
    created_at: int


class AuditCard(Struct, frozen=True, kw_only=True):
    """One change."""

    object: Literal["audit_entry"] = "audit_entry"
    id: int
    at: int
    actor: str
    action: str
    target: str
    detail: dict[str, Any]


class Page(Struct, frozen=True, kw_only=True):
    """Some of a list, in order. `next`, where there is more, is the value of `after` (of the audit: `before`)
    for what follows."""

    object: Literal["list"] = "list"
    next: str | None


class ProjectPage(Page, frozen=True, kw_only=True):
    """Projects, the oldest first."""

    data: list[ProjectCard]


class UserPage(Page, frozen=True, kw_only=True):
    """Users, the oldest first."""

    data: list[UserCard]


class MemberPage(Page, frozen=True, kw_only=True):
    """Members of a project, by their ids."""

    data: list[MemberCard]


class AuditPage(Page, frozen=True, kw_only=True):
    """Changes, the latest first."""

    data: list[AuditCard]


def project_card(project: Project) -> ProjectCard:
    """A project as it is shown."""
    kept = project.recording
    return ProjectCard(
        id=project.id,
        name=project.name,
        created_at=project.created,
        archived_at=project.archived,
        note=project.note,
        recording=None if kept is None else RecordingCard(days=kept.days, redact=list(kept.redact)),
    )


def user_card(user: User) -> UserCard:
    """A user as it is shown."""
    return UserCard(
        id=user.id,
        name=user.name,
        email=user.email,
        created_at=user.created,
        disabled_at=user.disabled,
        note=user.note,
    )


def member_card(membership: Membership) -> MemberCard:
    """A membership as it is shown."""
    return MemberCard(
        project=membership.project,
        user=membership.user,
        role=membership.role,
        created_at=membership.created,
    )


def audit_card(entry: AuditEntry) -> AuditCard:
    """An entry of the audit as it is shown."""
    return AuditCard(
        id=entry.id,
        at=entry.at,
        actor=entry.actor,
        action=entry.action,
        target=entry.target,
        detail=msgspec.json.decode(entry.detail, type=dict[str, Any]),
    )


def decoded(body: bytes, shape: type[Shape]) -> Shape:
    """A body as `shape`. Raises MalformedBody, InvalidValue, MissingParameter or UnknownParameter."""
    try:
        return msgspec.convert(read_object(body), shape)
    except msgspec.ValidationError as problem:
        raise _explained(validation_messages.parse_message(str(problem))) from None


def _explained(complaint: validation_messages.ValidationProblem) -> AntiphonError:
    if name := complaint.missing_field:
        return MissingParameter(f"{name} is missing", param=name)
    if name := complaint.unknown_field:
        return UnknownParameter(f"unknown field {name}", param=name)
    path = complaint.path
    taken = complaint.expected
    if complaint.is_choice and (choices := CHOICES.get(_field(path))):
        taken = " or ".join(choices)
    elif "matching regex" in complaint.text:
        taken = TEXTS.get(_field(path), "a text without control characters")
    return InvalidValue(f"{path or 'the body'} must be {taken}", param=path or None)


def _field(path: str) -> str:
    """The name of the field that a path leads to, or to an item of which."""
    return path.rpartition(".")[2].partition("[")[0]


TEXTS: Mapping[str, str] = MappingProxyType(
    {
        "email": "an email address",
        **dict.fromkeys(("name", "target"), "a text without control characters, not of blanks alone"),
        "note": "a text without NUL",
        "currency": "three capital letters, as in ISO 4217: USD",
        **dict.fromkeys(
            ("input", "output", "cached", "request"),
            "a decimal text of at most nine digits behind the point, and seven before it: 0.15",
        ),
    }
)
"""What fields of a pattern take."""

CHOICES: Mapping[str, tuple[str, ...]] = {
    "kind": tuple(KeyKind),
    "role": tuple(Role),
    "subject": tuple(Subject),
    "measure": tuple(Measure),
    "window": tuple(Window),
    "redact": tuple(Redaction),
}
"""What fields of few values take."""
