"""All knowledge tables of a project: wire types, handler and endpoint of their removal."""

from typing import Literal

from msgspec import Struct

from antiphon.dialects.base import Endpoint
from antiphon.dialects.http_types import Request, Response
from antiphon.errors import MissingParameter
from antiphon.http.admin.resource import answer_json, declare_endpoint, declare_parameter, read_query
from antiphon.services.knowledge.tables import KnowledgeErasure


class RemovedTables(Struct, frozen=True, kw_only=True):
    """The number of knowledge tables that were removed."""

    object: Literal["removed"] = "removed"
    removed: int


class KnowledgeResource:
    """The handler of the removal of a project's knowledge tables."""

    def __init__(self, erasure: KnowledgeErasure) -> None:
        self._erasure = erasure

    def endpoints(self) -> tuple[Endpoint, ...]:
        return (
            declare_endpoint(
                "DELETE",
                "/knowledge",
                self.erase,
                "Remove a project's knowledge tables",
                gives=RemovedTables,
                query=[declare_parameter("project", required=True)],
            ),
        )

    async def erase(self, request: Request) -> Response:
        query = read_query(request, "project")
        if "project" not in query:
            raise MissingParameter("name the project: ?project=ID", param="project")
        removed = await self._erasure.erase(request.actor, query["project"])
        return answer_json(RemovedTables(removed=removed))
