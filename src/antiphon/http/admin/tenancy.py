"""The handlers of /admin/v1, and where they lie."""

from collections.abc import Iterator, Sequence

from antiphon.dialects.base import Endpoint, Request, Response
from antiphon.domain.tenancy import Key, Membership
from antiphon.errors import InvalidValue
from antiphon.http.admin import shapes
from antiphon.http.admin.naming import Naming
from antiphon.http.admin.pages import (
    GONE,
    MADE,
    PAGE_SIZE,
    Details,
    answer,
    endpoint,
    limit_of,
    listed,
    page,
    paging,
    parameter,
    query_of,
)
from antiphon.http.admin.shapes_keys import (
    KeyCard,
    KeyChange,
    KeyPage,
    NewKey,
    NewKeyCard,
    Rotation,
    key_card,
    made_card,
)
from antiphon.services.tenancy import TenancyService


class TenancyResource:
    """The handlers over the tenants of one server."""

    def __init__(self, tenants: TenancyService, naming: Naming) -> None:
        self._tenants = tenants
        self._naming = naming

    def endpoints(self) -> tuple[Endpoint, ...]:
        """All of them."""
        number = {"type": "string", "pattern": "^[0-9]{1,18}$"}
        query = [PAGE_SIZE, parameter("before", number), parameter("target")]
        return (
            *self._of_projects(),
            *self._of_users(),
            *self._of_keys(),
            endpoint(
                "GET", "/audit", self.audit, "The latest changes first", gives=shapes.AuditPage, query=query
            ),
        )

    def _of_projects(self) -> Iterator[Endpoint]:
        one, member = "/projects/{project}", "/projects/{project}/members/{user}"
        card, whole = shapes.ProjectCard, shapes.ProjectPage
        seen, change = "Projects that the caller may see", shapes.ProjectChange
        yield endpoint("GET", "/projects", self.projects, seen, gives=whole, query=paging())
        made = Details(body=shapes.NewProject, gives=card, status=MADE)
        yield endpoint("POST", "/projects", self.add_project, "Make a project", **made)
        yield endpoint("GET", one, self.project, "One project", gives=card)
        yield endpoint("PATCH", one, self.change_project, "Rename, note, archive", body=change, gives=card)
        members = Details(gives=shapes.MemberPage, query=paging())
        yield endpoint("GET", f"{one}/members", self.members, "Who is what in a project", **members)
        put = Details(body=shapes.Member, gives=shapes.MemberCard)
        yield endpoint("PUT", member, self.put_member, "Make a member", **put)
        yield endpoint("DELETE", member, self.remove_member, "End a membership", status=GONE)

    def _of_users(self) -> Iterator[Endpoint]:
        one, card, seen = "/users/{user}", shapes.UserCard, "Users that the caller may see"
        yield endpoint("GET", "/users", self.users, seen, gives=shapes.UserPage, query=paging())
        made = Details(body=shapes.NewUser, gives=card, status=MADE)
        yield endpoint("POST", "/users", self.add_user, "Make a user", **made)
        yield endpoint("GET", one, self.user, "One user", gives=card)
        changed = Details(body=shapes.UserChange, gives=card)
        yield endpoint("PATCH", one, self.change_user, "Rename, note, disable", **changed)

    def _of_keys(self) -> Iterator[Endpoint]:
        one, change = "/keys/{key}", "Note, confine, end at another time or never"
        yield endpoint(
            "GET", "/keys", self.keys, "Keys that the caller may see", gives=KeyPage, query=paging()
        )
        made = Details(body=NewKey, gives=NewKeyCard, status=MADE)
        yield endpoint("POST", "/keys", self.add_key, "Make a key, shown this once", **made)
        yield endpoint("GET", one, self.key, "One key", gives=KeyCard)
        yield endpoint("PATCH", one, self.change_key, change, body=KeyChange, gives=KeyCard)
        rotated = Details(body=Rotation, gives=NewKeyCard, status=MADE)
        yield endpoint("POST", f"{one}/rotate", self.rotate_key, "Make a successor", **rotated)
        revoked = Details(body=shapes.Nothing, gives=KeyCard)
        yield endpoint("POST", f"{one}/revoke", self.revoke_key, "End a key now", **revoked)
        yield endpoint("DELETE", one, self.end_key, "End a key now", gives=KeyCard)

    # --- projects ---

    async def projects(self, request: Request) -> Response:
        """The projects that the caller may see."""
        found = self._tenants.list_projects(request.actor)
        return page(request, [(each.id, shapes.project_card(each)) for each in found], shapes.ProjectPage)

    async def project(self, request: Request) -> Response:
        """One of them."""
        found = self._tenants.get_project(request.actor, request.path_params["project"])
        return answer(shapes.project_card(found))

    async def add_project(self, request: Request) -> Response:
        """Makes a project."""
        said = shapes.decoded(request.body, shapes.NewProject)
        made = await self._tenants.add_project(request.actor, said.name, said.note)
        return answer(shapes.project_card(made), 201)

    async def change_project(self, request: Request) -> Response:
        """Renames, notes, archives."""
        said = shapes.decoded(request.body, shapes.ProjectChange)
        id_ = request.path_params["project"]
        changed = await self._tenants.change_project(request.actor, id_, said.name, said.note, said.archived)
        return answer(shapes.project_card(changed))

    # --- members ---

    async def members(self, request: Request) -> Response:
        """Who is what in a project."""
        found: list[Membership] = self._tenants.list_members(request.actor, request.path_params["project"])
        cards = [(each.user, shapes.member_card(each)) for each in found]
        return page(request, cards, shapes.MemberPage, removable="user")

    async def put_member(self, request: Request) -> Response:
        """Makes a user a member, or changes the role."""
        role = shapes.decoded(request.body, shapes.Member).role
        project, user = request.path_params["project"], request.path_params["user"]
        membership = await self._tenants.put_member(request.actor, project, user, role)
        return answer(shapes.member_card(membership))

    async def remove_member(self, request: Request) -> Response:
        """Ends a membership."""
        project, user = request.path_params["project"], request.path_params["user"]
        await self._tenants.remove_member(request.actor, project, user)
        return Response(status=GONE)

    # --- users ---

    async def users(self, request: Request) -> Response:
        """The users that the caller may see."""
        found = self._tenants.list_users(request.actor)
        return page(request, [(each.id, shapes.user_card(each)) for each in found], shapes.UserPage)

    async def user(self, request: Request) -> Response:
        """One of them."""
        found = self._tenants.get_user(request.actor, request.path_params["user"])
        return answer(shapes.user_card(found))

    async def add_user(self, request: Request) -> Response:
        """Makes a user."""
        said = shapes.decoded(request.body, shapes.NewUser)
        made = await self._tenants.add_user(request.actor, said.name, said.email, said.note)
        return answer(shapes.user_card(made), 201)

    async def change_user(self, request: Request) -> Response:
        """Renames, gives another address or none, notes, disables."""
        said = shapes.decoded(request.body, shapes.UserChange)
        id_ = request.path_params["user"]
        changed = await self._tenants.change_user(request.actor, id_, said.changed, said.disabled)
        return answer(shapes.user_card(changed))

    # --- keys ---

    async def keys(self, request: Request) -> Response:
        """The keys that the caller may see."""
        found: list[Key] = self._tenants.list_keys(request.actor)
        limits = self._tenants.list_limits(found)
        return page(request, [(each.id, key_card(each, limits[each.id])) for each in found], KeyPage)

    async def key(self, request: Request) -> Response:
        """One of them."""
        return self._shown(self._tenants.get_key(request.actor, request.path_params["key"]))

    async def add_key(self, request: Request) -> Response:
        """Makes a key, and shows it this once."""
        wanted = shapes.decoded(request.body, NewKey).wanted()
        actor = request.actor
        made = await self._tenants.add_key(actor, wanted)
        return answer(made_card(made, self._naming.of_key(actor, made.key, made.limits)), 201)

    async def change_key(self, request: Request) -> Response:
        """Notes, confines, ends at another time."""
        said = shapes.decoded(request.body, KeyChange)
        id_, actor = request.path_params["key"], request.actor
        changed = await self._tenants.change_key(actor, id_, said.changed)
        return self._shown(changed, self._naming.of_key(actor, changed))

    async def rotate_key(self, request: Request) -> Response:
        """Makes a successor; the old key ends after the overlap."""
        overlap = shapes.decoded(request.body, Rotation).overlap
        made = await self._tenants.rotate_key(request.actor, request.path_params["key"], overlap)
        return answer(made_card(made), 201)

    async def revoke_key(self, request: Request) -> Response:
        """Ends a key now."""
        shapes.decoded(request.body, shapes.Nothing)
        return await self.end_key(request)

    async def end_key(self, request: Request) -> Response:
        """The same, for who has no time to write a body."""
        return self._shown(await self._tenants.revoke_key(request.actor, request.path_params["key"]))

    def _shown(self, key: Key, warnings: Sequence[str] = ()) -> Response:
        return answer(key_card(key, self._tenants.list_limits([key])[key.id], warnings))

    # --- audit ---

    async def audit(self, request: Request) -> Response:
        """The latest changes first."""
        query = query_of(request, "limit", "before", "target")
        limit, before = limit_of(query), query.get("before")
        if before is not None and not (before.isascii() and before.isdigit() and len(before) < 19):
            raise InvalidValue("before must be the number of an entry", param="before")
        found = await self._tenants.list_audit(
            request.actor, limit + 1, None if before is None else int(before), query.get("target")
        )
        cards = [(str(each.id), shapes.audit_card(each)) for each in found[:limit]]
        return listed(cards, len(found) > limit, shapes.AuditPage)
