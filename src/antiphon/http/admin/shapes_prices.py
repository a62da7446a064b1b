"""What the admin API takes and gives of prices. Amounts are decimal texts of the currency's unit: JSON's
numbers are read as floats by many, and money is exact.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from antiphon.domain.money import DECIMAL, decimal, nanos
from antiphon.domain.prices import Price
from antiphon.errors import InvalidValue
from antiphon.http.admin.shapes import Moment, Note, Page, Pattern
from antiphon.services.prices import PriceRequest

Amount = Annotated[str, Meta(pattern=DECIMAL, examples=["0.15"])]
Currency = Annotated[str, Meta(pattern=r"^[A-Z]{3}(?![\s\S])", examples=["USD"])]


class NewPrice(Struct, frozen=True, forbid_unknown_fields=True):
    """A price to add. `models` is a pattern of model names, `*` for any run of characters; `input`, `cached`
    and `output` are for a million tokens, `request` for each request, as decimals of the currency's unit with
    at most nine digits behind the point. Without `cached`, prompt tokens that were not computed again cost
    what the others do. `since` (now, where it is left out) and `until` are Unix seconds."""

    models: Pattern
    currency: Currency
    input: Amount
    output: Amount
    cached: Amount | None = None
    request: Amount = "0"
    since: Moment | None = None
    until: Moment | None = None
    note: Note = ""

    def wanted(self) -> PriceRequest:
        """In nano-units."""
        return PriceRequest(
            models=self.models,
            currency=self.currency,
            input=_nanos(self.input),
            output=_nanos(self.output),
            cached=None if self.cached is None else _nanos(self.cached),
            request=_nanos(self.request),
            since=self.since,
            until=self.until,
            note=self.note,
        )


class PriceChange(Struct, frozen=True, forbid_unknown_fields=True):
    """What is to be another; what is left out stays. Nothing else of a price can be changed: end it and add
    another."""

    until: Moment | UnsetType | None = UNSET
    note: Note | None = None

    def ends(self, before: int | None) -> int | None:
        """When the price ends from then on."""
        return before if isinstance(self.until, UnsetType) else self.until


class PriceCard(Struct, frozen=True, kw_only=True):
    """A price. Amounts as in `NewPrice`, times in Unix seconds. `warnings` is there where it was added,
    changed or ended and something is to be said of its models."""

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


class PricePage(Page, frozen=True, kw_only=True):
    """Prices, those that begin first before others."""

    data: list[PriceCard]


def price_card(price: Price, warnings: Sequence[str] = ()) -> PriceCard:
    """A price as it is shown."""
    return PriceCard(
        id=price.id,
        models=price.models,
        currency=price.currency,
        input=decimal(price.input),
        cached=None if price.cached is None else decimal(price.cached),
        output=decimal(price.output),
        request=decimal(price.request),
        since=price.since,
        until=price.until,
        created_at=price.created,
        note=price.note,
        warnings=list(warnings) or UNSET,
    )


def _nanos(text: str) -> int:
    amount = nanos(text)
    if amount is None:
        raise InvalidValue(f"{text[:40]!r} is no amount")
    return amount
