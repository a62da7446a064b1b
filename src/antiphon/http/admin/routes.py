"""The handlers of /admin/v1, and where they lie."""

from collections.abc import Iterator, Sequence

from starlette.requests import Request
from starlette.responses import Response

from antiphon.auth.tenants import Tenants
from antiphon.domain.tenancy import Key, Membership
from antiphon.errors import InvalidValue
from antiphon.http.admin import shapes
from antiphon.http.admin.naming import Naming
from antiphon.http.admin.pages import (
    ROOT,
    Handler,
    actor_of,
    answer,
    body_of,
    limit_of,
    listed,
    page,
    query_of,
)
from antiphon.http.admin.shapes_keys import KeyChange, KeyPage, NewKey, Rotation, key_card, made_card


class Admin:
    """The handlers over the tenants of one server."""

    def __init__(self, tenants: Tenants, naming: Naming) -> None:
        self._tenants = tenants
        self._naming = naming

    def table(self) -> Iterator[tuple[str, str, Handler]]:
        """Method, path and handler of each."""
        yield "GET", f"{ROOT}/projects", self.projects
        yield "POST", f"{ROOT}/projects", self.add_project
        yield "GET", f"{ROOT}/projects/{{project}}", self.project
        yield "PATCH", f"{ROOT}/projects/{{project}}", self.change_project
        yield "GET", f"{ROOT}/projects/{{project}}/members", self.members
        yield "PUT", f"{ROOT}/projects/{{project}}/members/{{user}}", self.put_member
        yield "DELETE", f"{ROOT}/projects/{{project}}/members/{{user}}", self.remove_member
        yield "GET", f"{ROOT}/users", self.users
        yield "POST", f"{ROOT}/users", self.add_user
        yield "GET", f"{ROOT}/users/{{user}}", self.user
        yield "PATCH", f"{ROOT}/users/{{user}}", self.change_user
        yield "GET", f"{ROOT}/keys", self.keys
        yield "POST", f"{ROOT}/keys", self.add_key
        yield "GET", f"{ROOT}/keys/{{key}}", self.key
        yield "PATCH", f"{ROOT}/keys/{{key}}", self.change_key
        yield "POST", f"{ROOT}/keys/{{key}}/rotate", self.rotate_key
        yield "POST", f"{ROOT}/keys/{{key}}/revoke", self.revoke_key
        yield "DELETE", f"{ROOT}/keys/{{key}}", self.end_key
        yield "GET", f"{ROOT}/audit", self.audit

    # --- projects ---

    async def projects(self, request: Request) -> Response:
        """The projects that the caller may see."""
        found = self._tenants.projects(actor_of(request))
        return page(request, [(each.id, shapes.project_card(each)) for each in found], shapes.ProjectPage)

    async def project(self, request: Request) -> Response:
        """One of them."""
        found = self._tenants.project(actor_of(request), request.path_params["project"])
        return answer(shapes.project_card(found))

    async def add_project(self, request: Request) -> Response:
        """Makes a project."""
        said = shapes.decoded(body_of(request), shapes.NewProject)
        made = await self._tenants.add_project(actor_of(request), said.name, said.note)
        return answer(shapes.project_card(made), 201)

    async def change_project(self, request: Request) -> Response:
        """Renames, notes, archives."""
        said = shapes.decoded(body_of(request), shapes.ProjectChange)
        id_ = request.path_params["project"]
        changed = await self._tenants.change_project(
            actor_of(request), id_, said.name, said.note, said.archived
        )
        return answer(shapes.project_card(changed))

    # --- members ---

    async def members(self, request: Request) -> Response:
        """Who is what in a project."""
        found: list[Membership] = self._tenants.members(actor_of(request), request.path_params["project"])
        cards = [(each.user, shapes.member_card(each)) for each in found]
        return page(request, cards, shapes.MemberPage, removable="user")

    async def put_member(self, request: Request) -> Response:
        """Makes a user a member, or changes the role."""
        role = shapes.decoded(body_of(request), shapes.Member).role
        project, user = request.path_params["project"], request.path_params["user"]
        membership = await self._tenants.put_member(actor_of(request), project, user, role)
        return answer(shapes.member_card(membership))

    async def remove_member(self, request: Request) -> Response:
        """Ends a membership."""
        project, user = request.path_params["project"], request.path_params["user"]
        await self._tenants.remove_member(actor_of(request), project, user)
        return Response(status_code=204)

    # --- users ---

    async def users(self, request: Request) -> Response:
        """The users that the caller may see."""
        found = self._tenants.users(actor_of(request))
        return page(request, [(each.id, shapes.user_card(each)) for each in found], shapes.UserPage)

    async def user(self, request: Request) -> Response:
        """One of them."""
        found = self._tenants.user(actor_of(request), request.path_params["user"])
        return answer(shapes.user_card(found))

    async def add_user(self, request: Request) -> Response:
        """Makes a user."""
        said = shapes.decoded(body_of(request), shapes.NewUser)
        made = await self._tenants.add_user(actor_of(request), said.name, said.email, said.note)
        return answer(shapes.user_card(made), 201)

    async def change_user(self, request: Request) -> Response:
        """Renames, gives another address or none, notes, disables."""
        said = shapes.decoded(body_of(request), shapes.UserChange)
        id_ = request.path_params["user"]
        changed = await self._tenants.change_user(actor_of(request), id_, said.changed, said.disabled)
        return answer(shapes.user_card(changed))

    # --- keys ---

    async def keys(self, request: Request) -> Response:
        """The keys that the caller may see."""
        found: list[Key] = self._tenants.keys(actor_of(request))
        limits = self._tenants.limits_of(found)
        return page(request, [(each.id, key_card(each, limits[each.id])) for each in found], KeyPage)

    async def key(self, request: Request) -> Response:
        """One of them."""
        return self._shown(self._tenants.key(actor_of(request), request.path_params["key"]))

    async def add_key(self, request: Request) -> Response:
        """Makes a key, and shows it this once."""
        wanted = shapes.decoded(body_of(request), NewKey).wanted()
        actor = actor_of(request)
        made = await self._tenants.add_key(actor, wanted)
        return answer(made_card(made, self._naming.of_key(actor, made.key, made.limits)), 201)

    async def change_key(self, request: Request) -> Response:
        """Notes, confines, ends at another time."""
        said = shapes.decoded(body_of(request), KeyChange)
        id_, actor = request.path_params["key"], actor_of(request)
        changed = await self._tenants.change_key(actor, id_, said.changed)
        return self._shown(changed, self._naming.of_key(actor, changed))

    async def rotate_key(self, request: Request) -> Response:
        """Makes a successor; the old key ends after the overlap."""
        overlap = shapes.decoded(body_of(request), Rotation).overlap
        made = await self._tenants.rotate_key(actor_of(request), request.path_params["key"], overlap)
        return answer(made_card(made), 201)

    async def revoke_key(self, request: Request) -> Response:
        """Ends a key now."""
        shapes.decoded(body_of(request), shapes.Nothing)
        return await self.end_key(request)

    async def end_key(self, request: Request) -> Response:
        """The same, for who has no time to write a body."""
        return self._shown(await self._tenants.revoke_key(actor_of(request), request.path_params["key"]))

    def _shown(self, key: Key, warnings: Sequence[str] = ()) -> Response:
        return answer(key_card(key, self._tenants.limits_of([key])[key.id], warnings))

    # --- audit ---

    async def audit(self, request: Request) -> Response:
        """The latest changes first."""
        query = query_of(request, "limit", "before", "target")
        limit, before = limit_of(query), query.get("before")
        if before is not None and not (before.isascii() and before.isdigit() and len(before) < 19):
            raise InvalidValue("before must be the number of an entry", param="before")
        found = await self._tenants.audit(
            actor_of(request), limit + 1, None if before is None else int(before), query.get("target")
        )
        cards = [(str(each.id), shapes.audit_card(each)) for each in found[:limit]]
        return listed(cards, len(found) > limit, shapes.AuditPage)
