"""Projects, their members, users, and the audit of changes: wire types, handlers and endpoints."""

from collections.abc import Iterator
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from antiphon.bodies.strict_json import decode_json
from antiphon.dialects.base import Endpoint
from antiphon.dialects.http_types import Request, Response
from antiphon.domain.tenancy import (
    AuditEntry,
    AuditSelection,
    Membership,
    Project,
    ProjectRole,
    Redaction,
    User,
)
from antiphon.domain.values import replace
from antiphon.errors import InvalidValue
from antiphon.http.admin.audit_changes import (
    AuditChange,
    describe_subject,
    format_moment,
    list_changes,
    remove_context,
)
from antiphon.http.admin.resource import (
    CREATED,
    MAX_SECOND,
    NO_CONTENT,
    PAGE_SIZE,
    SECOND_SCHEMA,
    Email,
    ListPage,
    Name,
    Note,
    answer_json,
    answer_list,
    answer_page,
    declare_endpoint,
    declare_paging,
    declare_parameter,
    read_page_size,
    read_query,
    read_second,
)
from antiphon.services.tenancy import TenancyService


class NewProject(Struct, frozen=True, forbid_unknown_fields=True):
    """A project to create."""

    name: Name
    note: Note = ""


class ProjectChange(Struct, frozen=True, forbid_unknown_fields=True):
    """The fields to change; others stay."""

    name: Name | None = None
    note: Note | None = None
    archived: bool | None = None


class NewUser(Struct, frozen=True, forbid_unknown_fields=True):
    """A user to create."""

    name: Name
    email: Email | None = None
    note: Note = ""


class UserChange(Struct, frozen=True, forbid_unknown_fields=True):
    """The fields to change; others stay. An `email` of null removes the address."""

    name: Name | None = None
    email: Email | UnsetType | None = UNSET
    note: Note | None = None
    disabled: bool | None = None

    def apply_to(self, user: User) -> User:
        """Returns the changed user. Does not apply `disabled`."""
        return replace(
            user,
            name=user.name if self.name is None else self.name,
            email=user.email if self.email is UNSET else self.email,
            note=user.note if self.note is None else self.note,
        )


class Member(Struct, frozen=True, forbid_unknown_fields=True):
    """The role of a user in a project."""

    role: ProjectRole


class EmptyBody(Struct, frozen=True, forbid_unknown_fields=True):
    """An object without fields."""


class RecordingCard(Struct, frozen=True, kw_only=True):
    """How a project's requests are recorded."""

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
    """How the project's requests are recorded; null if they are not."""


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
    role: ProjectRole
    created_at: int


class AuditCard(Struct, frozen=True, kw_only=True):
    """One change in the audit. `detail` has the new values as the server stores them. `time`, `about` and
    `changes` describe the same for people: costs in the currency's unit, times in UTC."""

    object: Literal["audit_entry"] = "audit_entry"
    id: int
    at: int
    actor: str
    action: str
    target: str
    client: str | None
    detail: dict[str, Any]
    time: str
    about: str
    changes: list[AuditChange]


class ProjectPage(ListPage, frozen=True, kw_only=True):
    """Projects, the oldest first."""

    data: list[ProjectCard]


class UserPage(ListPage, frozen=True, kw_only=True):
    """Users, the oldest first."""

    data: list[UserCard]


class MemberPage(ListPage, frozen=True, kw_only=True):
    """Members of a project, in the order of their ids."""

    data: list[MemberCard]


class AuditPage(ListPage, frozen=True, kw_only=True):
    """Changes, the latest first."""

    data: list[AuditCard]


