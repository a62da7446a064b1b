"""The handlers of /admin/v1/limits, and where they lie."""

from antiphon.dialects.base import Endpoint, Request, Response
from antiphon.domain.identity import Actor
from antiphon.domain.limits import Limit, Subject
from antiphon.engines.registry import Models
from antiphon.errors import InvalidValue, ModelNotFound
from antiphon.http.admin import shapes
from antiphon.http.admin.naming import Naming
from antiphon.http.admin.pages import GONE, MADE, answer, endpoint, page, paging, parameter, query_of
from antiphon.http.admin.shapes_limits import (
    LimitCard,
    LimitChange,
    LimitPage,
    NewLimit,
    StandingLimit,
    limit_card,
    standing_card,
)
from antiphon.services.limits import LimitService

FILTERS = ("subject", "target")


class LimitResource:
    """The handlers over the limits of one server."""

    def __init__(self, limiting: LimitService, models: Models, naming: Naming) -> None:
        self._limiting = limiting
        self._models = models
        self._naming = naming

    def endpoints(self) -> tuple[Endpoint, ...]:
        """All of them."""
        subject = parameter("subject", {"type": "string", "enum": [*Subject]})
        one, seen = "/limits/{limit}", paging(subject, parameter("target"))
        return (
            endpoint(
                "GET", "/limits", self.limits, "Limits that the caller may see", gives=LimitPage, query=seen
            ),
            endpoint(
                "POST",
                "/limits",
                self.add,
                "Set a limit or a budget",
                body=NewLimit,
                gives=LimitCard,
                status=MADE,
            ),
            endpoint("GET", one, self.limit, "One limit, and how it stands now", gives=StandingLimit),
            endpoint(
                "PATCH", one, self.change, "Another amount, another note", body=LimitChange, gives=LimitCard
            ),
            endpoint("DELETE", one, self.remove, "Remove a limit", status=GONE),
        )

    async def limits(self, request: Request) -> Response:
        """The limits that the caller may see; those of a subject or a target, where the query says so."""
        query = query_of(request, "limit", "after", *FILTERS)
        said = query.get("subject")
        if said is not None and said not in set(Subject):
            raise InvalidValue(f"subject must be {' or '.join(Subject)}", param="subject")
        subject = None if said is None else Subject(said)
        found = self._limiting.list_limits(request.actor, subject, query.get("target"))
        cards = [(each.id, limit_card(each)) for each in found]
        return page(request, cards, LimitPage, *FILTERS, removable="limit")

    async def limit(self, request: Request) -> Response:
        """One of them, and how it stands now."""
        standing = await self._limiting.get_status(request.actor, request.path_params["limit"])
        return answer(standing_card(standing))

    async def add(self, request: Request) -> Response:
        """Sets a limit."""
        wanted = shapes.decoded(request.body, NewLimit).wanted()
        if wanted.subject is Subject.MODEL:
            self._require_model(wanted.target)
        return self._told(request.actor, await self._limiting.add(request.actor, wanted), 201)

    async def change(self, request: Request) -> Response:
        """Another amount, another note."""
        said = shapes.decoded(request.body, LimitChange)
        changed = await self._limiting.change(
            request.actor, request.path_params["limit"], said.amount, said.note
        )
        return self._told(request.actor, changed)

    async def remove(self, request: Request) -> Response:
        """Ends a limit."""
        await self._limiting.remove(request.actor, request.path_params["limit"])
        return Response(status=GONE)

    def _told(self, actor: Actor, limit: Limit, status: int = 200) -> Response:
        return answer(limit_card(limit, self._naming.of_limits(actor, [limit])), status)

    def _require_model(self, name: str) -> None:
        """Raises InvalidValue for a name under which nothing is counted: what is counted is the model that
        serves, whatever name it was asked by."""
        if name in self._models:
            return
        try:
            meant = self._models.get(name).name
        except ModelNotFound as unknown:
            raise InvalidValue(f"nothing would be counted: {unknown.message}", param="target") from None
        raise InvalidValue(f"{name} is another name of {meant}; limit that", param="target")
