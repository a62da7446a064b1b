"""The handlers of requests that projects keep word by word, and where they lie."""

from collections.abc import Iterator

from starlette.requests import Request
from starlette.responses import Response

from antiphon.auth.recording import Recordings
from antiphon.errors import MissingParameter
from antiphon.http.admin.pages import ROOT, Handler, actor_of, answer, body_of, limit_of, listed, query_of
from antiphon.http.admin.shapes import decoded, project_card
from antiphon.http.admin.shapes_recording import Forgotten, NewRecording, RequestPage, request_card

MOST = 100
USUAL = 20
"""Kept requests of one page: each may be half a megabyte."""


class RecordingRoutes:
    """The handlers over the kept requests of one server."""

    def __init__(self, recordings: Recordings) -> None:
        self._recordings = recordings

    def table(self) -> Iterator[tuple[str, str, Handler]]:
        """Method, path and handler of each."""
        yield "PUT", f"{ROOT}/projects/{{project}}/recording", self.turn_on
        yield "DELETE", f"{ROOT}/projects/{{project}}/recording", self.turn_off
        yield "GET", f"{ROOT}/requests", self.requests
        yield "GET", f"{ROOT}/requests/{{request}}", self.request
        yield "DELETE", f"{ROOT}/requests", self.forget

    async def turn_on(self, request: Request) -> Response:
        """Has a project's requests kept from now on."""
        wanted = decoded(body_of(request), NewRecording).wanted()
        project = request.path_params["project"]
        return answer(project_card(await self._recordings.turn(actor_of(request), project, wanted)))

    async def turn_off(self, request: Request) -> Response:
        """Keeps none from now on."""
        project = request.path_params["project"]
        return answer(project_card(await self._recordings.turn(actor_of(request), project, None)))

    async def requests(self, request: Request) -> Response:
        """A project's, the latest first."""
        query = query_of(request, "project", "limit", "after")
        actor, limit = actor_of(request), limit_of(query, USUAL, MOST)
        before = None
        if "after" in query:
            last = await self._recordings.one(actor, query["after"])
            before = last.at, last.id
        found = await self._recordings.page(actor, _project(query), limit + 1, before)
        cards = [(each.id, request_card(each)) for each in found]
        return listed(cards[:limit], len(cards) > limit, RequestPage)

    async def request(self, request: Request) -> Response:
        """One of them."""
        found = await self._recordings.one(actor_of(request), request.path_params["request"])
        return answer(request_card(found))

    async def forget(self, request: Request) -> Response:
        """Removes a project's."""
        project = _project(query_of(request, "project"))
        return answer(Forgotten(removed=await self._recordings.erase(actor_of(request), project)))


def _project(query: dict[str, str]) -> str:
    if "project" not in query:
        raise MissingParameter("say whose requests: ?project=ID", param="project")
    return query["project"]