class TenantResource:
    """The handlers of projects, members, users and the audit."""

    def __init__(self, tenants: TenancyService) -> None:
        self._tenants = tenants

    def endpoints(self) -> Iterator[Endpoint]:
        project, user = "/projects/{project}", "/users/{user}"
        member = f"{project}/members/{{user}}"
        yield declare_endpoint(
            "GET",
            "/projects",
            self.list_projects,
            "Projects that the caller can see",
            gives=ProjectPage,
            query=declare_paging(),
        )
        yield declare_endpoint(
            "POST",
            "/projects",
            self.add_project,
            "Create a project",
            body=NewProject,
            gives=ProjectCard,
            status=CREATED,
        )
        yield declare_endpoint("GET", project, self.show_project, "One project", gives=ProjectCard)
        yield declare_endpoint(
            "PATCH",
            project,
            self.change_project,
            "Change the name or note of a project, or archive it",
            body=ProjectChange,
            gives=ProjectCard,
        )
        yield declare_endpoint(
            "GET",
            f"{project}/members",
            self.list_members,
            "Members of a project and their roles",
            gives=MemberPage,
            query=declare_paging(),
        )
        yield declare_endpoint(
            "PUT",
            member,
            self.put_member,
            "Make a user a member, or change the role",
            body=Member,
            gives=MemberCard,
        )
        yield declare_endpoint("DELETE", member, self.remove_member, "End a membership", status=NO_CONTENT)
        yield declare_endpoint(
            "GET",
            "/users",
            self.list_users,
            "Users that the caller can see",
            gives=UserPage,
            query=declare_paging(),
        )
        yield declare_endpoint(
            "POST", "/users", self.add_user, "Create a user", body=NewUser, gives=UserCard, status=CREATED
        )
        yield declare_endpoint("GET", user, self.show_user, "One user", gives=UserCard)
        yield declare_endpoint(
            "PATCH",
            user,
            self.change_user,
            "Change the name, address or note of a user, or disable the user",
            body=UserChange,
            gives=UserCard,
        )
        yield declare_endpoint(
            "GET",
            "/audit",
            self.list_audit,
            "Changes, the latest first",
            gives=AuditPage,
            query=[
                PAGE_SIZE,
                declare_parameter("before", {"type": "string", "pattern": "^[0-9]{1,18}$"}),
                declare_parameter("target", description="Only changes of the object with this id"),
                declare_parameter(
                    "actor", description="Only changes by this key or user; or by a name, as single-sign-on"
                ),
                declare_parameter(
                    "project", description="Only changes of this project, its keys, and the limits of both"
                ),
                declare_parameter(
                    "since", SECOND_SCHEMA, description="Unix seconds; the default is the first change"
                ),
                declare_parameter(
                    "until", SECOND_SCHEMA, description="Unix seconds; changes at this second are left out"
                ),
            ],
        )

    # --- projects ---

    async def list_projects(self, request: Request) -> Response:
        projects = self._tenants.list_projects(request.actor)
        return answer_page(
            request, [(project.id, build_project_card(project)) for project in projects], ProjectPage
        )

    async def show_project(self, request: Request) -> Response:
        project = self._tenants.get_project(request.actor, request.path_params["project"])
        return answer_json(build_project_card(project))

    async def add_project(self, request: Request) -> Response:
        body = decode_json(request.body, NewProject)
        project = await self._tenants.add_project(request.actor, body.name, body.note)
        return answer_json(build_project_card(project), 201)

    async def change_project(self, request: Request) -> Response:
        body = decode_json(request.body, ProjectChange)
        id_ = request.path_params["project"]
        changed = await self._tenants.change_project(request.actor, id_, body.name, body.note, body.archived)
        return answer_json(build_project_card(changed))

    # --- members ---

    async def list_members(self, request: Request) -> Response:
        members: list[Membership] = self._tenants.list_members(request.actor, request.path_params["project"])
        cards = [(member.user, build_member_card(member)) for member in members]
        return answer_page(request, cards, MemberPage, removable="user")

    async def put_member(self, request: Request) -> Response:
        role = decode_json(request.body, Member).role
        project, user = request.path_params["project"], request.path_params["user"]
        membership = await self._tenants.put_member(request.actor, project, user, role)
        return answer_json(build_member_card(membership))

    async def remove_member(self, request: Request) -> Response:
        project, user = request.path_params["project"], request.path_params["user"]
        await self._tenants.remove_member(request.actor, project, user)
        return Response(status=NO_CONTENT)

    # --- users ---

    async def list_users(self, request: Request) -> Response:
        users = self._tenants.list_users(request.actor)
        return answer_page(request, [(user.id, build_user_card(user)) for user in users], UserPage)

    async def show_user(self, request: Request) -> Response:
        user = self._tenants.get_user(request.actor, request.path_params["user"])
        return answer_json(build_user_card(user))

    async def add_user(self, request: Request) -> Response:
        body = decode_json(request.body, NewUser)
        user = await self._tenants.add_user(request.actor, body.name, body.email, body.note)
        return answer_json(build_user_card(user), 201)

    async def change_user(self, request: Request) -> Response:
        """Changes the name, the email address or the note, or disables the user."""
        body = decode_json(request.body, UserChange)
        id_ = request.path_params["user"]
        changed = await self._tenants.change_user(request.actor, id_, body.apply_to, body.disabled)
        return answer_json(build_user_card(changed))

    # --- audit ---

    async def list_audit(self, request: Request) -> Response:
        query = read_query(request, "limit", "before", "target", "actor", "project", "since", "until")
        limit, before = read_page_size(query), query.get("before")
        if before is not None and not (before.isascii() and before.isdigit() and len(before) < 19):
            raise InvalidValue("before must be the number of an entry", param="before")
        selection = AuditSelection(
            target=query.get("target"),
            actor=query.get("actor"),
            project=query.get("project"),
            since=read_second(query, "since", 0),
            until=read_second(query, "until", MAX_SECOND),
        )
        entries = await self._tenants.list_audit(
            request.actor, limit + 1, None if before is None else int(before), selection
        )
        cards = [(str(entry.id), build_audit_card(entry)) for entry in entries[:limit]]
        return answer_list(cards, len(entries) > limit, AuditPage)


def build_project_card(project: Project) -> ProjectCard:
    policy = project.recording
    return ProjectCard(
        id=project.id,
        name=project.name,
        created_at=project.created,
        archived_at=project.archived,
        note=project.note,
        recording=None if policy is None else RecordingCard(days=policy.days, redact=list(policy.redact)),
    )


def build_user_card(user: User) -> UserCard:
    return UserCard(
        id=user.id,
        name=user.name,
        email=user.email,
        created_at=user.created,
        disabled_at=user.disabled,
        note=user.note,
    )


def build_member_card(membership: Membership) -> MemberCard:
    return MemberCard(
        project=membership.project,
        user=membership.user,
        role=membership.role,
        created_at=membership.created,
    )


def build_audit_card(entry: AuditEntry) -> AuditCard:
    detail = msgspec.json.decode(entry.detail, type=dict[str, Any])
    return AuditCard(
        id=entry.id,
        at=entry.at,
        actor=entry.actor,
        action=entry.action,
        target=entry.target,
        client=entry.client,
        detail=remove_context(detail),
        time=format_moment(entry.at),
        about=describe_subject(entry.action, detail),
        changes=list_changes(entry.action, detail),
    )
