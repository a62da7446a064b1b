"""The handlers of /admin/v1/prices."""

from collections.abc import Iterator

from starlette.requests import Request
from starlette.responses import Response

from antiphon.auth.pricing import Pricing
from antiphon.domain.identity import Actor
from antiphon.domain.prices import Price
from antiphon.http.admin.naming import Naming
from antiphon.http.admin.pages import ROOT, Handler, actor_of, answer, body_of, page
from antiphon.http.admin.shapes import decoded
from antiphon.http.admin.shapes_prices import NewPrice, PriceChange, PricePage, price_card


class PriceRoutes:
    """The handlers over the price list of one server."""

    def __init__(self, pricing: Pricing, naming: Naming) -> None:
        self._pricing = pricing
        self._naming = naming

    def table(self) -> Iterator[tuple[str, str, Handler]]:
        """Method, path and handler of each."""
        yield "GET", f"{ROOT}/prices", self.listed
        yield "POST", f"{ROOT}/prices", self.add
        yield "GET", f"{ROOT}/prices/{{price}}", self.shown
        yield "PATCH", f"{ROOT}/prices/{{price}}", self.change
        yield "DELETE", f"{ROOT}/prices/{{price}}", self.end

    async def listed(self, request: Request) -> Response:
        """All prices, also those that ended."""
        prices = self._pricing.prices(actor_of(request))
        return page(request, [(each.id, price_card(each)) for each in prices], PricePage)

    async def shown(self, request: Request) -> Response:
        """One of them."""
        return answer(price_card(self._pricing.price(actor_of(request), request.path_params["price"])))

    async def add(self, request: Request) -> Response:
        """Adds a price."""
        wanted = decoded(body_of(request), NewPrice).wanted()
        return self._told(actor_of(request), await self._pricing.add(actor_of(request), wanted), 201)

    async def change(self, request: Request) -> Response:
        """Notes, ends at another time."""
        said = decoded(body_of(request), PriceChange)
        id_ = request.path_params["price"]
        changed = await self._pricing.change(actor_of(request), id_, said.note, said.ends)
        return self._told(actor_of(request), changed)

    async def end(self, request: Request) -> Response:
        """Ends a price now."""
        ended = await self._pricing.end(actor_of(request), request.path_params["price"])
        return self._told(actor_of(request), ended)

    def _told(self, actor: Actor, price: Price, status: int = 200) -> Response:
        return answer(price_card(price, self._naming.of_price(actor, price)), status)
