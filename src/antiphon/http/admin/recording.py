"""Recorded requests of projects: wire types, handlers and endpoints."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from antiphon.bodies.strict_json import decode_json
from antiphon.dialects.base import Endpoint
from antiphon.dialects.http_types import Request, Response
from antiphon.domain.tenancy import RecordedRequest, RecordingPolicy, Redaction
from antiphon.errors import MissingParameter
from antiphon.http.admin.resource import (
    ListPage,
    answer_json,
    answer_list,
    declare_endpoint,
    declare_page_size,
    declare_parameter,
    read_page_size,
    read_query,
)
from antiphon.http.admin.tenants import ProjectCard, build_project_card
from antiphon.services.request_log import RequestLog

Days = Annotated[int, Meta(ge=1, le=3650)]


MAX_REQUESTS = 100

DEFAULT_REQUESTS = 20
"""The default page size. Each recorded request can have half a megabyte."""


class NewRecording(Struct, frozen=True, forbid_unknown_fields=True):
    """Turns on the recording of a project's requests and answers, and keeps each for `days`. Texts of the
    kinds in `redact` are removed before the server stores anything."""

    days: Days
    redact: list[Redaction] = msgspec.field(default_factory=list)

    def to_request(self) -> RecordingPolicy:
        """Converts to a recording policy, with each kind once."""
        return RecordingPolicy(self.days, tuple(sorted(set(self.redact))))


class RequestCard(Struct, frozen=True, kw_only=True):
    """A recorded request. Times are Unix seconds."""

    object: Literal["request"] = "request"
    id: str
    """The id of its entry in the ledger."""
    project: str
    created_at: int
    expires_at: int
    request: str
    answer: str


class RequestPage(ListPage, frozen=True, kw_only=True):
    """Recorded requests, the latest first."""

    data: list[RequestCard]


class RemovedRequests(Struct, frozen=True, kw_only=True):
    """The number of recorded requests that were removed from the database. Those that waited in memory are
    removed too, but not counted."""

    object: Literal["removed"] = "removed"
    removed: int


class RecordingResource:
    """The handlers of recorded requests."""

    def __init__(self, recordings: RequestLog) -> None:
        self._recordings = recordings

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Returns the endpoints of recorded requests."""
        project = declare_parameter("project", required=True)
        record_path, query = (
            "/projects/{project}/recording",
            [project, declare_page_size(DEFAULT_REQUESTS, MAX_REQUESTS), declare_parameter("after")],
        )
        return (
            declare_endpoint(
                "PUT",
                record_path,
                self.turn_on,
                "Record a project's requests",
                body=NewRecording,
                gives=ProjectCard,
            ),
            declare_endpoint(
                "DELETE", record_path, self.turn_off, "Stop recording a project's requests", gives=ProjectCard
            ),
            declare_endpoint(
                "GET",
                "/requests",
                self.list_requests,
                "Recorded requests of a project",
                gives=RequestPage,
                query=query,
            ),
            declare_endpoint(
                "GET", "/requests/{request}", self.show_request, "One recorded request", gives=RequestCard
            ),
            declare_endpoint(
                "DELETE",
                "/requests",
                self.remove_requests,
                "Remove a project's recorded requests",
                gives=RemovedRequests,
                query=[project],
            ),
        )

    async def turn_on(self, request: Request) -> Response:
        policy = decode_json(request.body, NewRecording).to_request()
        project = request.path_params["project"]
        return answer_json(
            build_project_card(await self._recordings.set_recording(request.actor, project, policy))
        )

    async def turn_off(self, request: Request) -> Response:
        project = request.path_params["project"]
        return answer_json(
            build_project_card(await self._recordings.set_recording(request.actor, project, None))
        )

    async def list_requests(self, request: Request) -> Response:
        query = read_query(request, "project", "limit", "after")
        actor, limit = request.actor, read_page_size(query, DEFAULT_REQUESTS, MAX_REQUESTS)
        before = None
        if "after" in query:
            last_record = await self._recordings.find_page_start(actor, query["after"])
            before = last_record.at, last_record.id
        records, has_more = await self._recordings.list_records(actor, _require_project(query), limit, before)
        return answer_list(
            [(record.id, build_request_card(record)) for record in records], has_more, RequestPage
        )

    async def show_request(self, request: Request) -> Response:
        record = await self._recordings.get_record(request.actor, request.path_params["request"])
        return answer_json(build_request_card(record))

    async def remove_requests(self, request: Request) -> Response:
        project = _require_project(read_query(request, "project"))
        return answer_json(RemovedRequests(removed=await self._recordings.erase(request.actor, project)))


def _require_project(query: dict[str, str]) -> str:
    """Returns the query's project. Raises MissingParameter."""
    if "project" not in query:
        raise MissingParameter("name the project: ?project=ID", param="project")
    return query["project"]


def build_request_card(record: RecordedRequest) -> RequestCard:
    return RequestCard(
        id=record.id,
        project=record.project,
        created_at=record.at // 1000,
        expires_at=record.expires,
        request=record.request,
        answer=record.answer,
    )
