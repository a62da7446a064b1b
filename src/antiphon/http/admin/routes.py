"""The handlers of /admin/v1, and where they lie."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from antiphon.auth.policy import WantedKey
from antiphon.auth.tenants import Tenants
from antiphon.dialects.strict_json import shown_key
from antiphon.domain.identity import Actor
from antiphon.domain.tenancy import Grant, Key, Membership
from antiphon.errors import InvalidValue, UnknownParameter
from antiphon.http.admin import shapes
from antiphon.http.edge import exchange_of

ROOT = "/admin/v1"
MOST = 1_000
USUAL = 100
"""Things of one page."""

Card = shapes.ProjectCard | shapes.UserCard | shapes.MemberCard | shapes.KeyCard | shapes.AuditCard
Handler = Callable[[Request], Awaitable[Response]]
Thing = TypeVar("Thing")


class Admin:
    """The handlers over the tenants of one server."""

    def __init__(self, tenants: Tenants) -> None:
        self._tenants = tenants

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
        found = self._tenants.projects(_actor(request))
        return _page(request, [(each.id, shapes.project_card(each)) for each in found], shapes.ProjectPage)

    async def project(self, request: Request) -> Response:
        """One of them."""
        found = self._tenants.project(_actor(request), request.path_params["project"])
        return _json(shapes.project_card(found))

    async def add_project(self, request: Request) -> Response:
        """Makes a project."""
        said = shapes.decoded(_body(request), shapes.NewProject)
        made = await self._tenants.add_project(_actor(request), said.name, said.note)
        return _json(shapes.project_card(made), 201)

    async def change_project(self, request: Request) -> Response:
        """Renames, notes, archives."""
        said = shapes.decoded(_body(request), shapes.ProjectChange)
        id_ = request.path_params["project"]
        changed = await self._tenants.change_project(
            _actor(request), id_, said.name, said.note, said.archived
        )
        return _json(shapes.project_card(changed))

    # --- members ---

    async def members(self, request: Request) -> Response:
        """Who is what in a project."""
        found: list[Membership] = self._tenants.members(_actor(request), request.path_params["project"])
        return _page(request, [(each.user, shapes.member_card(each)) for each in found], shapes.MemberPage)

    async def put_member(self, request: Request) -> Response:
        """Makes a user a member, or changes the role."""
        role = shapes.decoded(_body(request), shapes.Member).role
        project, user = request.path_params["project"], request.path_params["user"]
        membership = await self._tenants.put_member(_actor(request), project, user, role)
        return _json(shapes.member_card(membership))

    async def remove_member(self, request: Request) -> Response:
        """Ends a membership."""
        project, user = request.path_params["project"], request.path_params["user"]
        await self._tenants.remove_member(_actor(request), project, user)
        return Response(status_code=204)

    # --- users ---

    async def users(self, request: Request) -> Response:
        """The users that the caller may see."""
        found = self._tenants.users(_actor(request))
        return _page(request, [(each.id, shapes.user_card(each)) for each in found], shapes.UserPage)

    async def user(self, request: Request) -> Response:
        """One of them."""
        found = self._tenants.user(_actor(request), request.path_params["user"])
        return _json(shapes.user_card(found))

    async def add_user(self, request: Request) -> Response:
        """Makes a user."""
        said = shapes.decoded(_body(request), shapes.NewUser)
        made = await self._tenants.add_user(_actor(request), said.name, said.email, said.note)
        return _json(shapes.user_card(made), 201)

    async def change_user(self, request: Request) -> Response:
        """Renames, notes, disables."""
        said = shapes.decoded(_body(request), shapes.UserChange)
        id_ = request.path_params["user"]
        changed = await self._tenants.change_user(_actor(request), id_, said.name, said.note, said.disabled)
        return _json(shapes.user_card(changed))

    # --- keys ---

    async def keys(self, request: Request) -> Response:
        """The keys that the caller may see."""
        found: list[Key] = self._tenants.keys(_actor(request))
        return _page(request, [(each.id, shapes.key_card(each)) for each in found], shapes.KeyPage)

    async def key(self, request: Request) -> Response:
        """One of them."""
        return _json(shapes.key_card(self._tenants.key(_actor(request), request.path_params["key"])))

    async def add_key(self, request: Request) -> Response:
        """Makes a key, and shows it this once."""
        said = shapes.decoded(_body(request), shapes.NewKey)
        grant = Grant(shapes.patterns(said.models), shapes.patterns(said.endpoints))
        wanted = WantedKey(said.kind, said.project, said.user, grant, said.expires_at, said.note)
        return _json(shapes.made_card(await self._tenants.add_key(_actor(request), wanted)), 201)

    async def change_key(self, request: Request) -> Response:
        """Notes, confines, ends at another time."""
        said = shapes.decoded(_body(request), shapes.KeyChange)
        changed = await self._tenants.change_key(
            _actor(request), request.path_params["key"], said.note, said.grant, said.expires_at
        )
        return _json(shapes.key_card(changed))

    async def rotate_key(self, request: Request) -> Response:
        """Makes a successor; the old key ends after the overlap."""
        overlap = shapes.decoded(_body(request), shapes.Rotation).overlap
        made = await self._tenants.rotate_key(_actor(request), request.path_params["key"], overlap)
        return _json(shapes.made_card(made), 201)

    async def revoke_key(self, request: Request) -> Response:
        """Ends a key now."""
        shapes.decoded(_body(request), shapes.Nothing)
        return await self.end_key(request)

    async def end_key(self, request: Request) -> Response:
        """The same, for who has no time to write a body."""
        revoked = await self._tenants.revoke_key(_actor(request), request.path_params["key"])
        return _json(shapes.key_card(revoked))

    # --- audit ---

    async def audit(self, request: Request) -> Response:
        """The latest changes first."""
        query = _query(request, "limit", "before", "target")
        limit, before = _limit(query), query.get("before")
        if before is not None and not (before.isascii() and before.isdigit() and len(before) < 19):
            raise InvalidValue("before must be the number of an entry", param="before")
        found = await self._tenants.audit(
            _actor(request), limit + 1, None if before is None else int(before), query.get("target")
        )
        cards = [(str(each.id), shapes.audit_card(each)) for each in found[:limit]]
        return _listed(cards, len(found) > limit, shapes.AuditPage)


def _page(request: Request, cards: Sequence[tuple[str, Card]], shape: type[shapes.Page]) -> Response:
    """Those after the id that the query names."""
    query = _query(request, "limit", "after")
    limit, after = _limit(query), query.get("after")
    at = 0
    if after is not None:
        ids = [id_ for id_, _ in cards]
        if after not in ids:
            raise InvalidValue("after must be an id of the list", param="after")
        at = ids.index(after) + 1
    return _listed(cards[at : at + limit], len(cards) > at + limit, shape)


def _listed(cards: Sequence[tuple[str, Card]], more: bool, shape: type[shapes.Page]) -> Response:
    last = cards[-1][0] if more and cards else None
    return _json(
        msgspec.convert({"data": [msgspec.structs.asdict(card) for _, card in cards], "next": last}, shape)
    )


def _query(request: Request, *known: str) -> dict[str, str]:
    """The query by name. Raises UnknownParameter and InvalidValue for what would be dropped."""
    said: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name not in known:
            raise UnknownParameter(
                f"unknown query field {shown_key(name)}; known: {', '.join(known)}", param=shown_key(name)
            )
        if name in said:
            raise InvalidValue(f"{name} is said twice", param=name)
        said[name] = value
    return said


def _limit(query: Mapping[str, str]) -> int:
    said = query.get("limit", str(USUAL))
    if not (said.isascii() and said.isdigit() and len(said) < 6 and 1 <= int(said) <= MOST):
        raise InvalidValue(f"limit must be an integer of 1 to {MOST}", param="limit")
    return int(said)


def _actor(request: Request) -> Actor:
    return exchange_of(request.scope).actor


def _body(request: Request) -> bytes:
    return exchange_of(request.scope).body


def _json(shape: msgspec.Struct, status: int = 200) -> Response:
    # A new key must not lie in anybody's cache.
    headers = {"cache-control": "no-store"}
    return Response(msgspec.json.encode(shape), status, headers, media_type="application/json")
