"""Limits and prices in a database."""

from dataclasses import asdict

import sqlalchemy as sa

from antiphon.domain.limits import Limit
from antiphon.domain.prices import Price
from antiphon.store import schema
from antiphon.store.base import By
from antiphon.store.changing import changing, noted
from antiphon.store.database import Database

WITHIN_S = 30.0
"""Seconds that a look through the whole ledger may take."""


class SqlRules:
    """`store.base.Rules` over a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add_limit(self, limit: Limit, by: By) -> int:
        with changing(self._database, by, "the limit is there already") as change:
            change.insert(schema.limits, asdict(limit))
            change.note("limit.create", limit.id, noted(asdict(limit)))
        return change.revision

    def change_limit(self, limit: Limit, by: By) -> int:
        with changing(self._database, by, "the limit cannot be changed so") as change:
            change.note("limit.change", limit.id, change.put(schema.limits, asdict(limit), "limit"))
        return change.revision

    def remove_limit(self, id_: str, by: By) -> int:
        with changing(self._database, by, "the limit cannot be removed") as change:
            gone = noted(dict(change.require(schema.limits, id_, "limit")))
            change.connection.execute(schema.limits.delete().where(schema.limits.c.id == id_))
            change.note("limit.remove", id_, gone)
        return change.revision

    def add_price(self, price: Price, by: By) -> int:
        with changing(self._database, by, "the price is there already") as change:
            change.insert(schema.prices, asdict(price))
            change.note("price.create", price.id, noted(asdict(price)))
        return change.revision

    def change_price(self, price: Price, by: By) -> int:
        with changing(self._database, by, "the price cannot be changed so") as change:
            change.note("price.change", price.id, change.put(schema.prices, asdict(price), "price"))
        return change.revision

    def spent(self, but: str) -> str | None:
        currency = schema.ledger.c.currency
        found = sa.select(currency).where(currency.not_in(("", but))).limit(1)
        with self._database.reading(WITHIN_S) as connection:
            return connection.execute(found).scalar()
