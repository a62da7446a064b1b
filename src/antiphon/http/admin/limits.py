"""The handlers of /admin/v1/limits, and where they lie."""

from collections.abc import Iterator

from starlette.requests import Request
from starlette.responses import Response

from antiphon.auth.limiting import Limiting
from antiphon.domain.identity import Actor
from antiphon.domain.limits import Limit, Subject
from antiphon.engines.registry import Models
from antiphon.errors import InvalidValue, ModelNotFound
from antiphon.http.admin import shapes
from antiphon.http.admin.naming import Naming
from antiphon.http.admin.pages import ROOT, Handler, actor_of, answer, body_of, page, query_of
from antiphon.http.admin.shapes_limits import LimitChange, LimitPage, NewLimit, limit_card, standing_card

FILTERS = ("subject", "target")


class AdminLimits:
    """The handlers over the limits of one server."""

    def __init__(self, limiting: Limiting, models: Models, naming: Naming) -> None:
        self._limiting = limiting
        self._models = models
        self._naming = naming

    def table(self) -> Iterator[tuple[str, str, Handler]]:
        """Method, path and handler of each."""
        yield "GET", f"{ROOT}/limits", self.limits
        yield "POST", f"{ROOT}/limits", self.add
        yield "GET", f"{ROOT}/limits/{{limit}}", self.limit
        yield "PATCH", f"{ROOT}/limits/{{limit}}", self.change
        yield "DELETE", f"{ROOT}/limits/{{limit}}", self.remove

    async def limits(self, request: Request) -> Response:
        """The limits that the caller may see; those of a subject or a target, where the query says so."""
        query = query_of(request, "limit", "after", *FILTERS)
        said = query.get("subject")
        if said is not None and said not in set(Subject):
            raise InvalidValue(f"subject must be {' or '.join(Subject)}", param="subject")
        subject = None if said is None else Subject(said)
        found = self._limiting.limits(actor_of(request), subject, query.get("target"))
        cards = [(each.id, limit_card(each)) for each in found]
        return page(request, cards, LimitPage, *FILTERS, removable="limit")

    async def limit(self, request: Request) -> Response:
        """One of them, and how it stands now."""
        standing = await self._limiting.standing(actor_of(request), request.path_params["limit"])
        return answer(standing_card(standing))

    async def add(self, request: Request) -> Response:
        """Sets a limit."""
        wanted = shapes.decoded(body_of(request), NewLimit).wanted()
        if wanted.subject is Subject.MODEL:
            self._require_model(wanted.target)
        return self._told(actor_of(request), await self._limiting.add(actor_of(request), wanted), 201)

    async def change(self, request: Request) -> Response:
        """Another amount, another note."""
        said = shapes.decoded(body_of(request), LimitChange)
        changed = await self._limiting.change(
            actor_of(request), request.path_params["limit"], said.amount, said.note
        )
        return self._told(actor_of(request), changed)

    async def remove(self, request: Request) -> Response:
        """Ends a limit."""
        await self._limiting.remove(actor_of(request), request.path_params["limit"])
        return Response(status_code=204)

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
