"""The handlers of /admin/v1/prices."""

from antiphon.dialects.base import Endpoint, Request, Response
from antiphon.domain.identity import Actor
from antiphon.domain.prices import Price
from antiphon.http.admin.naming import Naming
from antiphon.http.admin.pages import MADE, answer, endpoint, page, paging
from antiphon.http.admin.shapes import decoded
from antiphon.http.admin.shapes_prices import NewPrice, PriceCard, PriceChange, PricePage, price_card
from antiphon.services.prices import PriceService


class PriceResource:
    """The handlers over the price list of one server."""

    def __init__(self, pricing: PriceService, naming: Naming) -> None:
        self._pricing = pricing
        self._naming = naming

    def endpoints(self) -> tuple[Endpoint, ...]:
        """All of them."""
        one = "/prices/{price}"
        return (
            endpoint(
                "GET",
                "/prices",
                self.listed,
                "All prices, also those that ended",
                gives=PricePage,
                query=paging(),
            ),
            endpoint("POST", "/prices", self.add, "Add a price", body=NewPrice, gives=PriceCard, status=MADE),
            endpoint("GET", one, self.shown, "One price", gives=PriceCard),
            endpoint(
                "PATCH", one, self.change, "Note, end at another time", body=PriceChange, gives=PriceCard
            ),
            endpoint("DELETE", one, self.end, "End a price now", gives=PriceCard),
        )

    async def listed(self, request: Request) -> Response:
        """All prices, also those that ended."""
        prices = self._pricing.list_prices(request.actor)
        return page(request, [(each.id, price_card(each)) for each in prices], PricePage)

    async def shown(self, request: Request) -> Response:
        """One of them."""
        return answer(price_card(self._pricing.get_price(request.actor, request.path_params["price"])))

    async def add(self, request: Request) -> Response:
        """Adds a price."""
        wanted = decoded(request.body, NewPrice).wanted()
        return self._told(request.actor, await self._pricing.add(request.actor, wanted), 201)

    async def change(self, request: Request) -> Response:
        """Notes, ends at another time."""
        said = decoded(request.body, PriceChange)
        id_ = request.path_params["price"]
        changed = await self._pricing.change(request.actor, id_, said.note, said.ends)
        return self._told(request.actor, changed)

    async def end(self, request: Request) -> Response:
        """Ends a price now."""
        ended = await self._pricing.end(request.actor, request.path_params["price"])
        return self._told(request.actor, ended)

    def _told(self, actor: Actor, price: Price, status: int = 200) -> Response:
        return answer(price_card(price, self._naming.of_price(actor, price)), status)
