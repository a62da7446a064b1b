"""The handlers of requests that projects keep word by word, and where they lie."""

from antiphon.dialects.base import Endpoint, Request, Response
from antiphon.errors import MissingParameter
from antiphon.http.admin.pages import answer, endpoint, limit_of, listed, page_size, parameter, query_of
from antiphon.http.admin.shapes import ProjectCard, decoded, project_card
from antiphon.http.admin.shapes_recording import (
    Forgotten,
    NewRecording,
    RequestCard,
    RequestPage,
    request_card,
)
from antiphon.services.request_log import RequestLog

MOST = 100
USUAL = 20
"""Kept requests of one page: each may be half a megabyte."""


class RecordingResource:
    """The handlers over the kept requests of one server."""

    def __init__(self, recordings: RequestLog) -> None:
        self._recordings = recordings

    def endpoints(self) -> tuple[Endpoint, ...]:
        """All of them."""
        project = parameter("project", required=True)
        kept, seen = "/projects/{project}/recording", [project, page_size(USUAL, MOST), parameter("after")]
        return (
            endpoint("PUT", kept, self.turn_on, "Keep requests", body=NewRecording, gives=ProjectCard),
            endpoint("DELETE", kept, self.turn_off, "Keep none any longer", gives=ProjectCard),
            endpoint(
                "GET", "/requests", self.requests, "Kept requests of a project", gives=RequestPage, query=seen
            ),
            endpoint("GET", "/requests/{request}", self.request, "One kept request", gives=RequestCard),
            endpoint(
                "DELETE",
                "/requests",
                self.forget,
                "Remove a project's kept requests",
                gives=Forgotten,
                query=[project],
            ),
        )

    async def turn_on(self, request: Request) -> Response:
        """Has a project's requests kept from now on."""
        wanted = decoded(request.body, NewRecording).wanted()
        project = request.path_params["project"]
        return answer(project_card(await self._recordings.set_recording(request.actor, project, wanted)))

    async def turn_off(self, request: Request) -> Response:
        """Keeps none from now on."""
        project = request.path_params["project"]
        return answer(project_card(await self._recordings.set_recording(request.actor, project, None)))

    async def requests(self, request: Request) -> Response:
        """A project's, the latest first."""
        query = query_of(request, "project", "limit", "after")
        actor, limit = request.actor, limit_of(query, USUAL, MOST)
        before = None
        if "after" in query:
            last = await self._recordings.get_record(actor, query["after"])
            before = last.at, last.id
        found = await self._recordings.list_records(actor, _project(query), limit + 1, before)
        cards = [(each.id, request_card(each)) for each in found]
        return listed(cards[:limit], len(cards) > limit, RequestPage)

    async def request(self, request: Request) -> Response:
        """One of them."""
        found = await self._recordings.get_record(request.actor, request.path_params["request"])
        return answer(request_card(found))

    async def forget(self, request: Request) -> Response:
        """Removes a project's."""
        project = _project(query_of(request, "project"))
        return answer(Forgotten(removed=await self._recordings.erase(request.actor, project)))


def _project(query: dict[str, str]) -> str:
    if "project" not in query:
        raise MissingParameter("say whose requests: ?project=ID", param="project")
    return query["project"]
