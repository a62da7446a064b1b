"""Prices: wire types, handlers and endpoints.

Amounts are decimal texts in the currency's unit. Many JSON parsers read numbers as floats, and money must be
exact.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from antiphon.bodies.strict_json import EXPECTED, decode_json
from antiphon.dialects.base import Endpoint
from antiphon.dialects.http_types import Request, Response
from antiphon.domain.identity import Actor
from antiphon.domain.prices import DECIMAL, Price, format_decimal, parse_decimal
from antiphon.errors import InvalidValue
from antiphon.http.admin.model_warnings import ModelWarnings
from antiphon.http.admin.resource import (
    CREATED,
    ListPage,
    Moment,
    Note,
    Pattern,
    answer_json,
    answer_page,
    declare_endpoint,
    declare_paging,
)
from antiphon.services.prices import PriceRequest, PriceService

Amount = Annotated[
    str,
    Meta(
        pattern=DECIMAL,
        examples=["0.15"],
        extra={EXPECTED: "a decimal text of at most nine digits behind the point, and seven before it: 0.15"},
    ),
]

Currency = Annotated[
    str,
    Meta(
        pattern=r"^[A-Z]{3}(?![\s\S])",
        examples=["USD"],
        extra={EXPECTED: "three capital letters, as in ISO 4217: USD"},
    ),
]


class NewPrice(Struct, frozen=True, forbid_unknown_fields=True):
    """A price to add. `models` is a pattern of model names, with `*` for any run of characters. `input`,
    `cached` and `output` are prices of a million tokens, and `request` is the price of each request. All are
    decimals of the currency's unit with at most nine digits behind the point. Without `cached`, cached prompt
    tokens cost as much as others. `since` (default: now) and `until` are Unix seconds."""

    models: Pattern
    currency: Currency
    input: Amount
    output: Amount
    cached: Amount | None = None
    request: Amount = "0"
    since: Moment | None = None
    until: Moment | None = None
    note: Note = ""

    def to_request(self) -> PriceRequest:
        """Converts to the request that the service takes, with amounts in nano-units."""
        return PriceRequest(
            models=self.models,
            currency=self.currency,
            input=_parse_amount(self.input),
            output=_parse_amount(self.output),
            cached=None if self.cached is None else _parse_amount(self.cached),
            request=_parse_amount(self.request),
            since=self.since,
            until=self.until,
            note=self.note,
        )


class PriceChange(Struct, frozen=True, forbid_unknown_fields=True):
    """The fields to change; others stay. The other fields of a price cannot change: end it and add
    another."""

    until: Moment | UnsetType | None = UNSET
    note: Note | None = None

    def choose_end(self, current_end: int | None) -> int | None:
        return current_end if isinstance(self.until, UnsetType) else self.until


class PriceCard(Struct, frozen=True, kw_only=True):
    """A price. Amounts are as in `NewPrice`, times are Unix seconds. `warnings` is present if a change of the
    price causes warnings about its models."""

    object: Literal["price"] = "price"
    id: str
    models: str
    currency: str
    input: Amount
    cached: Amount | None
    output: Amount
    request: Amount
    since: int
    until: int | None
    created_at: int
    note: str
    warnings: list[str] | UnsetType = UNSET


class PricePage(ListPage, frozen=True, kw_only=True):
    """Prices, in the order of their start."""

    data: list[PriceCard]


class PriceResource:
    """The handlers of prices."""

    def __init__(self, prices: PriceService, warnings: ModelWarnings) -> None:
        self._prices = prices
        self._warnings = warnings

    def endpoints(self) -> tuple[Endpoint, ...]:
        path = "/prices/{price}"
        return (
            declare_endpoint(
                "GET",
                "/prices",
                self.list_prices,
                "All prices, also those that ended",
                gives=PricePage,
                query=declare_paging(),
            ),
            declare_endpoint(
                "POST", "/prices", self.add, "Add a price", body=NewPrice, gives=PriceCard, status=CREATED
            ),
            declare_endpoint("GET", path, self.show_price, "One price", gives=PriceCard),
            declare_endpoint(
                "PATCH",
                path,
                self.change,
                "Change the note or the end of a price",
                body=PriceChange,
                gives=PriceCard,
            ),
            declare_endpoint("DELETE", path, self.end, "End a price now", gives=PriceCard),
        )

    async def list_prices(self, request: Request) -> Response:
        prices = self._prices.list_prices(request.actor)
        return answer_page(request, [(price.id, build_price_card(price)) for price in prices], PricePage)

    async def show_price(self, request: Request) -> Response:
        return answer_json(
            build_price_card(self._prices.get_price(request.actor, request.path_params["price"]))
        )

    async def add(self, request: Request) -> Response:
        price_request = decode_json(request.body, NewPrice).to_request()
        self._warnings.require_used_price(request.actor, price_request.models)
        return self._answer_price(request.actor, await self._prices.add(request.actor, price_request), 201)

    async def change(self, request: Request) -> Response:
        body = decode_json(request.body, PriceChange)
        id_ = request.path_params["price"]
        changed = await self._prices.change(request.actor, id_, body.note, body.choose_end)
        return self._answer_price(request.actor, changed)

    async def end(self, request: Request) -> Response:
        ended_price = await self._prices.end(request.actor, request.path_params["price"])
        return self._answer_price(request.actor, ended_price)

    def _answer_price(self, actor: Actor, price: Price, status: int = 200) -> Response:
        """Answers with the card of a price and warnings about its models."""
        return answer_json(build_price_card(price, self._warnings.warn_of_price(actor, price)), status)


def build_price_card(price: Price, warnings: Sequence[str] = ()) -> PriceCard:
    return PriceCard(
        id=price.id,
        models=price.models,
        currency=price.currency,
        input=format_decimal(price.input),
        cached=None if price.cached is None else format_decimal(price.cached),
        output=format_decimal(price.output),
        request=format_decimal(price.request),
        since=price.since,
        until=price.until,
        created_at=price.created,
        note=price.note,
        warnings=list(warnings) or UNSET,
    )


def _parse_amount(text: str) -> int:
    """Converts a decimal text to nano-units. Raises InvalidValue."""
    amount = parse_decimal(text)
    if amount is None:
        raise InvalidValue(f"{text[:40]!r} is no amount")
    return amount
