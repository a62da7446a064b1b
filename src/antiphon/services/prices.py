"""The price list and its changes.

A current price is never changed: it ends, and another price is added. So the cost of each entry of the ledger
can be computed again from the price that the entry names.
"""

from collections.abc import Callable, Iterable, Mapping

from antiphon.domain.identity import Actor
from antiphon.domain.limits import Measure
from antiphon.domain.prices import CURRENCY_CODES, Price, find_unpriced
from antiphon.domain.values import Struct, asdict, replace
from antiphon.errors import InvalidValue
from antiphon.services.changes import DirectoryChanges, replace_by_id
from antiphon.services.policy import find_by_id, require_admin
from antiphon.store.base import RuleStore

SETTLE_S = 10
"""Seconds after the end of a price until the ledger contains all its requests."""


class PriceRequest(Struct, frozen=True):
    """A requested price, with the fields and units of `domain.prices.Price`."""

    models: str
    currency: str
    input: int
    output: int
    cached: int | None = None
    request: int = 0
    since: int | None = None
    """The start in Unix seconds; None means now."""
    until: int | None = None
    note: str = ""


class PriceService:
    """The prices of one server, all in one currency. Only the operator can change them."""

    def __init__(self, changes: DirectoryChanges, rules: RuleStore) -> None:
        self._changes = changes
        self._rules = rules

    def list_prices(self, actor: Actor) -> list[Price]:
        """Lists all prices, including ended ones."""
        require_admin(actor)
        return list(self._changes.directory.prices)

    def get_price(self, actor: Actor, id_: str) -> Price:
        """Returns a price. Raises NotFound."""
        return find_by_id(self.list_prices(actor), id_, "price")

    def find_unpriced(self, models: Mapping[str, Iterable[str]]) -> list[str]:
        """Lists the models without a current price. `models`: for each model, the names of its routes in the
        price list."""
        return find_unpriced(self._changes.directory.prices, models, self._changes.now())

    def find_refused(self, models: Mapping[str, Iterable[str]]) -> list[str]:
        """Lists the models without a current price whose cost a limit counts. Their requests are refused."""
        limits = self._changes.directory.limits
        cost_limits = [limit for limit in limits if limit.measure is Measure.COST]
        return [
            model
            for model in self.find_unpriced(models)
            if any(limit.applies_to(model) for limit in cost_limits)
        ]

    async def add(self, actor: Actor, request: PriceRequest) -> Price:
        """Adds a price for requests that start at or after its start.

        Raises InvalidValue if the start is in the past, if the currency is unknown, or if the server's prices
        have another currency. The currency can change if nothing was priced yet and all prices have ended.
        """
        require_admin(actor)

        def add() -> Price:
            now = self._changes.now()
            since = now if request.since is None else request.since
            fields = {"id": self._changes.make_id("price"), "since": since, "created": now}
            price = Price(**{**asdict(request), **fields})
            self._require_currency(price.currency, now)
            if price.since < now:
                raise InvalidValue(
                    f"since is in the past (now is {now}), and earlier requests keep their price; "
                    "leave since out",
                    param="since",
                )
            if price.until is not None and price.until <= price.since:
                raise InvalidValue(
                    "until is not after since, so the price would never apply; set a later until",
                    param="until",
                )
            revision = self._rules.add_price(price, self._changes.attribute_to(actor))
            self._changes.update_directory(revision, prices=(*self._changes.directory.prices, price))
            return price

        return await self._changes.apply(add)

    async def change(
        self, actor: Actor, id_: str, note: str | None, change_end: Callable[[int | None], int | None]
    ) -> Price:
        """Changes the note, unless it is None, and the end. `change_end` receives the old end and returns the
        new one.

        Raises InvalidValue if the price has ended, or if the new end is in the past.
        """
        require_admin(actor)

        def update() -> Price:
            price, now = self.get_price(actor, id_), self._changes.now()
            changed_price = replace(
                price, note=price.note if note is None else note, until=change_end(price.until)
            )
            until = changed_price.until
            if until != price.until and price.is_over(now):
                raise InvalidValue("the price has ended: add another price", param="until")
            if until not in (None, price.until) and until < max(now, price.since):
                raise InvalidValue(
                    f"until is in the past (now is {now}) or before since: earlier requests keep their price",
                    param="until",
                )
            return self._write_price(changed_price, actor)

        return await self._changes.apply(update)

    async def end(self, actor: Actor, id_: str) -> Price:
        """Ends a price now, or at its start if the price has not begun. Does not change a price that has
        ended."""
        require_admin(actor)

        def end_price() -> Price:
            price, now = self.get_price(actor, id_), self._changes.now()
            end = max(now, price.since)
            if price.until is not None and price.until <= end:
                return price
            return self._write_price(replace(price, until=end), actor)

        return await self._changes.apply(end_price)

    def _write_price(self, price: Price, actor: Actor) -> Price:
        """Writes a changed price to the store and to the directory, and returns the price."""
        revision = self._rules.change_price(price, self._changes.attribute_to(actor))
        self._changes.update_directory(revision, prices=replace_by_id(self._changes.directory.prices, price))
        return price

    def _require_currency(self, currency: str, now: int) -> None:
        """Raises InvalidValue for a currency that is unknown and in no price, and for a second currency."""
        prices = self._changes.directory.prices
        foreign_prices = [price for price in prices if price.currency != currency]
        if currency not in CURRENCY_CODES and len(foreign_prices) == len(prices):
            raise InvalidValue(
                f"{currency} is not a currency: use a code of ISO 4217, such as USD",
                param="currency",
            )
        if not foreign_prices:
            return
        for price in foreign_prices:
            if not price.is_over(now):
                raise _make_currency_error(
                    f"this server's prices are in {price.currency}",
                    "choose another currency after all these prices have ended, if no request was priced yet",
                )
        if (ledger_currency := self._rules.find_other_currency(currency)) is not None:
            raise _make_currency_error(
                f"this server has costs in {ledger_currency}", f"use {ledger_currency} for every price"
            )
        for price in foreign_prices:
            if not price.never_applies and now < (settled_at := (price.until or now) + SETTLE_S):
                raise _make_currency_error(
                    f"a price in {price.currency} ended just now, and a request may still get a cost from it",
                    f"try again in {settled_at - now} s",
                )


def _make_currency_error(reason: str, advice: str) -> InvalidValue:
    """Returns the error for a currency that cannot be accepted, with the reason and advice."""
    return InvalidValue(
        f"{reason}; costs are summed, so all prices have one currency: {advice}", param="currency"
    )
